"""Devices that CDI specifications list, and anything in place of what is read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, strategies as st

from envbuilder.host import engines
from envbuilder.host.model import Containers
from envbuilder.host.snapshot import Snapshot
from tests.support.engine_trees import NVIDIA, look, tree


def devices(**files: str) -> tuple[set[str], list[str]]:
    names = {name.replace("_", "."): text for name, text in files.items()}
    taken = Snapshot(
        live=False,
        system="linux",
        files={f"etc/cdi/{name}": text for name, text in names.items()},
        folders={"etc/cdi": (*sorted(names), "readme.txt")},
    )
    return engines.specified_devices(taken, engines.CDI_FOLDERS)


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
    assert devices(a_yml=text) == (expected, [])
    assert devices(a_json=json.dumps(spec)) == (expected, [])
    assert devices(a_yaml=json.dumps(spec)) == (expected, [])  # tools do write that


def test_a_number_is_a_name_like_any_other() -> None:
    assert devices(a_yaml="kind: a.b/c\ndevices:\n- name: 010\n")[0] == {"a.b/c=010"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expected `object`"),
        ("kind: a.b/c", "missing required field `devices`"),
        ("kind: a.b/c\ndevices: []", "no device"),
        ("kind: nonsense\ndevices: [{name: x}]", "'nonsense=x' names no device"),
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
def test_a_damaged_specification_is_noted_and_others_count(text: str, why: str) -> None:
    found, notes = devices(bad_yaml=text, good_yaml=NVIDIA)
    assert len(found) == 3
    assert len(notes) == 1
    assert notes[0].startswith("/etc/cdi/bad.yaml lists no usable CDI devices (")
    assert why in notes[0]
    assert notes[0].isprintable()


def test_json_that_is_nested_too_deeply() -> None:
    assert "recursion" in devices(a_json='{"x":' * 150_000)[1][0]


def test_a_specification_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    (tmp_path / "etc/cdi/odd.json").mkdir(parents=True)
    found, notes = look(tmp_path)
    assert found.cdi == ()
    assert "/etc/cdi/odd.json lists no usable CDI devices (not a file)" in notes[0]


def test_aliases_that_multiply_cost_nothing() -> None:
    laughs = "a0: &a0 [x, x]\n"
    laughs += "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    laughs += "".join(
        f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" if n else "b0: &b0 {k: v}\n"
        for n in range(30)
    )
    assert devices(a_yaml=laughs + NVIDIA.removeprefix("---\n"))[1] == []


def test_the_folders_of_specifications(tmp_path: Path) -> None:
    spec = "kind: a.b/c\ndevices: [{name: %s}]\n"
    files = {"etc/cdi/a.yml": spec % "x", "var/run/cdi/b.yaml": spec % "y"}
    assert look(tree(tmp_path, files))[0].cdi == ("a.b/c=x", "a.b/c=y")
    tree(tmp_path, {"run/cdi/c.yaml": spec % "z"})  # the same folder by another name, nearly always
    assert look(tmp_path)[0].cdi == ("a.b/c=x", "a.b/c=z")


def test_many_devices_keep_the_names_that_people_use(tmp_path: Path) -> None:
    every = [*map(str, range(56)), *(f"GPU-{n:036}" for n in range(56)), "all"]
    listed = ", ".join(f'{{name: "{name}"}}' for name in every)
    spec = f"kind: nvidia.com/gpu\ndevices: [{listed}]\n"
    kept = look(tree(tmp_path, {"etc/cdi/a.yaml": spec}))[0].cdi
    assert len(kept) == engines.MOST_DEVICES
    assert "nvidia.com/gpu=all" in kept
    assert "nvidia.com/gpu=55" in kept
    assert list(kept) == sorted(kept)


KEYS = """
Version Components Name Info Runtimes DiscoveredDevices CDISpecDirs ID error kind devices name path
"""

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(KEYS.split()),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)

anything = st.one_of(
    st.text(max_size=60),
    values.map(json.dumps),
    st.dictionaries(st.text(max_size=20), values, max_size=3).map(json.dumps),
    values.map(lambda v: json.dumps({"docker buildx version": v})),
    values.map(lambda v: yaml.safe_dump(v, allow_unicode=True)),
)


@given(anything, anything, anything, st.booleans())
def test_no_answer_and_no_file_crashes(said: str, printed: str, spec: str, live_: bool) -> None:
    taken = Snapshot(
        live=live_,
        system="linux",
        files={"engines.json": said, "full.json": printed, "etc/cdi/a.yaml": spec},
        folders={"etc/cdi": ("a.yaml", "b.json")},
        unreadable={"etc/cdi/b.json": "Permission denied"},
    )
    found = engines.decide(taken)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Containers) == found
    for engine in found.engines:
        assert (engine.socket + engine.detail).isprintable()
    for note in engines.notes(taken):
        assert note.isprintable()
