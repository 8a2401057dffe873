"""pyproject.toml: extras, groups, and requirements that it does not state itself; TOML's limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.project.forms import read
from envbuilder.project.tables import parse_toml
from tests.support.repositories import lay
from tests.support.requirement_projects import places, refusal, texts

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
    lay(tmp_path, {"pyproject.toml": SLEAP})
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
    lay(tmp_path, {"pyproject.toml": SLEAP})
    assert listing(tmp_path, ("all-extras",))[4:] == [
        "wandb",
        "torch>=2.7",
        "torchvision>=0.20.0",
        "matplotlib",
        "rich",
    ]
    assert listing(tmp_path, ("VIZ", "viz"))[4:] == ["matplotlib", "rich"]
    assert listing(tmp_path, ("loop",))[4:] == ["tqdm"]


def test_groups_that_include_others(tmp_path: Path) -> None:
    lay(tmp_path, {"pyproject.toml": SLEAP})
    assert listing(tmp_path, (), ("dev",))[4:] == ["pytest>=8", "ruff"]
    assert listing(tmp_path, (), ("Lint_Tools",))[4:] == ["ruff", "pytest>=8"]
    assert listing(tmp_path, (), ("empty",))[4:] == []
    assert listing(tmp_path, (), ("examples",))[4:] == ["matplotlib", "rich"]


def test_a_long_chain_of_groups(tmp_path: Path) -> None:
    chain = "".join(f'g{n} = [{{ include-group = "g{n + 1}" }}]\n' for n in range(3000))
    lay(tmp_path, {"pyproject.toml": f'[dependency-groups]\n{chain}g3000 = ["rich"]\n'})
    assert listing(tmp_path, (), ("g0",)) == ["rich"]


PROJECT = '[project]\nname = "x"\n'


@pytest.mark.parametrize(
    ("text", "extras", "groups", "message", "hint"),
    [
        ("", [], [], ": there is no [project] table", "dependencies in [project]"),
        ("[project\n", [], [], ":1: not valid TOML: ", ""),
        ("a = 1\na = 2\n", [], [], ":2: not valid TOML: ", ""),
        (f"a = {'[' * 5000}", [], [], ": not valid TOML: nested too deeply", ""),
        (
            "[tool.poetry.dependencies]\nx = 3\n",
            [],
            [],
            ":2: x: expected versions or a table",
            ">=1.2",
        ),
        (
            f'{PROJECT}dynamic = ["version", "dependencies"]\n',
            [],
            [],
            ": project.dynamic: only a build can compute dependencies",
            "requirements.txt",
        ),
        (
            f'{PROJECT}dynamic = ["optional-dependencies"]\n',
            ["a"],
            [],
            ": project.dynamic: only a build can compute optional-dependencies",
            "requirements.txt",
        ),
        (f"{PROJECT}dependencies = [3]\n", [], [], ": project.dependencies.0: expected text", ""),
        (
            f"{PROJECT}requires-python = '3.10'\n",
            [],
            [],
            ": requires-python: '3.10' is not a range of versions",
            ">=3.10",
        ),
        (f"{PROJECT}optional-dependencies.a = []\n", ["b"], [], ": no extra b", "It has: a."),
        (PROJECT, ["b"], [], ": no extra b", "It has no extras at all."),
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
            f"{PROJECT}dependencies = [\"x[a]; os_name == 'nt'\"]\n",
            [],
            [],
            ':3: x[a]; os_name == "nt": a marker on the project\'s own extras',
            "Put the marker",
        ),
    ],
)
def test_refusals(
    tmp_path: Path, text: str, extras: list[str], groups: list[str], message: str, hint: str
) -> None:
    lay(tmp_path, {"pyproject.toml": text})
    actual, next_step = refusal(tmp_path, "pyproject.toml", extras, groups)
    assert actual.startswith(f"pyproject.toml{message}")
    assert hint in next_step


@pytest.mark.parametrize(
    ("source", "location", "note"),
    [
        ('{ git = "https://example.org/trl", tag = "v1", subdirectory = "a" }',
         "git+https://example.org/trl@v1#subdirectory=a", ""),
        ('{ url = "https://example.org/t-1.0.tar.gz" }', "https://example.org/t-1.0.tar.gz", ""),
        ('{ path = "libs/trl", editable = true }', "./sub/libs/trl", ""),
        ("{ workspace = true }", "./sub/packages/one", ""),
        ('{ index = "corporate" }', "", "its index in tool.uv.sources is left out"),
    ],
)  # fmt: skip
def test_sources_of_uv(tmp_path: Path, source: str, location: str, note: str) -> None:
    text = f'{PROJECT}dependencies = ["TRL[x]>=1"]\n[tool.uv.sources]\ntrl = {source}\n'
    text += '[tool.uv.workspace]\nmembers = ["", "packages/*", "../*", "/*", "**"]\n'
    for name, member in (("one", '[project]\nname = "Trl"\n'), ("two", "[project")):
        lay(tmp_path, {f"sub/packages/{name}/pyproject.toml": member})
    lay(tmp_path, {"sub/pyproject.toml": text})
    listed = read(tmp_path, "sub/pyproject.toml")
    assert [(each.text, each.source) for each in listed.requirements] == [("trl[x]>=1", location)]
    assert [note in each for each in listed.notes] == ([True] if note else [])


def test_sources_of_uv_hold_where_their_markers_do_and_for_their_extra(tmp_path: Path) -> None:
    text = f"""{PROJECT}dependencies = ["six"]
