"""Where nodes meet, and which interface leads there."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from envbuilder.payload.parallel import network
from envbuilder.payload.report import CheckError

GLOO, NCCL = network.VARIABLES

# A login node with a network to the outside, one between the nodes, and InfiniBand.
INTERFACES = [
    ("127.0.0.1", "lo"),
    ("192.0.2.7", "eno1"),
    ("10.1.0.1", "eno2"),
    ("10.1.0.100", "eno2:vip"),
    ("10.2.0.1", "ib0"),
    ("::1", "lo"),
    ("fd00::1", "ib0"),
]


def chosen(address: str, source: str, outside: dict[str, str] | None = None) -> Any:
    return network.variables(address, outside or {}, lambda to: source, lambda: INTERFACES)


@pytest.mark.parametrize(
    ("address", "source", "interface"),
    [
        ("10.1.0.2", "10.1.0.1", "eno2"),
        ("10.2.0.9", "10.2.0.1", "ib0"),
        ("10.1.0.1", "10.1.0.1", "eno2"),
        ("10.1.0.100", "10.1.0.100", "eno2:vip"),
        ("127.0.0.1", "127.0.0.1", "lo"),
        ("fd00::2", "fd00::1", "ib0"),
    ],
)
def test_the_interface_is_the_one_on_the_way(address: str, source: str, interface: str) -> None:
    assert chosen(address, source) == {GLOO: interface, NCCL: interface}


def test_what_the_user_set_stays() -> None:
    assert chosen("10.1.0.2", "10.1.0.1", {NCCL: "=ib0"}) == {GLOO: "eno2", NCCL: "=ib0"}
    assert chosen("10.1.0.2", "10.1.0.1", {NCCL: ""}) == {GLOO: "eno2", NCCL: "eno2"}

    def ask(*arguments: Any) -> Any:
        raise AssertionError

    both = {GLOO: "a", NCCL: "b"}
    assert network.variables("10.1.0.2", {**both, "HOME": "/"}, ask, ask) == both


def test_an_address_of_no_interface_is_a_sentence() -> None:
    with pytest.raises(CheckError, match=r"no network interface has the address 10\.9\.9\.9"):
        chosen("10.1.0.2", "10.9.9.9")


@pytest.mark.parametrize(
    ("addresses", "machines", "point"),
    [
        (["10.1.0.1", "10.1.0.1"], ["a", "b"], "10.1.0.1"),
        # Each may resolve node 0's name in another way; node 0 knows best, if not only itself.
        (["10.1.0.1", "10.2.0.1"], ["a", "b"], "10.1.0.1"),
        (["127.0.1.1", "10.1.0.1"], ["a", "b"], "10.1.0.1"),
        (["::1", "127.0.0.1", "10.1.0.1"], ["a", "b", "c"], "10.1.0.1"),
        (["127.0.0.1", "127.0.0.1"], ["a", "a"], "127.0.0.1"),
    ],
)
def test_where_they_meet(addresses: list[str], machines: list[str], point: str) -> None:
    assert network.meeting_point(addresses, machines) == point


def test_several_machines_do_not_meet_on_loopback() -> None:
    with pytest.raises(CheckError, match=r"127\.0\.0\.1 on every node"):
        network.meeting_point(["127.0.0.1", "127.0.0.1"], ["a", "b"])
    with pytest.raises(ValueError):
        network.meeting_point(["n1", "127.0.0.1"], ["a", "b"])


def test_this_machine_has_loopback() -> None:
    interfaces = dict(network.fetch_interfaces())
    if not interfaces:
        pytest.skip("not Linux")
    assert interfaces["127.0.0.1"] == "lo"
    assert network.local_address("127.0.0.1") == "127.0.0.1"
    assert network.resolve("127.0.0.1") == "127.0.0.1"


def test_a_name_without_an_address_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(CheckError, match=r"n1 has no address: .*Name or service not known"):
        network.resolve("n1")


def test_no_route_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, address: Any) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", fail)
    with pytest.raises(CheckError, match=r"no route to 10\.1\.0\.1: Network is unreachable"):
        network.local_address("10.1.0.1")
