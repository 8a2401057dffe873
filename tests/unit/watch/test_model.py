"""What a watched process writes: its names and its bounds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from envbuilder.watch import model

OBSERVED = {"framework": "torch", "version": "2", "pid": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({}, True),
        ({"unknown": 1}, True),
        ({"steps": -1}, False),
        ({"seconds": float("inf")}, False),
        ({"framework": "numpy"}, False),
        ({"losses": [[1, 2.0]] * 513}, False),
        (
            {
                "work": [
                    {"operator": "", "device": "d" * 201, "dtype": "", "flops": 1, "seconds": 0}
                ]
            },
            False,
        ),
    ],
)
def test_a_part_is_bounded(change: dict[str, object], accepted: bool, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(json.dumps({**OBSERVED, **change}))
    assert (model.part(tmp_path / "1.json") is not None) is accepted


def test_what_processes_write_is_what_is_read() -> None:
    """The writer imports nothing of ours: its names are held against the model here."""
    inside = Path(model.__file__).with_name("inside")
    written = "".join(path.read_text() for path in inside.glob("*.py"))
    fields = {field.name for field in msgspec.structs.fields(model.Observed)}
    tables = {"parameters", "gradients"}  # made of variables
    assert {name for name in fields - tables if f'"{name}"' not in written} == set()
