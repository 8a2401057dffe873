"""The JSON schemas say what the structures say that read the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
    assert not validator(name).is_valid({**data, "schema": 99})
    assert not validator(name).is_valid({**data, "profile": 1, "profiles": 1})


def test_shipped_locks_and_reports_are_valid(repository: Path) -> None:
    for path in (repository / "profiles/locks").iterdir():
        validator("lock").validate(read_json(path))
    for path in (repository / "docs/evidence/reports").glob("*.json"):
        data = read_json(path)
        if data.get("kind") != "watch" and "checks" in data:
            validator("report").validate(data)
            assert not validator("report").is_valid({**data, "status": "great"})


def test_each_line_of_an_integrity_manifest_is_valid() -> None:
    lines = (FOLDER / "environment/lib/envbuilder/files.jsonl").read_text().splitlines()
    for line in lines:
        validator("environment").validate(json.loads(line))
    assert not validator("environment").is_valid(["bin", "socket"])
