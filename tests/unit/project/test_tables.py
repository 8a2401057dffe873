"""pyproject.toml: extras, groups, and requirements that it does not state itself; TOML's limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.core.errors import InvalidError
from envbuilder.project.environments import read
from envbuilder.project.tables import parse_toml
from tests.support.edited_text import edited
from tests.support.requirement_projects import outcome, places, refusal, texts, write

SLEAP = """\
[build-system]
requires = ["setuptools>=64"]

[project]
name = "Sleap.NN"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = [
    "lightning",
    "omegaconf>=2.3",
    'hydra-core; sys_platform != "win32"',
    "rich",
]

[project.optional-dependencies]
torch = ["torch>=2.7", "torchvision>=0.20.0"]
viz = ["matplotlib", "rich"]
All_Extras = ["sleap-nn[torch,viz]", "wandb"]
loop = ["sleap-nn[loop]", "tqdm"]

[dependency-groups]
dev = ["pytest>=8", { include-group = "Lint.Tools" }]
lint-tools = ["ruff", { include-group = "dev" }]
empty = []
examples = ["sleap_nn[viz]"]

[tool.uv.sources]
torch = [{ index = "pytorch-cpu", marker = "sys_platform != 'linux'" }]
torchvision = { git = "https://github.com/pytorch/vision" }

