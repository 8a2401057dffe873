"""Which devices CDI files describe."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from envbuilder.containers.engine import cdi

JSON = """{"cdiVersion":"0.6.0","kind":"amd.com/gpu","devices":[
 {"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/kfd"}]}},{"name":"all"}],
 "containerEdits":{"hooks":[{"hookName":"createContainer","path":"/x"}]}}"""
YAML = "---\ncdiVersion: 0.5.0\nkind: 'amd.com/gpu'\ndevices:\n- name: '0'\n- name: all\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (JSON, {"amd.com/gpu=0", "amd.com/gpu=all"}),
        (YAML, {"amd.com/gpu=0", "amd.com/gpu=all"}),
        ("devices:\n- name: all\n", set()),
        ("kind: nvidia.com/gpu\ndevices:\n- name: all\n", {"nvidia.com/gpu=all"}),
        ("\xff", set()),
    ],
)
def test_devices_are_named_as_their_kind_and_name(
    text: str, names: set[str], tmp_path: Path
) -> None:
    (tmp_path / ("gpu.json" if text == JSON else "gpu.yaml")).write_text(text)
    os.mkfifo(tmp_path / "pipe.yaml")  # nobody writes to it
    (tmp_path / "gpu.json.d").mkdir()
    assert cdi.devices((tmp_path, tmp_path / "none", tmp_path / "gpu.json.d")) == names


words = st.from_regex(r"\A[A-Za-z][A-Za-z0-9_.-]{0,8}\Z")

names = st.lists(
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.:-]{0,8}\Z"), min_size=1, max_size=9, unique=True
)


@given(words, words, names, st.booleans(), st.booleans())
def test_yaml_and_json_say_the_same(
    vendor: str, kind: str, listed: list[str], flow: bool, quoted: bool
) -> None:
    kind = f"{vendor}/{kind.replace('.', '_')}"
    spec = {
        "kind": kind,
        "devices": [{"containerEdits": {"env": ["name: x"]}, "name": n} for n in listed],
    }
    style = '"' if quoted else None
    expected = {f"{kind}={name}" for name in listed}
    text = yaml.safe_dump(spec, default_flow_style=flow, default_style=style)
    assert cdi.listed("a.yml", text) == expected
    assert cdi.listed("a.json", json.dumps(spec)) == expected
    assert cdi.listed("a.yaml", json.dumps(spec)) == expected  # tools do write that


def test_a_number_is_a_name_like_any_other() -> None:
    assert cdi.listed("a.yaml", "kind: a.b/c\ndevices:\n- name: 010\n") == {"a.b/c=010"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expected `object`"),
        ("kind: a.b/c", "missing required field `devices`"),
        ("kind: a.b/c\ndevices: []", "no device"),
        ("kind: nonsense\ndevices: [{name: x}]", "'nonsense=x' is not the name of a device"),
        ("kind: a.b/c\ndevices: [{name: x}, {name: '../y'}]", "a.b/c=../y"),
        ("kind: a.b/c\ndevices: [{name: x}, {}]", "missing required field `name`"),
        ("kind: [", "while parsing"),
        ("kind: a\tb: \x00", "unacceptable character"),
        ("a: &a [*a]", "recursive"),
        ("!!python/object/apply:os.system [x]", "Expected `object`"),
        ("[" * 200_000, "nested too deeply"),
        ("- " * 200_000, "nested too deeply"),
        ("{" * 200_000, "nested too deeply"),
        ('{"x":' * 200_000, "nested too deeply"),
        ("kind: a.b/c\ndevices:\n- name: x\n" + "#" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_a_damaged_specification_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        cdi.listed("bad.yaml", text)


def test_json_that_is_nested_too_deeply() -> None:
    with pytest.raises(
        ValueError, match="recursion" if sys.version_info < (3, 14) else "truncated"
    ):
        cdi.listed("a.json", '{"x":' * 150_000)
