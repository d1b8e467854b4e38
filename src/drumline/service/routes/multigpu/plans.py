"""Trainings that were planned: what came with them is their owner's, to be removed."""

from __future__ import annotations

from fastapi import APIRouter

from drumline.service.paths import PlanId
from drumline.service.problems import responses
from drumline.service.state import TheService, TheWho


def add(routes: APIRouter) -> None:
    """Add this path."""

    @routes.delete(
        "/training/config/{config_id}", operation_id="delete_plan_data", status_code=204, responses=responses(404, 409)
    )
    def delete_plan_data(config_id: PlanId, service: TheService, who: TheWho) -> None:
        """Remove a plan and the texts that came with it, on the machine that has them; jobs have their own copy."""
        service.board.drop_plan(config_id, who)
