"""uv.lock as uv writes it: what the project requires, and the versions that it locked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.project.requirement_files.read import read
from tests.support.edited_text import edited
from tests.support.requirement_projects import DATA, outcome, places, refusal, texts, write

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.project.requirement_files.listed import Listed

NUMPY = [
    'numpy==2.2.6; python_full_version < "3.11"',
    'numpy==2.4.6; python_full_version == "3.11.*"',
    'numpy==2.5.5; python_full_version >= "3.12"',
]


def locked(name: str) -> str:
    return (DATA / f"{name}.uv.lock").read_text()


def listing(
    project: Path, name: str, extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()
) -> Listed:
    write(project, {"uv.lock": locked(name)})
    return read(project, "uv.lock", extras, groups)


# forks: uv 0.13 (revision 5); uv-0.6: revision 2; uv-0.4: no revision, and no provides-extras.
@pytest.mark.parametrize("name", ["forks", "uv-0.6", "uv-0.4"])
def test_the_projects_requirements_of_several_revisions(tmp_path: Path, name: str) -> None:
    listed = listing(tmp_path, name)
    assert sorted(texts(listed.requirements)) == [
        "numpy>=1.26",
        'requests[socks]>=2.32; sys_platform != "win32"',
        "rich>=13",
        'tomli; python_full_version < "3.11"',
    ]
    assert places(listed.requirements)[0] == "uv.lock: numpy"
    assert listed.python == ">=3.10"
    assert "pysocks==1.7.1" in texts(listed.constraints)
    assert all(line.locked for line in listed.constraints)
    assert not [t for t in texts(listed.constraints) if t.startswith(("tqdm", "pytest"))]
    with_more = listing(tmp_path, name, ("ALL",), ("dev",))
    added = set(texts(with_more.requirements)) - set(texts(listed.requirements))
    assert added == {"humanize", "tqdm>=4.66", "pytest>=8", "ruff>=0.5"}
    versions = {text.partition("==")[0] for text in texts(with_more.constraints)}
    assert {"tqdm", "pytest", "ruff", "humanize"} <= versions


def test_versions_where_the_lock_forks(tmp_path: Path) -> None:
    constraints = texts(listing(tmp_path, "forks").constraints)
    assert [text for text in constraints if text.startswith("numpy")] == NUMPY
    assert "rich==15.0.0" in constraints
    assert constraints == sorted(constraints)


def test_extras_that_exclude_each_other(tmp_path: Path) -> None:
    new = listing(tmp_path, "conflicts", ("new",), ("dev",))
    assert texts(new.requirements) == ["packaging>=24", "rich>=13", "iniconfig"]
    assert [t for t in texts(new.constraints) if t.startswith("packaging")] == ["packaging==26.3"]
    old = listing(tmp_path, "conflicts", ("old",))
    assert [t for t in texts(old.constraints) if t.startswith("packaging")] == ["packaging==23.2"]
    message, hint = refusal(tmp_path, "uv.lock", ["old", "new"])
    assert message == "uv.lock: new and old exclude each other (tool.uv.conflicts)"
    assert hint


# Written by hand, after locks of real projects: PyTorch's indexes need their own network.
def test_indexes_of_pytorchs_own_are_the_profiles_matter(tmp_path: Path) -> None:
    cpu = listing(tmp_path, "torch-indexes", ("cpu",))
    assert texts(cpu.requirements) == ["lightning-utilities>=0.11", "torch>=2.7"]
    assert texts(cpu.constraints) == [
        *("filelock==3.20.0", "lightning-utilities==0.15.2", "packaging==25.0"),
        'torch==2.9.1; sys_platform == "darwin"',
        'torch==2.9.1+cpu; sys_platform != "darwin"',
    ]
    cuda = listing(tmp_path, "torch-indexes", ("cu128",))
    assert texts(cuda.constraints)[-2:] == ["torch==2.9.1+cu128", "triton==3.5.1"]
    assert texts(listing(tmp_path, "torch-indexes").constraints) == [
        *("lightning-utilities==0.15.2", "packaging==25.0"),
    ]


def test_packages_of_a_workspace_count_if_they_are_reached(tmp_path: Path) -> None:
    listed = listing(tmp_path, "workspace")
    assert texts(listed.requirements) == ["rich>=13"]
    (note,) = listed.notes
    assert note.startswith("uv.lock: tool.uv.override-dependencies is not passed on: for pygments,")
    message, hint = refusal(tmp_path, "uv.lock", ["local"])
    assert message == (
        "uv.lock: common: pyproject.toml states another source for it (editable); only packages"
        " from an index can be locked"
    )
    assert "list what that requires" in hint


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("forks", "version = 1\n", "version = 2\n", ": version 2 of uv's lock format"),
        ("forks", "version = 1\n", "", ": version None of uv's lock format"),
        ("forks", "version = 1\n", "version = 1\npackages = [\n", ":3: not valid TOML"),
        ("forks", 'virtual = "."', 'virtual = "app"', ": no package is the project itself"),
        ("forks", "requires-dist = [", "requires = [", ": does not state what my-trainer requires"),
        (
            "forks",
            (
                'name = "mdurl"\nversion = "0.1.2"\n'
                'source = { registry = "https://index.example/simple" }'
            ),
            'name = "mdurl"\nversion = "0.1.2"\nsource = { git = "https://example.org/m?rev=1" }',
            ": mdurl: the lock states another source for it (git)",
        ),
        ("forks", '{ name = "mdurl" },', '{ name = "other" },', ": other: packages depend on it"),
        (
            "forks",
            '{ name = "mdurl" },',
            '{ nom = "mdurl" },',
            ": package.8.dependencies.0: the key 'name' is missing",
        ),
        ("forks", 'version = "0.1.2"', 'version = "0.1\\n2"', ": mdurl: mdurl==0.1\\n2: not a"),
        (
            "forks",
            'name = "rich", specifier',
            'name = "rich", git = "https://example.org/r", specifier',
            ": rich: pyproject.toml states another source for it (git)",
        ),
        (
            "forks",
            'name = "rich", specifier',
            'name = "rich", index = "https://example.org/simple", specifier',
            ": rich: pyproject.toml states an index for it",
        ),
        (
            "forks",
            "marker = \"sys_platform != 'win32'\"",
            'marker = "sys_platform != \'win32"',
            ": requests: not a valid marker: sys_platform != 'win32",
        ),
    ],
)
def test_refusals(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    text = locked(name)
    assert old in text
    write(tmp_path, {"uv.lock": text.replace(old, new)})
    assert refusal(tmp_path, "uv.lock")[0].startswith(f"uv.lock{message}")


def test_an_unknown_extra_or_group(tmp_path: Path) -> None:
    write(tmp_path, {"uv.lock": locked("forks")})
    assert refusal(tmp_path, "uv.lock", ["x"]) == ("uv.lock: no extra x", "It has: all, viz.")
    assert refusal(tmp_path, "uv.lock", (), ["x"]) == ("uv.lock: no group x", "It has: dev, lint.")


def test_any_order_of_names_gives_the_same(tmp_path: Path) -> None:
    first = listing(tmp_path, "forks", ("all", "viz"), ("dev", "lint"))
    assert listing(tmp_path, "forks", ("viz", "all"), ("lint", "dev")) == first


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edited(
        [locked("workspace"), locked("conflicts"), locked("torch-indexes")],
        ['"', "[", "]", "{", "}", "= 3\n", "rich", '"."', "extra == 'x'", " or (", "version"],
    )
)
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "uv.lock", text)