optional-dependencies.a = ["six>=1; python_version > '3.9'"]
optional-dependencies.b = ["six"]
[tool.uv.sources]
six = [
  {{ index = "own", marker = "sys_platform == 'linux'" }},
  {{ path = "six", marker = "sys_platform == 'darwin'" }},
  {{ url = "https://example.org/six-1.0.tar.gz", extra = "A" }},
]
"""
    lay(tmp_path, {"pyproject.toml": text})
    listed = read(tmp_path, "pyproject.toml", ["a"])
    here = 'python_version > "3.9"'
    assert [(each.text, each.source) for each in listed.requirements] == [
        ('six; sys_platform == "darwin"', "./six"),
        ("six", ""),
        (f'six>=1; {here} and sys_platform == "darwin"', "./six"),
        (f"six>=1; {here}", "https://example.org/six-1.0.tar.gz"),
    ]


def test_sources_that_cannot_be_and_those_that_are_not_chosen(tmp_path: Path) -> None:
    text = f"{PROJECT}optional-dependencies.a = ['y']\ntool.uv.sources.y.path = '../y'\n"
    lay(tmp_path, {"pyproject.toml": text.replace("tool.", "[tool]\n", 1)})
    assert listing(tmp_path) == []
    (note,) = read(tmp_path, "pyproject.toml", ["a"]).notes
    assert "../y is outside the project, so y is left out" in note
    text = '[tool.uv]\nsources.y.workspace = true\n[project]\ndependencies = ["y", "z @ ./z"]\n'
    lay(tmp_path, {"pyproject.toml": text})
    listed = read(tmp_path, "pyproject.toml")
    assert [each.source for each in listed.requirements] == ["", "./z"]
    assert "the workspace has no member of this name" in listed.notes[0]


POETRY = """\
[tool.poetry]
name = "own"
[tool.poetry.dependencies]
python = ">=3.9,<3.12"
numpy = "^1.24.0"
"Ruamel.YAML" = "~0.17"
rich = "*"
einops = "0.7.0"
tqdm = ">=4 <5"
scipy = [
  { version = "<=1.10", python = "<3.10" },
  { version = "^1.11", python = "^3.10", markers = "sys_platform == 'linux'" },
]
uvicorn = { version = "^0.0.3", extras = ["standard"], platform = "darwin" }
tool = { git = "https://example.org/tool.git", branch = "main" }
near = { path = "libs/near", develop = true }
wheel = { url = "https://example.org/wheel-1.0-py3-none-any.whl" }
torch = { version = "2.1.0+cu118", source = "pytorch" }
later = { version = "1.0 || ^2.1", optional = true }
own = { path = "." }
[tool.poetry.extras]
More = ["later"]
[tool.poetry.group.test.dependencies]
pytest = "^8"
[tool.poetry.dev-dependencies]
black = { version = "*", allow-prereleases = true }
"""


def test_poetrys_own_tables(tmp_path: Path) -> None:
    lay(tmp_path, {"pyproject.toml": POETRY})
    listed = read(tmp_path, "pyproject.toml")
    found = [(each.text, each.source) for each in listed.requirements]
    assert found == [
        ("numpy<2,>=1.24.0", ""),
        ("ruamel-yaml<0.18,>=0.17", ""),
        ("rich", ""),
        ("einops==0.7.0", ""),
        ("tqdm<5,>=4", ""),
        ('scipy<=1.10; python_version < "3.10"', ""),
        (
            'scipy<2,>=1.11; sys_platform == "linux" and (python_version >= "3.10" and'
            ' python_version < "4")'.replace(" and (", " and ").replace(")", ""),
            "",
        ),
        ('uvicorn[standard]<0.0.4,>=0.0.3; sys_platform == "darwin"', ""),
        ("tool", "git+https://example.org/tool.git@main"),
        ("near", "./libs/near"),
        ("wheel", "https://example.org/wheel-1.0-py3-none-any.whl"),
        ("torch==2.1.0", ""),
    ]
    assert places(listed.requirements)[0] == "pyproject.toml:5"
    assert texts(listed.pythons) == ["<3.12,>=3.9"]
    assert listing(tmp_path, ("more",), ("test", "dev"))[-3:] == [
        "later<3,>=2.1",
        "black",
        "pytest<9,>=8",
    ]
    # With both, the standard table says which packages there are.
    lay(tmp_path, {"pyproject.toml": f'{POETRY}{PROJECT}dependencies = ["rich"]\n'})
    assert listing(tmp_path) == ["rich"]


def test_poetrys_tables_beside_the_standard_ones(tmp_path: Path) -> None:
    """As Poetry 2 has them: each table says something of its own."""
    text = f"{POETRY}{PROJECT}requires-python = '>=3.8,<3.11'\n"
    more = (
        "[project.optional-dependencies]\nweb = ['flask']\n[dependency-groups]\ntest = ['mypy']\n"
    )
    lay(tmp_path, {"pyproject.toml": f"{text}dynamic = ['dependencies']\n{more}"})
    listed = read(tmp_path, "pyproject.toml", ("web", "more"), ("test", "dev"))
    packages = texts(listed.requirements)
    assert packages[:3] == ["flask", "mypy", "numpy<2,>=1.24.0"]
    assert packages[-3:] == ["later<3,>=2.1", "black", "pytest<9,>=8"]
    assert texts(listed.pythons) == ["<3.11,>=3.8", "<3.12,>=3.9"]
    lay(tmp_path, {"pyproject.toml": f"{text}dependencies = ['rich']\n{more}"})
    listed = read(tmp_path, "pyproject.toml", ("web",), ("dev",))
    assert texts(listed.requirements) == ["rich", "flask", "black"]
    assert texts(listed.pythons) == ["<3.11,>=3.8", "<3.12,>=3.9"]
    with pytest.raises(InvalidError, match="no group docs") as raised:
        read(tmp_path, "pyproject.toml", (), ("docs",))
    assert raised.value.hint == "It has: dev, test."


MANY = 200_000
"""Parts of a key for which tomllib alone would take an hour."""


@pytest.mark.parametrize(
    "key",
    [
        "a." * MANY,
        "\t'a'\t." * MANY,
        '"".' * MANY,
        '"\\"".' * MANY,
        "[" + "a." * MANY,
        "x = {" + "a." * MANY,
        "x = {b = 1, " + '"a,".b.' * MANY,
    ],
    ids=lambda key: key[:16],
)
def test_a_key_of_many_parts_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidError, match=r"^p\.toml:2: the key has more than 12 parts$"):
        parse_toml(f"first = 1\n{key}", "p.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b.c.d.e.f.g.h.i.j.k.l = 1", None),
        ("x = '" + "a." * 50 + "'", "a." * 50),
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
