from __future__ import annotations

import pytest

from drumline.errors import ConfigError
from drumline.launcher.world import World, accelerate_precision, detect_world, first_host, tasks_per_node

# As printed by a script under `torchrun --standalone --nproc-per-node 2` and `accelerate launch --multi_gpu
# --num_processes 2` (torch 2.13, accelerate 1.15), rank 1.
TORCHRUN = {
    "GROUP_RANK": "0",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "34083",
    "RANK": "1",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "f37cd869",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "WORLD_SIZE": "2",
}
ACCELERATE_ONE_PROCESS = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_USE_CPU": "True",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NAME": "train",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-08,11]",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
VARIABLES = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_a_place_that_is_none_is_refused() -> None:
    for place in ((2, 2, 0, 1), (1, 2, 1, 1), (0, 1, 0, 2)):
        with pytest.raises(ConfigError, match="is no place"):
            World(*place)


def test_no_variables_are_a_world_of_one() -> None:
    assert detect_world({"HOME": "/root"}) == World()


def test_torch_elastic_with_the_agents_store() -> None:
    assert detect_world(TORCHRUN) == World(1, 2, 1, 2, "agent://localhost:34083", "f37cd869-0", "torch elastic")


def test_torch_elastic_without_the_agents_store() -> None:
    world = detect_world(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert world.init_method == "tcp://localhost:34083"


def test_a_restarted_world_has_another_run_id() -> None:
    assert detect_world(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}).run_id == "f37cd869-2"


def test_torch_elastic_with_one_worker_needs_no_meeting_place() -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert detect_world(TORCHRUN | one) == World(0, 1, 0, 1, None, "f37cd869-0", "torch elastic")


def test_torch_elastic_comes_before_slurm() -> None:
    assert detect_world(SRUN | TORCHRUN).source == "torch elastic"


def test_an_ipv6_address_is_put_in_brackets() -> None:
    assert detect_world(TORCHRUN | {"MASTER_ADDR": "fd00::7"}).init_method == "agent://[fd00::7]:34083"


def test_accelerates_single_process_is_a_world_of_one() -> None:
    assert detect_world(ACCELERATE_ONE_PROCESS) == World()


def test_slurm() -> None:
    world = detect_world(SRUN)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (3, 5, 1, 2)
    assert world.init_method == "tcp://gpu07:24567"
    assert (world.run_id, world.source) == ("slurm-1234567-0-0", "slurm")


def test_slurm_steps_of_one_job_do_not_share_a_port_or_an_id() -> None:
    first, second = detect_world(SRUN), detect_world(SRUN | {"SLURM_STEP_ID": "1"})
    assert first.init_method != second.init_method
    assert first.run_id != second.run_id


def test_slurm_takes_the_meeting_place_of_the_batch_script() -> None:
    world = detect_world(SRUN | {"MASTER_ADDR": "head-ib0", "MASTER_PORT": "6000"})
    assert world.init_method == "tcp://head-ib0:6000"


def test_slurm_with_a_plain_count_of_tasks_per_node() -> None:
    environ = without(SRUN, "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID") | {"SLURM_NTASKS_PER_NODE": "3"}
    assert detect_world(environ).local_size == 3


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_ID": None},  # the batch script's python, or salloc's shell
        {"SLURM_PROCID": None},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        {"SLURM_JOB_NAME": "bash"},  # srun --pty bash
        {"SLURM_STEP_ID": "4294967290", "SLURM_JOB_NAME": "interactive"},  # salloc's interactive step
    ],
)
def test_slurm_without_parallel_tasks_is_a_world_of_one(change: dict[str, str | None]) -> None:
    environ = without(SRUN, *change) | {name: value for name, value in change.items() if value is not None}
    assert detect_world(environ) == World()


def test_srun_inside_an_interactive_allocation_is_parallel() -> None:
    assert detect_world(SRUN | {"SLURM_JOB_NAME": "interactive"}).size == 5


def test_explicit_variables() -> None:
    assert detect_world(VARIABLES) == World(2, 4, 0, 1, "tcp://head:29500", "drumline", "variables")
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert detect_world(VARIABLES | local) == World(2, 4, 1, 2, "tcp://head:29500", "drumline", "variables")


def test_explicit_world_of_one_needs_no_meeting_place() -> None:
    assert detect_world({"RANK": "0", "WORLD_SIZE": "1"}) == World()


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        (without(TORCHRUN, "WORLD_SIZE", "MASTER_PORT"), "WORLD_SIZE, MASTER_PORT is not set"),
        (without(SRUN, "SLURM_LOCALID"), "SLURM_LOCALID is not set"),
        (without(SRUN, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST is not set"),
        (without(SRUN, "SLURM_STEP_TASKS_PER_NODE"), "SLURM_NTASKS_PER_NODE is not set"),
        (without(VARIABLES, "MASTER_ADDR"), "MASTER_ADDR is not set"),
        (without(VARIABLES, "WORLD_SIZE"), "WORLD_SIZE is not set"),
        (VARIABLES | {"LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE is not set"),
        (VARIABLES | {"MASTER_PORT": ""}, "MASTER_PORT is not set"),
    ],
)
def test_missing_variables_are_named(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        detect_world(environ)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"RANK": "4"}, "rank 4 of 4"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is '0'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "local rank 2 of 2"),
    ],
)
def test_variables_that_cannot_be_meant(change: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        detect_world(VARIABLES | change)


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x3)", [2, 2, 2]), ("2(x2),1", [2, 2, 1]), ("1,3(x1)", [1, 3])]
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


def test_tasks_per_node_refuses_other_text() -> None:
    with pytest.raises(ConfigError, match="SLURM_STEP_TASKS_PER_NODE"):
        tasks_per_node("2(y3)")


def test_a_node_beyond_the_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="SLURM_NODEID is 3"):
        detect_world(SRUN | {"SLURM_NODEID": "3"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node7", "node7"),
        ("a1,a2", "a1"),
        ("node[01-04,07]", "node01"),
        ("node[07,01-04],x9", "node07"),
        ("r[1-2]n[3-4]-ib", "r1n3-ib"),
        ("login,gpu[1-2]", "login"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@pytest.mark.parametrize(("value", "precision"), [("no", None), ("bf16", "bf16"), ("FP16", "fp16")])
def test_accelerate_precision(value: str, precision: str | None) -> None:
    assert accelerate_precision({"ACCELERATE_MIXED_PRECISION": value}) == precision


def test_accelerate_precision_not_given() -> None:
    assert accelerate_precision({}) is None


@pytest.mark.parametrize(("value", "reason"), [("fp8", "no float8 layers"), ("int4", "no precision known")])
def test_accelerate_precision_refused(value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        accelerate_precision({"ACCELERATE_MIXED_PRECISION": value})
