"""What of a connection file decides how a container is started, and what its kernel gets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.containers.engine.container import LOOPBACK
from envbuilder.core.errors import InvalidError
from envbuilder.notebooks import kernel

if TYPE_CHECKING:
    from pathlib import Path

PORTS = {
    "shell_port": 50001, "iopub_port": 50002, "stdin_port": 50003, "control_port": 50004,
    "hb_port": 50005,
}  # fmt: skip
STATED: dict[str, Any] = {
    **PORTS,
    "ip": "127.0.0.1",
    "transport": "tcp",
    "key": "secret",
    "signature_scheme": "hmac-sha256",
    "kernel_name": "python3",
    "curve_publickey": "][{W#",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernel") / "kernel.json"


def test_the_ports_are_this_machines_and_lead_to_the_same_inside(path: Path) -> None:
    path.write_text(json.dumps(STATED))
    read = kernel.read_connection(path)
    assert {(p.host, p.outside) for p in read.ports} == {(LOOPBACK, n) for n in PORTS.values()}
    assert all(p.outside == p.inside for p in read.ports)


def test_the_kernel_gets_all_else_and_listens_in_its_container(path: Path) -> None:
    path.write_text(json.dumps(STATED, indent=2))
    text = kernel.read_connection(path).text
    assert json.loads(text) == {**STATED, "ip": "0.0.0.0"}
    assert "\n" not in text


@pytest.mark.parametrize(
    "changed",
    [
        {"shell_port": 0},
        {"shell_port": 65536},
        {"shell_port": "50001"},
        {"shell_port": PORTS["hb_port"]},
        {"ip": "0.0.0.0"},
        {"ip": "10.0.0.1"},
        {"transport": "ipc"},
        {"transport": None},
    ],
)
def test_what_no_container_can_have_is_refused(path: Path, changed: dict[str, Any]) -> None:
    path.write_text(json.dumps({**STATED, **changed}))
    with pytest.raises(InvalidError, match="not a connection file of a kernel here"):
        kernel.read_connection(path)


def test_a_file_that_is_missing_too_large_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_text(json.dumps({**STATED, "key": "k" * 20_000}))
    for path in (tmp_path / "none.json", tmp_path, large):
        with pytest.raises(InvalidError):
            kernel.read_connection(path)


@given(content=st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_refused_or_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidError):
        kernel.read_connection(path)


@given(
    stated=st.dictionaries(
        st.sampled_from([*STATED, "other"]),
        st.integers() | st.text(max_size=20) | st.none() | st.lists(st.integers(), max_size=2),
    )
)
def test_five_different_ports_or_none(path: Path, stated: dict[str, Any]) -> None:
    path.write_text(json.dumps({**STATED, **stated}))
    try:
        read = kernel.read_connection(path)
    except InvalidError:
        return
    assert len({port.outside for port in read.ports}) == 5
    assert {port.host for port in read.ports} == {LOOPBACK}
