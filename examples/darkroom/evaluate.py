"""`python evaluate.py RUN`: does the model learn, in rooms with goals that no history of its training had?

Writes learning_curve.json and learning_curve.png into the run's folder: the mean return by episode.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from darkroom import EPISODE, best_return, split_goals
from model import HistoryModel
from rollout import roll_out
from settings import Settings
from train import WEIGHTS


def load(run: Path) -> tuple[HistoryModel, Settings]:
    """The trained model, on a GPU where there is one, and its settings."""
    found = torch.load(run / WEIGHTS, map_location="cpu", weights_only=True)
    settings = Settings.model_validate(found["settings"])
    model = HistoryModel(settings.tf_n_embd, settings.tf_n_layer, settings.tf_n_head, settings.n_transit)
    model.load_state_dict(found["weights"])
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), settings


def evaluate(run: Path, num_agents: int, num_episodes: int | None, seed: int) -> dict[str, Any]:
    """The learning curve on the held-out goals, with `num_agents` agents each; episodes: none: a context's."""
    model, settings = load(run)
    _, goals = split_goals(settings.goals_held_out, settings.seed)
    returns = roll_out(model, goals.repeat(num_agents), num_episodes or settings.n_transit // EPISODE, seed).mean(dim=0)
    best = best_return(goals).mean()
    return {
        "goals": len(goals),
        "agents_per_goal": num_agents,
        "mean_return": [round(each, 3) for each in returns.tolist()],
        "optimum": round(best.item(), 3),
        "last_over_first": round((returns[-1] / returns[0]).item(), 2),
        "share_of_optimum": round((returns[-1] / best).item(), 3),
    }


def draw(curve: dict[str, Any], file: Path) -> None:
    """Return over episodes, with the optimum as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(curve["mean_return"]) + 1), curve["mean_return"], marker="o", label="in context")
    axes.axhline(curve["optimum"], linestyle="--", color="grey", label="optimum")
    axes.set(xlabel="episode", ylabel="mean return", title=f"{curve['goals']} goals that were held out", ylim=(0, None))
    axes.legend()
    figure.savefig(file)


def main() -> None:
    """Evaluate one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--agents", type=int, default=4, help="for each held-out goal (4)")
    parser.add_argument("--episodes", type=int, help="how many (as many as a context holds)")
    parser.add_argument("--seed", type=int, default=0, help="of the actions that are drawn (0)")
    arguments = parser.parse_args()
    curve = evaluate(arguments.run, arguments.agents, arguments.episodes, arguments.seed)
    (arguments.run / "learning_curve.json").write_text(json.dumps(curve, indent=1) + "\n", encoding="utf-8")
    draw(curve, arguments.run / "learning_curve.png")
    print("mean return by episode:", " ".join(f"{each:.1f}" for each in curve["mean_return"]))
    print(f"last over first: {curve['last_over_first']}; share of the optimum: {curve['share_of_optimum']:.0%}")


if __name__ == "__main__":
    main()
