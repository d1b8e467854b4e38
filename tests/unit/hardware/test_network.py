from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from drumline.hardware.network import Interface, list_interfaces, nccl_interface


def interface(name: str, up: bool = True) -> Interface:
    return Interface(name, up, loopback=name == "lo", addresses=("192.0.2.1",), speed_mbit=None)


LO, DOCKER, ETH0, ETH10, IB = (interface(name) for name in ("lo", "docker0", "eth0", "eth10", "ib0"))


@pytest.mark.parametrize(
    ("interfaces", "setting", "expected"),
    [
        ([LO, DOCKER, ETH0, IB], None, "ib0"),
        ([LO, DOCKER, ETH0, ETH10], None, "eth0"),
        ([LO, DOCKER], None, "docker0"),
        ([LO], None, "lo"),
        ([], None, None),
        ([LO, interface("eth0", up=False)], None, "lo"),
        ([LO, ETH0], "", "eth0"),
        ([LO, ETH10, ETH0], "eth", "eth10"),
        ([LO, ETH10, ETH0], "=eth0", "eth0"),
        ([LO, ETH10], "=eth1", None),
        ([LO, ETH10], "eth1", "eth10"),
        ([LO, ETH0, IB], "ib,eth", "eth0"),
        ([LO, DOCKER, ETH0], "^lo,docker", "eth0"),
        ([LO, ETH10, ETH0], "^=eth10,lo", "eth0"),
        ([LO, ETH0], "wlan", None),
        ([LO, interface("eth0", up=False)], "eth0", None),
    ],
)
def test_the_interface_that_nccl_takes(interfaces: list[Interface], setting: str | None, expected: str | None) -> None:
    name, reason = nccl_interface(interfaces, setting)
    assert name == expected
    assert reason


def test_interfaces_carry_ip_addresses_and_never_hardware_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = SimpleNamespace(family=psutil.AF_LINK, address="02:fc:00:00:00:01")
    ipv4 = SimpleNamespace(family=socket.AF_INET, address="192.0.2.2")
    ipv6 = SimpleNamespace(family=socket.AF_INET6, address="fd00::2")
    addresses = {"eth0": [ipv4, ipv6, hardware], "ifb0": [hardware], "wlan0": [ipv4]}
    state = SimpleNamespace(isup=True, speed=10000, flags="up,running")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth0": state})
    assert list_interfaces() == (
        Interface("eth0", True, False, ("192.0.2.2", "fd00::2"), 10000),
        Interface("wlan0", False, False, ("192.0.2.2",), None),
    )


def test_loopback_is_told_from_the_rest_on_this_host() -> None:
    assert {i.name.startswith("lo") for i in list_interfaces() if i.loopback} == {True}
