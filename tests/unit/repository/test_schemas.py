"""The JSON schemas say what the structures say that read the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.backends import integrity
from tests.support.folders import read_json
from tests.unit.repository.test_written_by_0_1_0 import FOLDER, LOCK
from tools import schemas

FILES = {
    "lock": LOCK,
    "conda-lock": "mine.conda.json",
    "report": "report.json",
    "watch": "watch.json",
    "bundle": "bundle.json",
}


def validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    schema = read_json(schemas.FOLDER / f"{name}.schema.json")
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", FILES)
def test_what_envbuilder_writes_is_valid_and_another_schema_is_not(name: str) -> None:
    data = read_json(FOLDER / FILES[name])
    validator(name).validate(data)
    for wrong in ({"schema": 99}, {"profile": 1, "profiles": 1}):
        assert not validator(name).is_valid({**data, **wrong})


def test_shipped_locks_and_reports_are_valid(repository: Path) -> None:
    for folder, name in (("profiles/locks", "lock"), ("docs/evidence/reports", "report")):
        for path in (repository / folder).iterdir():
            validator(name).validate(read_json(path))


def test_each_line_of_an_integrity_manifest_is_valid() -> None:
    for line in (FOLDER / "environment" / integrity.FILES).read_text().splitlines():
        validator("environment").validate(json.loads(line))
    assert not validator("environment").is_valid(["bin", "socket"])
