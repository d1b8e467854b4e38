"""Who meets where: groups that the user made, explicit worlds, ranks that do not come or die."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from drumline import DrumlineError, StepInfo, Trainer, World
from drumline.parallel.groups import make_store
from tests.rank_pool import RankError, RankPool
from tests.ranks.failing import failures_of
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model, train

CONFIG: dict[str, Any] = {"train": {"global_batch": 8, "max_steps": 4}}
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def trainer_of(directory: str, world: World | None = None, timeout_s: float = 20.0, **options: Any) -> Trainer:
    config = config_of(Case(directory, CONFIG), parallel={"kind": "auto", "timeout_s": timeout_s})
    if world is not None:
        options["world"] = world
    return Trainer(make_model(), config, MaskedRows(37), loss=MaskedRegression([]), **options)


def losses_of(trainer: Trainer) -> list[float]:
    return [info.logged["loss"] for info in trainer.steps() if info.logged is not None]


def sum_of_ones() -> float:
    ones = torch.ones(())
    dist.all_reduce(ones)
    return float(ones)


@pytest.fixture
def expected(ranks: RankPool, tmp_path: Path) -> list[float]:
    """Losses of one process."""
    (record,) = ranks.run(1, train, Case(str(tmp_path / "expected"), CONFIG))
    return record.losses


def train_in_own_group(directory: str, launched: bool) -> tuple[list[float], float]:
    """In a group that was made before, with or without a launcher's variables; then that group is used again."""
    names = () if launched else (*VARIABLES, *(name for name in os.environ if name.startswith("TORCHELASTIC")))
    rest = {name: value for name, value in os.environ.items() if name not in names}
    with mock.patch.dict(os.environ, rest, clear=True):
        with trainer_of(directory) as trainer:
            losses = losses_of(trainer)
        return losses, sum_of_ones()


@pytest.mark.parametrize("launched", [True, False], ids=["launched", "by-hand"])
def test_a_group_of_the_users_own_is_used_and_stays(
    ranks: RankPool, tmp_path: Path, expected: list[float], launched: bool
) -> None:
    for losses, total in ranks.run_grouped(2, train_in_own_group, fresh(tmp_path), launched):
        assert losses == pytest.approx(expected, abs=1e-10)
        assert total == 2.0


def fail_in_own_group(directory: str) -> tuple[str, float]:
    def fail(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == 1:
            raise ValueError("rank 1 only")

    ending = ""
    try:
        with trainer_of(directory, callbacks=[fail]) as trainer:
            trainer.fit()
    except (ValueError, DrumlineError) as error:
        ending = f"{type(error).__name__}: {error}"
    return ending, sum_of_ones()


def test_a_failure_leaves_the_users_group_as_it_is(ranks: RankPool, tmp_path: Path) -> None:
    (first, total), (second, other) = ranks.run_grouped(2, fail_in_own_group, fresh(tmp_path), timeout=15)
    assert first.startswith("PeerFailed: rank 1 failed: ValueError: rank 1 only")
    assert second == "ValueError: rank 1 only"
    assert total == other == 2.0


def clash_with_own_group(directory: str) -> None:
    world = World(1 - dist.get_rank(), 2, 0, 2, "tcp://127.0.0.1:1", source="the test")
    trainer_of(directory, world).fit()


def test_a_group_that_is_not_the_world_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="rank 0 of 2 in its process group, and rank 1 of 2 by the test"):
        ranks.run_grouped(2, clash_with_own_group, fresh(tmp_path))


def train_explicitly(directories: list[str], init_method: str) -> list[list[float]]:
    """Runs that follow each other at the same place."""
    world = World(int(os.environ["RANK"]), 2, 0, 2, init_method)
    answers = []
    for directory in directories:
        with trainer_of(directory, world) as trainer:
            answers.append(losses_of(trainer))
    return answers


@pytest.mark.parametrize("scheme", ["tcp", "file"])
def test_explicit_worlds_one_after_the_other(
    ranks: RankPool, tmp_path: Path, expected: list[float], scheme: str
) -> None:
    place = f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"file://{tmp_path}/store"
    directories = [str(tmp_path / f"run-{number}") for number in range(4)]
    for runs in ranks.run(2, train_explicitly, directories, place):
        assert len(runs) == 4
        for losses in runs:
            assert losses == pytest.approx(expected, abs=1e-10)


def start_in_vain_on_one(directory: str) -> list[float]:
    """Train after a start of a group that failed on rank 1 alone."""
    if os.environ["RANK"] == "1":
        with pytest.raises(RuntimeError, match=r"(?i)wait timeout"):
            dist.init_process_group(
                "gloo", init_method=f"file://{directory}-store", rank=1, world_size=2, timeout=timedelta(seconds=0.2)
            )
    with trainer_of(directory) as trainer:
        return losses_of(trainer)


def test_a_start_that_failed_on_one_rank_is_forgotten(ranks: RankPool, tmp_path: Path, expected: list[float]) -> None:
    for losses in ranks.run(2, start_in_vain_on_one, fresh(tmp_path)):
        assert losses == pytest.approx(expected, abs=1e-10)


