"""uv.lock as uv writes it, pylock.toml (PEP 751), and their markers once extras are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from packaging.markers import Marker

from envbuilder.core.errors import InvalidError
from envbuilder.project.foreign_locks import Chosen, remaining
from envbuilder.project.forms import read
from envbuilder.project.lines import Listed
from tests.support.edited_text import edited
from tests.support.repositories import lay
from tests.support.requirement_projects import DATA, outcome, places, refusal, texts

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
    lay(project, {"uv.lock": locked(name)})
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
    assert texts(listed.pythons) == [">=3.10"]
    assert "pysocks==1.7.1" in texts(listed.constraints)
    for line in listed.constraints:
        assert line.locked
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
    # The resolver refuses both.
    both = listing(tmp_path, "conflicts", ("old", "new"))
    assert {"packaging==23.2", "packaging==26.3"} < set(texts(both.constraints))


# Written by hand, after locks of real projects: PyTorch's indexes need their own network.
def test_indexes_of_pytorchs_own_are_the_profiles_matter(tmp_path: Path) -> None:
    cpu = listing(tmp_path, "torch-indexes", ("cpu",))
    assert texts(cpu.requirements) == ["lightning-utilities>=0.11", "torch>=2.7"]
    assert texts(cpu.constraints) == [
        "filelock==3.20.0",
        "lightning-utilities==0.15.2",
        "packaging==25.0",
        'torch==2.9.1; sys_platform == "darwin"',
        'torch==2.9.1+cpu; sys_platform != "darwin"',
    ]
    cuda = listing(tmp_path, "torch-indexes", ("cu128",))
    assert texts(cuda.constraints)[-2:] == ["torch==2.9.1+cu128", "triton==3.5.1"]
    assert texts(listing(tmp_path, "torch-indexes").constraints) == [
        "lightning-utilities==0.15.2",
        "packaging==25.0",
    ]


def test_packages_of_a_workspace_count_if_they_are_reached(tmp_path: Path) -> None:
    listed = listing(tmp_path, "workspace")
    assert texts(listed.requirements) == ["rich>=13"]
    assert [*texts(listed.overrides), *listed.notes] == ["pygments>=2.18"]
    local = read(tmp_path, "uv.lock", ["local"]).requirements
    assert [(each.name, each.source) for each in local if each.source] == [
        ("common", "./libs/common")
    ]


GIT_SOURCE = 'source = { git = "https://example.org/m?subdirectory=a&rev=v1#0123" }'


def test_sources_in_a_uv_lock(tmp_path: Path) -> None:
    text = locked("forks").replace(
        'name = "mdurl"\nversion = "0.1.2"\nsource = { registry = "https://index.example/simple" }',
        f'name = "mdurl"\nversion = "0.1.2"\n{GIT_SOURCE}',
    )
    text = text.replace('name = "rich", spec', 'name = "rich", git = "https://example.org/r", spec')
    lay(tmp_path, {"uv.lock": text})
    sources = {each.name: each.source for each in read(tmp_path, "uv.lock").requirements}
    assert sources["rich"] == "git+https://example.org/r"
    assert sources["mdurl"] == "git+https://example.org/m@0123#subdirectory=a"


FORKS = """\
version = 1
[[package]]
name = "own"
source = { virtual = "." }
dependencies = [
  { name = "m", version = "1", source = { git = "https://example.org/one?rev=v1#01" } },
  { name = "m", version = "1", source = { git = "https://example.org/two#02" } },
]
[package.metadata]
requires-dist = [{ name = "m", marker = "python_version > '3.9'" }]
[[package]]
name = "m"
version = "1"
source = { git = "https://example.org/one?rev=v1#01" }
resolution-markers = ["sys_platform == 'linux'"]
[[package]]
name = "m"
version = "1"
source = { git = "https://example.org/two#02" }
resolution-markers = ["sys_platform == 'darwin'"]
"""


def test_each_fork_of_a_uv_lock_has_its_own_source(tmp_path: Path) -> None:
    lay(tmp_path, {"uv.lock": FORKS})
    listed = read(tmp_path, "uv.lock").requirements
    assert {(each.text, each.source) for each in listed} == {
        ('m; python_version > "3.9" and sys_platform == "linux"', "git+https://example.org/one@01"),
        (
            'm; python_version > "3.9" and sys_platform == "darwin"',
            "git+https://example.org/two@02",
        ),
    }


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("forks", "version = 1\n", "version = 2\n", ": version 2 of uv's lock format"),
        ("forks", "version = 1\n", "version = 1\npackages = [\n", ":3: not valid TOML"),
        (
            "forks",
            'virtual = "."',
            'virtual = "app"',
            ": the lock does not contain the project itself",
        ),
        ("forks", "requires-dist = [", "requires = [", " does not list what my-trainer requires"),
        (
            "forks",
            '{ name = "mdurl" },',
            '{ name = "other" },',
            ": other: the lock does not contain this package",
        ),
        (
            "forks",
            '{ name = "mdurl" },',
            '{ nom = "mdurl" },',
            ": package.8.dependencies.0: the key 'name' is missing",
        ),
        ("forks", 'version = "0.1.2"', 'version = "0.1\\n2"', ": mdurl: mdurl==0.1\\n2: not a"),
        (
            "forks",
            "marker = \"sys_platform != 'win32'\"",
            'marker = "sys_platform != \'win32"',
            ": requests: not a valid marker: sys_platform != 'win32",
        ),
    ],
)
def test_refused_uv_lock(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    text = locked(name)
    assert old in text
    lay(tmp_path, {"uv.lock": text.replace(old, new)})
    assert refusal(tmp_path, "uv.lock")[0].startswith(f"uv.lock{message}")


@given(
    edited(
        [locked("workspace"), locked("conflicts"), locked("torch-indexes")],
        ['"', "[", "]", "{", "}", "= 3\n", "rich", '"."', "extra == 'x'", " or (", "version"],
    )
)
def test_any_uv_lock_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "uv.lock", text)


# pylock.toml

UV = (DATA / "uv.pylock.toml").read_text()
WHEEL = (
    'wheels = [{{ name = "{0}-1.0-py3-none-any.whl", url = "https://example.org/{0}.whl",'
    ' hashes = {{ sha256 = "{1}" }} }}]\n'
)


def package(name: str, marker: str = "") -> str:
    wheel = WHEEL.format(name, "0" * 64)
    last = f'marker = "{marker}"\n' if marker else ""
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{wheel}{last}'


# In PDM's form, whose own dependencies are the group `default`.
PDM = f"""\
lock-version = "1.0"
requires-python = ">=3.11"
environments = ["sys_platform == 'linux'"]
extras = ["viz"]
dependency-groups = ["default", "dev"]
default-groups = ["default"]
created-by = "pdm"
{package("rich", "'default' in dependency_groups")}
{package("tqdm", "python_version < '3.12' and 'viz' in extras")}
{package("ruff", "'dev' in dependency_groups or 'viz' in extras")}
"""
GIT = '{ type = "git", url = "https://example.org/x", commit-id = "1" }'
ARCHIVE = '{ url = "https://example.org/x.zip", hashes = { sha256 = "1" } }'
BARE = 'lock-version = "1.0"\ncreated-by = "x"\n'


def test_a_lock_that_uv_exported(tmp_path: Path) -> None:
    lay(tmp_path, {"pylock.toml": UV})
    listed = read(tmp_path, "pylock.toml")
    lines = texts(listed.requirements)
    assert "rich==15.0.0" in lines
    assert 'requests==2.34.2; sys_platform != "win32"' in lines
    assert [line for line in lines if line.startswith("numpy")] == [
        'numpy==2.2.6; python_full_version < "3.11"',
        'numpy==2.4.6; python_full_version == "3.11.*"',
        'numpy==2.5.5; python_full_version >= "3.12"',
    ]
    assert len(lines) == UV.count("[[packages]]")
    assert places(listed.requirements)[0] == "pylock.toml: certifi"
    assert texts(listed.pythons) == [">=3.10"]
    assert (listed.constraints, listed.notes) == ((), ())


def test_extras_and_groups_of_pylock(tmp_path: Path) -> None:
    lay(tmp_path, {"pylock.train.toml": PDM})

    def lines(extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> list[str]:
        return texts(read(tmp_path, "pylock.train.toml", extras, groups).requirements)

    assert lines() == ["rich==1.0"]
    assert lines(("VIZ",)) == ["rich==1.0", 'tqdm==1.0; python_version < "3.12"', "ruff==1.0"]
    assert lines((), ("dev",)) == ["rich==1.0", "ruff==1.0"]
    assert refusal(tmp_path, "pylock.train.toml", ["x"]) == (
        "pylock.train.toml: no extra x",
        "It has: viz.",
    )
    assert read(tmp_path, "pylock.train.toml").notes == (
        'pylock.train.toml: only locked for some environments: sys_platform == "linux".',
    )


def test_the_project_itself_is_left_out(tmp_path: Path) -> None:
    itself = '[[packages]]\nname = "x"\ndirectory = { path = ".", editable = true }\n'
    lay(tmp_path, {"pylock.toml": f"{BARE}{package('rich')}{itself}"})
    listed = read(tmp_path, "pylock.toml")
    assert texts(listed.requirements) == ["rich==1.0"]
    assert listed.notes == ("pylock.toml: x is left out, because it is the project itself.",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": not a valid pylock.toml (PEP 751): Missing required value in 'lock-version'"),
        (f"{BARE.replace('1.0', '2.0')}packages = []\n", ": pylock version 2.0 is not supported"),
        (f"{BARE}packages = 3\n", ": not a valid pylock.toml (PEP 751): Unexpected type"),
        (
            BARE + package("x").replace('version = "1.0"', ""),
            ": x: the lock contains no version of this package",
        ),
    ],
)
def test_refused_pylock(tmp_path: Path, text: str, message: str) -> None:
    lay(tmp_path, {"pylock.toml": text})
    assert refusal(tmp_path, "pylock.toml")[0].startswith(f"pylock.toml{message}")


def test_a_package_outside_of_the_project_is_left_out_and_said(tmp_path: Path) -> None:
    listed = f'{BARE}[[packages]]\nname = "x"\ndirectory = {{ path = "../x" }}\n'
    uv = """\
