"""Plain `python` on a machine with several GPUs: it uses one, and says how to use all."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.engine.start import tell_of_idle_gpus
from drumline.launcher.world import World
from drumline.plan.resolve import resolve
from tests.unit.plan.machines import h100s, run, world

USE_ALL = "one process, started by python, on 1 of 4 GPUs; to use all: drumline launch script.py"


@pytest.mark.parametrize(
    ("num_gpus", "started", "sections", "said"),
    [
        (4, World(), {}, [USE_ALL]),
        (1, World(), {}, []),
        (0, World(), {}, []),
        (4, world(4), {}, []),
        (4, World(source="torch elastic"), {}, []),
        (4, World(), {"hardware": {"gpus": ["2"]}}, []),
        (4, World(), {"parallel": {"kind": "single"}}, []),
        (4, World(), {"hardware": {"device": "cpu"}}, []),
    ],
)
def test_python_alone_says_how_to_use_every_gpu(
    num_gpus: int, started: World, sections: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    config, hardware = run(**sections), h100s(num_gpus)
    tell_of_idle_gpus(config, resolve(config, hardware, started), hardware, started)
    assert caplog.messages == said