def test_each_meeting_at_a_file_has_its_own(tmp_path: Path) -> None:
    """What leaves the one before as the last removes that, when others may be in the next already."""
    world = World(0, 2, 0, 2, f"file://{tmp_path}/store")
    stores = [make_store(world, timedelta(seconds=5), generation) for generation in (0, 1)]
    stores[1].set("there", "yes")
    (tmp_path / "store").unlink()  # in the very moment in which it was the last one's
    assert make_store(world, timedelta(seconds=5), 1).get("there") == b"yes"


def use_again(directory: str) -> list[dict[str, float]]:
    """Evaluate after training, close twice, and then a second trainer in the same processes."""
    metrics = []
    for number in range(2):
        trainer = trainer_of(f"{directory}-{number}", eval_data=MaskedRows(9))
        trainer.fit()
        metrics.append(trainer.evaluate())
        trainer.close()
        trainer.close()
        assert not dist.is_initialized()
    return metrics


def test_trainers_follow_each_other(ranks: RankPool, tmp_path: Path) -> None:
    (alone,) = ranks.run(1, use_again, str(tmp_path / "one"))
    for metrics in ranks.run(2, use_again, str(tmp_path / "two")):
        assert metrics[0] == metrics[1]
        assert metrics[0]["count"] == 9
        assert metrics[0]["loss"] == pytest.approx(alone[0]["loss"], abs=1e-10)


def come_alone(directory: str, world: World) -> None:
    trainer_of(directory, world, timeout_s=1.0).fit()


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [
        (0, 2, "rank 0 waited 1 s at 'start' for rank 1"),
        (0, 3, "rank 0 waited 1 s at 'start' for rank 1, 2"),
        (1, 2, "rank 1 could not reach the store at 127.0.0.1:"),
    ],
)
def test_a_lone_rank_ends_at_its_limit(ranks: RankPool, tmp_path: Path, rank: int, size: int, message: str) -> None:
    world = World(rank, size, rank, size, f"tcp://127.0.0.1:{free_port()}")
    (ending,) = failures_of(ranks, 1, come_alone, fresh(tmp_path), world)
    assert ending.name == "GroupError"
    assert ending.message.startswith(message)


def stay_away(directory: str) -> None:
    if os.environ["RANK"] != "1":
        trainer_of(directory, timeout_s=1.0).fit()


def test_absent_ranks_are_named_to_all(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(3, stay_away, fresh(tmp_path))
    assert sorted(caught.value.errors) == [0, 2]
    for rank, error in caught.value.errors.items():
        assert error.message.startswith(f"rank {rank} waited 1 s at 'start' for rank 1\n")


def misplace(directory: str, variables: dict[str, str], world: World | None) -> None:
    with mock.patch.dict(os.environ, variables):
        trainer_of(directory, world).fit()


@pytest.mark.parametrize(
    ("variables", "world", "name", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, None, "ConfigError", "describe no world: rank 2 of 2"),
        ({"MASTER_PORT": ""}, None, "ConfigError", "MASTER_PORT is not set"),
        ({}, World(0, 2), "GroupError", "does not say where 2 ranks meet"),
        ({}, World(0, 2, init_method="tcp://nowhere"), "GroupError", "'tcp://nowhere' does not say where 2 ranks meet"),
    ],
)
def test_a_world_that_cannot_be_is_refused(
    ranks: RankPool, tmp_path: Path, variables: dict[str, str], world: World | None, name: str, message: str
) -> None:
    (ending,) = failures_of(ranks, 1, misplace, fresh(tmp_path), variables, world)
    assert ending.name == name
    assert message in ending.message


def fail_explicitly(directory: str, init_method: str, failing: int) -> None:
    def fail(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == failing and info.step == 2:
            raise ValueError(f"rank {failing} only")

    world = World(int(os.environ["RANK"]), 2, 0, 2, init_method)
    with trainer_of(directory, world, callbacks=[fail]) as trainer:
        trainer.fit()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_that_serves_the_store_stays_until_others_have_read_why(
    ranks: RankPool, tmp_path: Path, rank: int
) -> None:
    place = f"tcp://127.0.0.1:{free_port()}"
    endings = failures_of(ranks, 2, fail_explicitly, fresh(tmp_path), place, rank)
    assert endings[rank] == ("ValueError", f"rank {rank} only")
    assert endings[1 - rank].name == "PeerFailed"
    assert endings[1 - rank].message.startswith(f"rank {rank} failed: ValueError: rank {rank} only")


def die(directory: str, init_method: str, dying: int) -> None:
    def exit_now(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == dying and info.step == 2:
            os._exit(7)

    world = World(int(os.environ["RANK"]), 2, 0, 2, init_method)
    with trainer_of(directory, world, callbacks=[exit_now]) as trainer:
        trainer.fit()


@pytest.mark.system
@pytest.mark.parametrize("rank", [0, 1])
def test_the_end_of_a_process_is_noticed_in_seconds(ranks: RankPool, tmp_path: Path, rank: int) -> None:
    """The other one says who is gone: by the store where rank 0 served it, by the transport, or by the heart-beats."""
    place = f"tcp://127.0.0.1:{free_port()}"
    endings = failures_of(ranks, 2, die, fresh(tmp_path), place, rank)
    assert endings[rank].name == "RankDied"
    said = endings[1 - rank].message
    ways = ["peer", f"rank {rank} is gone without a word"]
    if rank == 0:
        ways.append("rank 0, which serves the store by which ranks agree, is gone without a word")
    assert any(words in said for words in ways), said
