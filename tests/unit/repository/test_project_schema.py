"""The schema for editors says what envbuilder says, as far as a schema can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.core import decoding, settings, yaml_files
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings
from tests.unit.core.test_project_file import WRONG_KEYS, WRONG_TYPES
from tools import project_schema

SCHEMA = json.loads(project_schema.schema())
STRUCTURES = (
    settings.Definition,
    settings.Environment,
    settings.RequirementFile,
    settings.ProjectConfiguration,
    settings.Signatures,
)


def errors(data: Any) -> list[str]:
    from jsonschema import Draft7Validator

    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(data)]


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(item)


def test_the_file_is_fresh() -> None:
    from jsonschema import Draft7Validator

    assert project_schema.FILE.read_text() == project_schema.schema(), "run: make docs"
    Draft7Validator.check_schema(SCHEMA)


def test_the_example_has_every_key_and_is_valid(tmp_path: Path) -> None:
    (tmp_path / "envbuilder.yaml").write_text(project_schema.EXAMPLE)
    environ = {"ENVBUILDER_CONFIG_DIR": str(tmp_path / "config")}
    assert load_settings(environ, tmp_path).definition is not None
    assert errors(yaml_files.load(project_schema.EXAMPLE)) == []
    examples = project_schema.examples()
    for structure in STRUCTURES:
        assert {*dict(decoding.fields(structure))} <= {*examples[structure.__name__]}


def test_every_key_is_described() -> None:
    keys = [key for node in nodes(SCHEMA) for key in node.get("properties", {}).values()]
    assert len(keys) > 20
    for key in keys:
        assert key["description"]
        assert key["examples"]


@pytest.mark.parametrize("name", [*WRONG_KEYS, *WRONG_TYPES])
def test_wrong_keys_and_types_are_errors_in_the_editor_too(name: str) -> None:
    assert errors(yaml_files.load({**WRONG_KEYS, **WRONG_TYPES}[name].text))


words = st.sampled_from(
    ["cpu", "Cpu", "default", "train", "3.12", "3", "einops", "$(reboot)", "../x", "/x", "a b", "A",
     "https://h/s", "h:5000", "", 1, 3.1, True, None]
)  # fmt: skip
lists = st.lists(words, max_size=2)
files = st.fixed_dictionaries({}, optional={"file": words, "extras": lists, "groups": lists})
environment = {
    "requirements": lists | words,
    "requirements_from": st.lists(words | files, max_size=2),
    "python": words,
    "system_packages": lists,
    "environment": st.dictionaries(words.filter(lambda w: isinstance(w, str)), words, max_size=2),
}
documents = st.fixed_dictionaries(
    {},
    optional={
        **environment,
        "profiles": lists | words,
        "environments": st.dictionaries(
            st.sampled_from(["train", "default", "A"]),
            st.fixed_dictionaries({}, optional={**environment, "profiles": lists}) | words,
            max_size=2,
        ),
        "indexes": st.dictionaries(st.just("x"), words, max_size=1),
        "mirrors": st.dictionaries(st.just("x"), words, max_size=1),
        "base_images": st.dictionaries(st.just("x"), words, max_size=1),
        "profile": words.filter(lambda word: word is not None),
        "signatures": st.fixed_dictionaries({}, optional={"locks": lists}),
        "wrong": words,
    },
)


@given(documents)
def test_the_schema_and_envbuilder_agree(document: dict[str, Any]) -> None:
    assert bool(errors(document)) == (not is_accepted(document)), document


def is_accepted(document: dict[str, Any]) -> bool:
    keys = {name for name, _ in decoding.fields(settings.ProjectConfiguration)}
    try:
        msgspec.convert(
            {k: v for k, v in document.items() if k in keys}, settings.ProjectConfiguration
        )
        rest = {k: v for k, v in document.items() if k not in keys}
        settings.read_definition(rest, "envbuilder.yaml", "", keys)
    except (msgspec.ValidationError, InvalidError):
        return False
    return True
