from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from drumline.errors import GroupError
from drumline.launcher.world import World
from drumline.parallel.groups import make_store


def test_a_port_that_is_taken_is_told_as_such() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        world = World(0, 2, 0, 2, f"tcp://127.0.0.1:{port}")
        with pytest.raises(GroupError) as caught:
            make_store(world, timedelta(seconds=5), 0)
    assert caught.value.problem.startswith(f"port {port} is taken by another process")
    assert "MASTER_PORT" in caught.value.fix
