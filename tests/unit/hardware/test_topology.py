from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from drumline.hardware.session import open_session
from drumline.hardware.topology import Link, Place, Topology, cpu_list, ranges, read_topology, rows
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    NOT_SUPPORTED,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedLink,
    SimulatedNvml,
)

NAMES = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


def read(nvml: SimulatedNvml, root: Path) -> Topology:
    with open_session(nvml) as session:
        return read_topology(session, root)


def machine(gpus: list[SimulatedGpu], levels: dict[str, int] | None = None) -> SimulatedNvml:
    """levels: of pairs written 'ab'."""
    nvml = SimulatedNvml(gpus)
    for pair, level in (levels or {}).items():
        nvml.levels[frozenset(f"GPU-{letter}" for letter in pair)] = level
    return nvml


def bare(*names: str) -> list[SimulatedGpu]:
    return [SimulatedGpu(name, links=[]) for name in names]


def test_gpus_behind_nvswitches(tmp_path: Path) -> None:
    fewer = [SimulatedLink(active=number < 12) for number in range(18)]
    gpus = [SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b"), SimulatedGpu("GPU-c", links=fewer)]
    found = read(machine(gpus), tmp_path)
    assert {(link.a[-1] + link.b[-1]): link.nvlinks for link in found.links} == {"ab": 18, "ac": 12, "bc": 12}
    assert [place.nvlinks for place in found.places] == [18, 18, 12]
    assert found.distance("GPU-a", "GPU-b") < found.distance("GPU-a", "GPU-c")
    assert str(found.link("GPU-c", "GPU-a")) == "NVLink x12"


def test_gpus_that_are_wired_to_each_other(tmp_path: Path) -> None:
    def to(address: str) -> list[SimulatedLink]:
        return [SimulatedLink(remote=address, kind=0) for _ in range(4)]

    gpus = [
        SimulatedGpu("GPU-a", pci="00000000:1B:00.0", links=to("00000000:2B:00.0")),
        SimulatedGpu("GPU-b", pci="00000000:2B:00.0", links=to("00000000:1B:00.0")),
        SimulatedGpu("GPU-c", pci="00000000:3B:00.0", links=[]),
    ]
    found = read(machine(gpus, {"ac": 10, "bc": 40}), tmp_path)
    assert [(link.nvlinks, link.level) for link in found.links] == [(4, 50), (0, 10), (0, 40)]
    assert [str(link) for link in found.links] == ["NVLink x4", "one PCIe switch", "one NUMA node"]
    assert found.places[2].nvlinks is None  # it has none, and so answers no question about them
    assert found.best_group(["GPU-c", "GPU-a", "GPU-b"], 2) == ("GPU-a", "GPU-b")


def test_links_that_lead_nobody_knows_where_count_between_nvlink_peers(tmp_path: Path) -> None:
    gpus = [SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")]
    for gpu in gpus:
        gpu.errors = dict.fromkeys(
            ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo"), NOT_SUPPORTED
        )
    nvml = machine(gpus)
    assert [link.nvlinks for link in read(nvml, tmp_path).links] == [18]
    nvml.peers[frozenset({"GPU-a", "GPU-b"})] = 5
    assert [link.nvlinks for link in read(nvml, tmp_path).links] == [0]


def test_a_link_that_is_down_does_not_count(tmp_path: Path) -> None:
    gpus = [SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")]
    gpus[1].links[3].active = False
    found = read(machine(gpus), tmp_path)
    assert [link.nvlinks for link in found.links] == [17]


def test_each_level_is_farther_than_the_one_before() -> None:
    levels = [Link("a", "b", level=level).distance for level in (0, 10, 20, 30, 40, 50)]
    wires = [Link("a", "b", nvlinks=count, level=50).distance for count in (18, 12, 4, 1)]
    distances = [0, *wires, *levels, Link("a", "b").distance]
    assert distances == sorted(set(distances))


def test_peers_need_reading_and_writing_both_ways(tmp_path: Path) -> None:
    nvml = machine(bare("GPU-a", "GPU-b", "GPU-c"))
    nvml.peers[frozenset({"GPU-a", "GPU-b"})] = 4
    assert [link.peer for link in read(nvml, tmp_path).links] == [False, True, True]
    nvml.errors["nvmlDeviceGetP2PStatus"] = NOT_SUPPORTED
    assert [link.peer for link in read(nvml, tmp_path).links] == [None, None, None]


def test_nodes_and_cores_come_from_the_kernel(tmp_path: Path) -> None:
    for address, node, cpus in (("0000:1b:00.0", "1", "0-2,8"), ("0000:2b:00.0", "-1", "")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (folder / "local_cpulist").write_text(f"{cpus}\n")
    first, second = read(machine(bare("GPU-a", "GPU-b")), tmp_path).places
    assert (first.numa_node, first.cpus, first.pci_address) == (1, (0, 1, 2, 8), "0000:1b:00.0")
    assert (second.numa_node, second.cpus) == (None, tuple(range(8)))  # NVML's mask, where the kernel lists none


def test_without_sysfs_nvml_tells_them(tmp_path: Path) -> None:
    gpus = bare("GPU-a")
    gpus[0].values["nvmlDeviceGetNumaNodeId"] = 3
    gpus[0].values["nvmlDeviceGetCpuAffinity"] = [0b101, 0b1]
    assert read(machine(gpus), tmp_path).places == (Place("GPU-a", 0, "0000:1b:00.0", 3, (0, 2, 64)),)
    gpus[0].errors = {"nvmlDeviceGetNumaNodeId": NOT_SUPPORTED, "nvmlDeviceGetCpuAffinity": NOT_SUPPORTED}
    assert read(machine(gpus), tmp_path).places == (Place("GPU-a", 0, "0000:1b:00.0"),)


def test_mig_instances_are_where_their_gpu_is(tmp_path: Path) -> None:
    gpus = [
        SimulatedGpu("GPU-a", instances={0: SimulatedInstance("MIG-1", 1), 1: SimulatedInstance("MIG-2", 2)}),
        SimulatedGpu("GPU-b"),
    ]
    found = read(machine(gpus), tmp_path)
    assert [place.uuid for place in found.places] == ["GPU-a", "GPU-b"]
    assert found.distance("MIG-1", "MIG-2") == 0
    assert found.distance("MIG-1", "GPU-b") == found.distance("GPU-a", "GPU-b") > 0


def test_a_fault_is_a_topology_that_says_why(tmp_path: Path) -> None:
    found = read(SimulatedNvml([], {"nvmlInit": DRIVER_NOT_LOADED}), tmp_path)
    assert found == Topology(why_not="no NVIDIA driver is loaded")
    assert found.best_group(["GPU-x", "GPU-y", "GPU-z"], 2) == ("GPU-x", "GPU-y")


def of_distances(far: dict[str, int], names: str) -> Topology:
    """Links by level; pairs that are not named lie between NUMA nodes."""
    links = tuple(Link(a, b, level=far.get(a + b, 50)) for a, b in itertools.combinations(names, 2))
    return Topology(tuple(Place(name, index) for index, name in enumerate(names)), links)


def test_the_worst_link_of_a_group_counts_first() -> None:
    # a-b-c is near twice and far once; d-e-f is nowhere as near, and nowhere as far.
    far = {"ab": 10, "bc": 10, "ac": 50, "de": 40, "ef": 40, "df": 40}
    assert of_distances(far, "abcdef").best_group("abcdef", 3) == ("d", "e", "f")


def test_equals_are_taken_in_the_order_given() -> None:
    topology = of_distances({}, "abcd")
    assert topology.best_group(["d", "b", "a"], 2) == ("d", "b")
    assert topology.best_group(["d", "b", "a"], 1) == ("d",)
    assert topology.best_group(["d", "b"], 5) == ("d", "b")
    assert topology.best_group(["d", "b"], 0) == ()


def test_a_rack_of_gpus_is_chosen_from_in_time() -> None:
    """32 GPUs in boards of 8, whose order is shuffled: too many groups to look at each."""
    names = [f"g{index}" for index in range(32)]
    links = tuple(
        Link(a, b, level=0 if names.index(a) % 4 == names.index(b) % 4 else 50)
        for a, b in itertools.combinations(names, 2)
    )
    topology = Topology(tuple(Place(name, index) for index, name in enumerate(names)), links)
    group = topology.best_group(names[1:], 8)
    assert {int(name[1:]) % 4 for name in group} == {1}
    assert list(group) == sorted(group, key=names.index)


def test_the_table_for_people() -> None:
    links = (Link("a", "b", nvlinks=18), Link("a", "c", level=30))
    places = (Place("a", 0, numa_node=0, cpus=(0, 1, 2, 5)), Place("b", 1, numa_node=1), Place("c", 2))
    assert list(rows(Topology(places, links))) == [
        ("GPU 0", "-", "NVLink x18", "one PCIe host bridge", "0", "0-2,5"),
        ("GPU 1", "NVLink x18", "-", "unknown", "1", "-"),
        ("GPU 2", "one PCIe host bridge", "unknown", "-", "-", "-"),
    ]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8,10-11", (0, 1, 2, 3, 8, 10, 11)), ("5", (5,)), ("0-1,", (0, 1)), ("", ())]
)
def test_lists_of_the_kernel(text: str, numbers: tuple[int, ...]) -> None:
    assert cpu_list(text) == numbers
    assert ranges(numbers) == (text.rstrip(",") or "-")