[tool.hatch.envs.default]
skip-install = true
"""


def listing(project: Path, extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> list[str]:
    return texts(read(project, "pyproject.toml", extras, groups).requirements)


def test_dependencies_with_their_lines(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": SLEAP})
    listed = read(tmp_path, "pyproject.toml")
    assert texts(listed.requirements) == [
        "lightning",
        "omegaconf>=2.3",
        'hydra-core; sys_platform != "win32"',
        "rich",
    ]
    # The third contains quotes, the fourth occurs twice.
    assert places(listed.requirements) == [
        "pyproject.toml:9",
        "pyproject.toml:10",
        "pyproject.toml:11",
        "pyproject.toml: project.dependencies[3]",
    ]
    assert texts(listed.pythons) == ["<3.14,>=3.11"]
    assert (listed.constraints, listed.conda, listed.notes) == ((), (), ())


def test_extras_that_name_others(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": SLEAP})
    assert listing(tmp_path, ("all-extras",))[4:] == [
        *("wandb", "torch>=2.7", "torchvision>=0.20.0", "matplotlib", "rich"),
    ]
    assert listing(tmp_path, ("VIZ", "viz"))[4:] == ["matplotlib", "rich"]
    assert listing(tmp_path, ("loop",))[4:] == ["tqdm"]


def test_groups_that_include_others(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": SLEAP})
    assert listing(tmp_path, (), ("dev",))[4:] == ["pytest>=8", "ruff"]
    assert listing(tmp_path, (), ("Lint_Tools",))[4:] == ["ruff", "pytest>=8"]
    assert listing(tmp_path, (), ("empty",))[4:] == []
    assert listing(tmp_path, (), ("examples",))[4:] == ["matplotlib", "rich"]


def test_groups_without_a_project(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": '[dependency-groups]\ntrain = ["rich"]\n'})
    listed = read(tmp_path, "pyproject.toml", (), ("train",))
    assert texts(listed.requirements) == ["rich"]
    assert places(listed.requirements) == ["pyproject.toml:2"]


def test_a_long_chain_of_groups(tmp_path: Path) -> None:
    chain = "".join(f'g{n} = [{{ include-group = "g{n + 1}" }}]\n' for n in range(3000))
    write(tmp_path, {"pyproject.toml": f'[dependency-groups]\n{chain}g3000 = ["rich"]\n'})
    assert listing(tmp_path, (), ("g0",)) == ["rich"]


PROJECT = '[project]\nname = "x"\n'


@pytest.mark.parametrize(
    ("text", "extras", "groups", "message", "hint"),
    [
        ("", [], [], ": no table [project]", "[project] dependencies"),
        ("[project\n", [], [], ":1: not valid TOML: ", ""),
        ("a = 1\na = 2\n", [], [], ":2: not valid TOML: ", ""),
        (f"a = {'[' * 5000}", [], [], ": not valid TOML: nested too deeply", ""),
        (
            '[tool.poetry.dependencies]\npython = "^3.10"\n',
            [],
            [],
            ": tool.poetry.dependencies: Poetry's own form",
            "Move them to [project]",
        ),
        (
            f'{PROJECT}dynamic = ["version", "dependencies"]\n',
            [],
            [],
            ": project.dynamic: a build computes dependencies",
            "requirements.txt",
        ),
        (
            f'{PROJECT}dynamic = ["optional-dependencies"]\n',
            ["a"],
            [],
            ": project.dynamic: a build computes optional-dependencies",
            "requirements.txt",
        ),
        (f"{PROJECT}dependencies = [3]\n", [], [], ": project.dependencies.0: expected text", ""),
        ("project = 3\n", [], [], ": project: expected a mapping", ""),
        (
            f"{PROJECT}requires-python = '3.10'\n",
            [],
            [],
            ": requires-python: '3.10' is not a range of versions",
            ">=3.10",
        ),
        (f"{PROJECT}optional-dependencies.a = []\n", ["b"], [], ": no extra b", "It has: a."),
        (PROJECT, ["b"], [], ": no extra b", "It has no extras at all."),
        (PROJECT, [], ["b"], ": no group b", "It has no groups at all."),
        (
            f"{PROJECT}[dependency-groups]\na = [{{ include-group = 'b' }}]\n",
            [],
            ["a"],
            ": no group b",
            "It has: a.",
        ),
        (
            f"{PROJECT}[dependency-groups]\na = [{{ include = 'b' }}]\n",
            [],
            ["a"],
            ": dependency-groups.a.0.include: unknown key",
            "include-group",
        ),
        (
            f'{PROJECT}dependencies = [\n  "rich",\n  "x @ git+https://example.org/x",\n]\n',
            [],
            [],
            ":5: x @ git+https://example.org/x: a version control repository",
            "released version",
        ),
        (
            f"{PROJECT}dependencies = [\"x[a]; os_name == 'nt'\"]\n",
            [],
            [],
            ':3: x[a]; os_name == "nt": a marker on the project\'s own extras',
            "Put the marker",
        ),
        *(
            (
                f'{PROJECT}dependencies = ["TRL"]\n[tool.uv.sources]\ntrl = {{ {source} }}\n',
                [],
                [],
                f":3: trl: tool.uv.sources states {stated}",
                hint,
            )
            for source, stated, hint in (
                ('git = "https://example.org/trl"', "another source for it (git)", "released"),
                ('url = "https://example.org/trl.whl"', "another source for it (url)", "released"),
                ('path = "../trl"', "another source for it (path)", "released"),
                ("workspace = true", "another source for it (workspace)", "released"),
                ('index = "corporate"', "an index for it", "Delete that entry"),
            )
        ),
    ],
)
def test_refusals(
    tmp_path: Path, text: str, extras: list[str], groups: list[str], message: str, hint: str
) -> None:
    write(tmp_path, {"pyproject.toml": text})
    actual, next_step = refusal(tmp_path, "pyproject.toml", extras, groups)
    assert actual.startswith(f"pyproject.toml{message}")
    assert hint in next_step


def test_sources_of_packages_that_are_not_chosen_do_not_matter(tmp_path: Path) -> None:
    text = f"{PROJECT}optional-dependencies.a = ['y']\ntool.uv.sources.y.path = 'y'\n"
    write(tmp_path, {"pyproject.toml": text.replace("tool.", "[tool]\n", 1)})
    assert listing(tmp_path) == []
    assert "(path)" in refusal(tmp_path, "pyproject.toml", ["a"])[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edited([SLEAP, PROJECT], ['"', "[", "]", "{", "}", "= 3\n", "= []\n", "sleap-nn[all]", "\n"])
)
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, "pyproject.toml", text)


MANY = 200_000
"""Parts of a key for which tomllib alone would take an hour."""


@pytest.mark.parametrize(
    "key",
    [
        "a." * MANY,
        "a . " * MANY,
        "\t'a'\t." * MANY,
        '"".' * MANY,
        '"\\"".' * MANY,
        "[" + "a." * MANY,
        "[[ " + "a." * MANY,
        "x = {" + "a." * MANY,
        "x = {b = 1, " + '"a,".b.' * MANY,
    ],
    ids=lambda key: key[:16],
)
def test_a_key_of_many_parts_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidError, match=r"^p\.toml:2: a key of more than 12 parts$"):
        parse_toml(f"first = 1\n{key}", "p.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b.c.d.e.f.g.h.i.j.k.l = 1", None),
        ("x = '" + "a." * 50 + "'", "a." * 50),
        ('x = ["' + "1." * 50 + '"]', ["1." * 50]),
        ("x = 1 # see " + "a." * 50, 1),
    ],
)
def test_other_dots_are_no_keys(text: str, value: object) -> None:
    assert parse_toml(text, "p.toml").get("x") == value


@pytest.mark.parametrize("piece", ['"', ',"', ",'", '\\"', ',"\\"', "a", " ", ",a ", "a.b ", "{a"])
def test_text_of_any_form_is_looked_through_in_one_pass(piece: str) -> None:
    """A second for a mebibyte would be a thousand times what it takes, and quadratic is more."""
    with pytest.raises(InvalidError, match="not valid TOML"):
        parse_toml("x = \x00" + piece * ((1 << 20) // len(piece)), "p.toml")