version = 1
[[package]]
name = "thing"
source = { virtual = "." }
dependencies = [{ name = "x" }, { name = "rich" }]
[package.metadata]
requires-dist = [{ name = "x", editable = "../x" }, { name = "rich" }]
[[package]]
name = "x"
version = "1"
source = { editable = "../x" }
[[package]]
name = "rich"
version = "13.0.0"
source = { registry = "https://index.example/simple" }
"""
    lay(tmp_path, {"pylock.toml": listed, "uv.lock": uv})
    for file, others in (("pylock.toml", []), ("uv.lock", ["rich"])):
        result = read(tmp_path, file)
        assert texts(result.requirements) == ['x; python_version < "3"', *others]
        assert "../x is outside the project, so x is left out" in result.notes[0]


def test_sources_in_a_pylock(tmp_path: Path) -> None:
    kinds = {"vcs": GIT, "archive": ARCHIVE, "directory": '{ path = "libs/x" }'}
    for kind, table in kinds.items():
        lay(tmp_path, {"pylock.toml": f'{BARE}[[packages]]\nname = "x"\n{kind} = {table}\n'})
        (required,) = read(tmp_path, "pylock.toml").requirements
        assert required.text == "x"
        assert required.source.startswith(
            {"vcs": "git+https://", "archive": "https://"}.get(kind, "./")
        )


@given(
    edited(
        [PDM, f"{BARE}{package('x')}"],
        ['"', "[", "]", "{", "}", "= 3\n", "[[packages]]\n", "'a' in extras", " and (", "name"],
    )
)
def test_any_pylock_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "pylock.toml", text)


# Markers

CHOSEN = Chosen(frozenset({"viz"}), frozenset({"dev"}))


@pytest.mark.parametrize(
    ("marker", "rest"),
    [
        ("'viz' == extra", ""),
        ("extra == 'VIZ'", ""),
        ("'viz' in extras", ""),
        ("'viz' not in extras", None),
        ("'dev' in dependency_groups", ""),
        ("os_name not in 'a(b)'", 'os_name not in "a(b)"'),
    ],
)
def test_what_remains(marker: str, rest: str | None) -> None:
    assert remaining(marker, CHOSEN, "x") == rest


def test_a_long_marker_is_refused_as_a_whole() -> None:
    with pytest.raises(InvalidError, match="x: longer than 20000 characters: os_name"):
        remaining("os_name == 'a' or " * 1200 + "os_name == 'b'", CHOSEN, "x")


@pytest.mark.parametrize(
    "marker",
    ["os_name", "extra == 'a", f"{'(' * 1500}os_name == 'a'{')' * 1500}", "a b"],
)
def test_invalid_markers(marker: str) -> None:
    with pytest.raises(InvalidError, match="x: not a valid marker: "):
        remaining(marker, CHOSEN, "x")


_ATOMS = st.sampled_from(
    ["extra == 'viz'", "extra == 'other'", "extra != 'viz'", "os_name == 'a'", "os_name == 'b'"]
)
_MARKERS = st.recursive(
    _ATOMS,
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
    max_leaves=8,
)


@given(_MARKERS, st.sampled_from(["a", "b", "c"]))
def test_the_rest_is_true_where_the_whole_is(marker: str, os_name: str) -> None:
    rest = remaining(marker, CHOSEN, "x")
    value = Marker(marker).evaluate({"extra": "viz", "os_name": os_name})
    expected = Marker(rest).evaluate({"os_name": os_name}) if rest else rest == ""
    assert value == expected


# Pipfile, Pipfile.lock

PIPFILE = """\
[[source]]
url = "https://example.org/simple"
[packages]
rich = ">=13"
numpy = { version = "==1.26.*", sys_platform = "== 'linux'" }
tool = { git = "https://example.org/tool", ref = "v1", editable = true }
own = { path = ".", editable = true }
[dev-packages]
pytest = "*"
[requires]
python_version = "3.11"
"""
PIPFILE_LOCK = """\
{"_meta": {"requires": {"python_version": "3.11"}},
 "default": {
  "rich": {"version": "==13.7.0", "markers": "python_version >= '3.7'", "hashes": ["sha256:0"]},
  "nvidia-cublas-cu12": {"version": "==12.1.3.1"}, "torch": {"version": "==2.1.0"},
  "tool": {"git": "https://example.org/tool", "ref": "0123"}},
 "develop": {"pytest": {"version": "==8.0.0"}}}
"""


def test_a_pipfile_and_its_lock(tmp_path: Path) -> None:
    lay(tmp_path, {"Pipfile": PIPFILE, "Pipfile.lock": PIPFILE_LOCK})
    listed = read(tmp_path, "Pipfile", (), ("dev",))
    assert [(each.text, each.source, each.where) for each in listed.requirements] == [
        ("rich>=13", "", "Pipfile:4"),
        ('numpy==1.26.*; sys_platform == "linux"', "", "Pipfile:5"),
        ("tool", "git+https://example.org/tool@v1", "Pipfile:6"),
        ("pytest", "", "Pipfile:9"),
    ]
    locked = read(tmp_path, "Pipfile.lock", (), ("dev",))
    assert [(each.text, each.source) for each in locked.requirements] == [
        ('rich==13.7.0; python_version >= "3.7"', ""),
        ("torch==2.1.0", ""),
        ("tool", "git+https://example.org/tool@0123"),
        ("pytest==8.0.0", ""),
    ]
    assert texts(listed.pythons) == texts(locked.pythons) == ["==3.11.*"]
    lay(tmp_path, {"Pipfile.lock": "{", "Pipfile": "[packages]\nrich = 3\n"})
    assert "not valid JSON" in refusal(tmp_path, "Pipfile.lock")[0]
    assert refusal(tmp_path, "Pipfile")[0].startswith("Pipfile:2: rich: expected versions")
