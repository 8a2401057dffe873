"""The first envbuilder.yaml of a folder: which file it lists, and the program to run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from envbuilder.core import settings
from envbuilder.core.settings import Definition, RequirementFile
from envbuilder.project import draft, repository
from envbuilder.project.draft import Source
from envbuilder.project.lines import Needed
from envbuilder.project.repository import InstallHints
from tests.support.repositories import lay

HEAD = """\
# What this project needs on any hardware. The framework comes from the profile of each machine.
# To add packages: envbuilder add NAME. After other changes: envbuilder lock
"""
TAIL = """\
# framework: jax  # or tensorflow; by default what the packages require, else torch
# profiles: [cpu, cuda]  # the hardware to support; without it, all
# python: "3.12"
"""
PYPROJECT = """\
[project]
name = "thing"
version = "1"
dependencies = ["rich"]
[project.optional-dependencies]
train = ["lightning"]
viz = ["matplotlib"]
[dependency-groups]
dev = ["pytest"]
"""
UV_LOCK = """\
version = 1
requires-python = ">=3.10"
[[package]]
name = "thing"
source = { editable = "." }
dependencies = [{ name = "rich" }]
[package.metadata]
requires-dist = [{ name = "rich" }]
[[package]]
name = "rich"
version = "13.0.0"
source = { registry = "https://index.example/simple" }
"""
SHAPES = {
    "nothing": (
        {},
        """\
requirements: []  # such as [einops, "rich>=13"]
# requirements_from: [requirements.txt]
""",
    ),
    "a script with requirements": (
        {
            "requirements.txt": "rich\n",
            "requirements-dev.txt": "pytest\n",
            "requirements/gpu.txt": "x\n",
            "train.py": "",
        },
        """\
requirements_from:
  - requirements.txt
  # - requirements/gpu.txt
  # - requirements-dev.txt
""",
    ),
    "a package with extras": (
        {"pyproject.toml": PYPROJECT, "requirements.txt": "-e .\n"},
        """\
requirements_from:
  - pyproject.toml
  # - {file: pyproject.toml, extras: [train, viz], groups: [dev]}
  # - requirements.txt
""",
    ),
    "uv": (
        {"pyproject.toml": PYPROJECT, "uv.lock": UV_LOCK},
        """\
requirements_from:
  - uv.lock
  # - {file: uv.lock, extras: [train, viz], groups: [dev]}
""",
    ),
    "conda": (
        {"environment.yml": "dependencies: [numpy]\n", "pyproject.toml": "[tool.ruff]\n"},
        "requirements_from:\n  - environment.yml\n  # - pyproject.toml\n",
    ),
    "nothing but groups": (
        {"pyproject.toml": "[dependency-groups]\ntrain = ['rich']\n'a b' = []\n"},
        "requirements_from:\n  - {file: pyproject.toml, groups: [train]}\n",
    ),
    "lists of something else": (
        {"requirements-dev.txt": "a\n", "docs/requirements.txt": "b\n", "notes.txt": "c\n"},
        """\
requirements: []  # such as [einops, "rich>=13"]
# requirements_from: [requirements-dev.txt, docs/requirements.txt]
""",
    ),
    "a list below, under any name of conda's": (
        {"env/SE3.yml": "dependencies:\n  - numpy\n", "conf/model.yml": "layers: 3\n"},
        "requirements_from:\n  - env/SE3.yml\n",
    ),
    "lists for some hardware": (
        {"requirements_cpu.txt": "a\n", "requirments.txt": "b\n", "README": "nothing"},
        "requirements_from:\n  - requirments.txt\n  # - requirements_cpu.txt\n",
    ),
    "what the README names": (
        {
            "requirements.txt": "a\n",
            "gpu/requirements.txt": "b\n",
            "README.md": "```\n$ pip install -r gpu/requirements.txt\n```\n",
        },
        "requirements_from:\n  - gpu/requirements.txt\n  # - requirements.txt\n",
    ),
    "but rather what is at the top than what containers have": (
        {
            "requirements.txt": "a\n",
            "docker/requirements.txt": "b\n",
            "README.md": "Run `pip3 install -r docker/requirements.txt`.\n",
        },
        "requirements_from:\n  - requirements.txt\n  # - docker/requirements.txt\n",
    ),
    "a README that installs the package, too": (
        {
            "env.yml": "dependencies:\n- a\n",
            "pyproject.toml": PYPROJECT,
            "README.md": "    conda env create --file env.yml && pip install -e '.[viz]'\n",
        },
        """\
requirements_from:
  - env.yml
  - {file: pyproject.toml, extras: [viz]}
  # - {file: pyproject.toml, extras: [train, viz], groups: [dev]}
""",
    ),
    "several packages in one repository": (
        {
            **dict.fromkeys(("graphs/pyproject.toml", "training/pyproject.toml"), PYPROJECT),
            "README.md": "```\npip install some-training\npip install some-graphs\n```\n",
        },
        """\
requirements_from:
  - training/pyproject.toml
  # - {file: training/pyproject.toml, extras: [train, viz], groups: [dev]}
  # - graphs/pyproject.toml
""",
    ),
    "groups that uv installs": (
        {
            "pyproject.toml": "[project]\nname = 'x'\n[dependency-groups]\nmain = ['rich']\n"
            "dev = ['pytest']\n[tool.uv]\ndefault-groups = ['main', 'dev']\n"
        },
        """\
requirements_from:
  - {file: pyproject.toml, groups: [main]}
  # - {file: pyproject.toml, groups: [main, dev]}
""",
    ),
    "nothing but the group dev": (
        {"pyproject.toml": "[project]\nname = 'x'\n[dependency-groups]\ndev = ['rich']\n"},
        "requirements_from:\n  - {file: pyproject.toml, groups: [dev]}\n",
    ),
    "Poetry's own groups, and the README's": (
        {
            "pyproject.toml": "[project]\nname = 'x'\ndependencies = []\n[tool.poetry]\n"
            "dependencies.rich = '*'\ngroup.dev.dependencies.ruff = '*'\n"
            "group.data.dependencies.a = '*'\n"
            "group.more = {optional = true, dependencies.b = '*'}\n"
            "group.docs = {optional = true, dependencies.c = '*'}\n",
            "README.md": "`poetry install --with more`\n",
            "tutorials/x/requirements.txt": "tqdm\n",
        },
        """\
requirements_from:
  - {file: pyproject.toml, groups: [data, more]}
  # - {file: pyproject.toml, groups: [dev, data, more, docs]}
  # - tutorials/x/requirements.txt
""",
    ),
    "all extras": (
        {"pyproject.toml": PYPROJECT, "README.md": "`uv sync --all-extras`"},
        """\
requirements_from:
  - {file: pyproject.toml, extras: [train, viz]}
  # - {file: pyproject.toml, extras: [train, viz], groups: [dev]}
""",
    ),
    "a README that names an extra of setup.py, and one that is gone": (
        {
            "setup.py": "setup(install_requires=['a'], extras_require={'x': ['b']})",
            "README.md": "`pip install -e .[x]`",
        },
        "requirements_from:\n  - {file: setup.py, extras: [x]}\n",
    ),
    "another program below is not what a program at the top requires": (
        {
            "pyproject.toml": "[project]\nname = 'x'\n",
            "tool/requirements.txt": "a\n",
            "requirements/base.txt": "b\n",
        },
        (
            "requirements_from:\n  - requirements/base.txt\n  # - pyproject.toml\n"
            "  # - tool/requirements.txt\n"
        ),
    ),
    "a recipe": (
        {
            "requirements.txt": "numpy\ntorchvision\n",
            "more.txt": "tqdm\n",
            "ops/setup.py": "setup(name='fast-ops')",
            "ops/pyproject.toml": "[build-system]\n",
            "README.md": "```\nconda create -n x python=3.10\n"
            "pip install torch==2.4.1 torchvision==0.19.1 pip numpy\n"
            "pip install -r requirements.txt -r more.txt -r gpu.txt\npip install ./ops[a]\n```\n",
        },
        """\
requirements:
  - torch==2.4.1  # README.md:3
  - torchvision==0.19.1  # README.md:3
  - fast-ops[a] @ ./ops  # README.md:5
requirements_from:
  - requirements.txt
  - more.txt
  # - ops/pyproject.toml
  # - ops/setup.py
build_from_source: [fast-ops]  # their own code runs while they are built
""",
    ),
    "one of two lists of the same, one extra for hardware, and no package of its own": (
        {
            "env.yml": "dependencies:\n- numpy\n- scipy\n",
            "requirements.txt": "numpy==1.26\nscipy\ntqdm\n",
            "pyproject.toml": "[project]\nname = 'Some_Thing'\ndependencies = ['numpy']\n"
            "[project.optional-dependencies]\ncpu = ['torch']\ncu128 = ['torch']\n",
            "README.md": "```\nconda env create -f env.yml\npip install -r requirements.txt\n"
            "uv sync --extra cpu\nuv sync --extra cu128\npip install some-thing\n"
            "pip install git+https://host.example/x/some-thing\n```\n",
        },
        """\
requirements_from:
  - requirements.txt
  - {file: pyproject.toml, extras: [cpu]}
  # - {file: pyproject.toml, extras: [cpu, cu128]}
  # - env.yml
""",
    ),
    "what files bound, as they do": (
        {
            "requirements.txt": "torch<2.3\nnumpy>=1\neinops\n",
            "README.md": "`pip install torch==2.4.1 torchvision==0.19.1 numpy==1.26 einops`\n",
        },
        """\
requirements:
  - numpy==1.26  # README.md:1
requirements_from:
  - requirements.txt
""",
    ),
    "a script that installs for its examples, and another build of the package itself": (
        {
            "pyproject.toml": PYPROJECT,
            "examples/requirements.txt": "tqdm\n",
            "README.md": "# x\n## Install\n`source install.sh`\n`pip install thing-nightly`\n",
            "install.sh": "cd examples\npip install -r requirements.txt\ncd ..\npip install -e .\n",
        },
        """\
requirements_from:
  - pyproject.toml
  # - {file: pyproject.toml, extras: [train, viz], groups: [dev]}
  - examples/requirements.txt
""",
    ),
    "nothing but scripts with lists of their own": (
        {
            "inspect.py": "# /// script\n# dependencies = []\n# ///\n",
            "x/a.py": "# /// script\n# dependencies = ['trl']\n# ///\n",
            "x/b.py": "# /// script\n# dependencies = ['trl']\n# ///\n",
            "x/c.py": "# /// script\n# dependencies = ['trl', 'gguf']\n# ///\n",
            "x/d.py": "import trl\n",
        },
        """\
requirements_from:
  - x/a.py
  - x/c.py
  # - inspect.py
  # - x/b.py
""",
    ),
    "sources": (
        {
            "requirements.txt": "x @ git+https://host.example/a\n./lib\n"
            "https://host.example/w-1.0-py3-none-any.whl\n",
            "lib/setup.py": "",
        },
        """\
requirements_from:
  - requirements.txt
  # - lib/setup.py
build_from_source: [x, lib]  # their own code runs while they are built
""",
    ),
}


def started(folder: Path) -> str:
    files = [*repository.files(folder)]
    choice = draft.choose(folder, files, repository.install_hints(folder, files))
    return draft.text(choice, draft.Draft())


def definition(text: str) -> Definition:
    return settings.decoded(text, Path("envbuilder.yaml"))[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_text_for_a_shape_of_project(tmp_path: Path, shape: str) -> None:
    files, expected = SHAPES[shape]
    lay(tmp_path, files)
    text = started(tmp_path)
    tail = TAIL.replace('"3.12"', '"3.10"  # README.md:2 (conda)') if shape == "a recipe" else TAIL
    assert text == HEAD + expected + tail
    definition(text)


def test_a_file_that_cannot_be_read_leaves_the_place_to_the_next_and_is_named(
    tmp_path: Path,
) -> None:
    lay(tmp_path, {"requirements.txt": "a b c\n", "environment.yml": "dependencies: [numpy]\n"})
    choice = draft.choose(tmp_path, [*repository.files(tmp_path)], InstallHints())
    assert [source.main.file for source in choice.sources] == ["environment.yml"]
    assert "requirements.txt:1" in choice.errors[0].message


def test_what_of_a_recipe_cannot_be_followed_is_left_to_the_user(tmp_path: Path) -> None:
    readme = "```\npip install -e .[gone] ./missing a==latest+cu1\nconda install gromacs\n```\n"
    lay(tmp_path, {"README.md": readme, "setup.py": "setup(install_requires=['rich'])"})
    files = [*repository.files(tmp_path)]
    choice = draft.choose(tmp_path, files, repository.install_hints(tmp_path, files))
    needed = "\n".join(note for note in choice.notes if isinstance(note, Needed))
    for words in ("git submodule update", "a==latest+cu1: not a requirement", "gromacs"):
        assert words in needed
    assert not choice.unlisted, "what is not here would stand in the way of each lock"
    assert len(choice.sources) == 1
    assert [str(note) for note in choice.notes if "no extra gone" in note]


@pytest.mark.parametrize(
    ("stated", "expected"), [("'transformers==4.54.1'", "setup.py"), ("", "requirements.txt")]
)
def test_what_is_installed_with_the_project_is_what_it_states_itself(
    tmp_path: Path, stated: str, expected: str
) -> None:
    setup = f"setup(install_requires=[{stated}])"
    files = {"README.md": "```\npip install -e .\n```\n", "setup.py": setup}
    lay(tmp_path, {**files, "requirements.txt": "transformers[torch]<=4.49\nrich\n"})
    every = [*repository.files(tmp_path)]
    choice = draft.choose(tmp_path, every, repository.install_hints(tmp_path, every))
    assert [source.main.file for source in choice.sources] == [expected]


@pytest.mark.parametrize(
    "text",
    [
        {"Dockerfile": "RUN pip install -e .\n"},
        {
            "README.md": "```\nconda env update -f environment-cpu.yml\npip install -e .\n```\n",
            "environment-cpu.yml": "dependencies: [{pip: [rich]}]\n",
        },
    ],
)
def test_a_list_comes_first_unless_the_readme_installs_the_project_alone(
    tmp_path: Path, text: dict[str, str]
) -> None:
    files = {**text, "requirements.txt": "rich\n"}
    lay(tmp_path, {**files, "setup.py": "setup(install_requires=['tqdm'])"})
    every = [*repository.files(tmp_path)]
    choice = draft.choose(tmp_path, every, repository.install_hints(tmp_path, every))
    assert [source.main.file for source in choice.sources] == ["requirements.txt", "setup.py"]


@pytest.mark.parametrize("name", ["moshi", "renamed"])
def test_a_folder_whose_package_is_installed_lists_what_it_states_itself(
    tmp_path: Path, name: str
) -> None:
    readme = "## Install\n```\npip install -U moshi\npip install moshi_mlx\n```\n"
    files = dict.fromkeys(["moshi/requirements.txt", "moshi_mlx/requirements.txt"], "rich==1\n")
    files |= dict.fromkeys(["moshi/pyproject.toml", "moshi_mlx/pyproject.toml"], PYPROJECT)
    lay(tmp_path / name, {"README.md": readme, **files})
    every = [*repository.files(tmp_path / name)]
    hints = repository.install_hints(tmp_path / name, every)
    (source,) = draft.choose(tmp_path / name, every, hints).sources
    assert source.main.file == "moshi/pyproject.toml"


def test_packages_of_the_repository_itself_are_no_requirements_of_its_recipe(
    tmp_path: Path,
) -> None:
    readme = "## Install\n```\npip install moshi_mlx rich==14 x-nightly\n```\n"
    lay(tmp_path, {"README.md": readme, "moshi_mlx/pyproject.toml": "[project]\nname = 'x'\n"})
    lay(tmp_path, {"setup.cfg": "[metadata]\nname = x\n"})
    files = [*repository.files(tmp_path)]
    choice = draft.choose(tmp_path, files, repository.install_hints(tmp_path, files))
    assert [line.text for line in choice.unlisted] == ["rich==14"]


def test_extras_and_groups_with_what_code_imports_are_named(tmp_path: Path) -> None:
    lay(tmp_path, {"pyproject.toml": PYPROJECT, "uv.lock": UV_LOCK})
    choice = draft.choose(tmp_path, ["pyproject.toml"], InstallHints())
    named = [*draft.of_extras(tmp_path, choice, ["matplotlib", "pytest", "rich", "torch"])]
    assert named == [
        (
            "code also imports matplotlib: extra `viz` of pyproject.toml lists it. To use it:"
            " requirements_from: [{file: pyproject.toml, extras: [viz]}]"
        ),
        (
            "code also imports pytest: group `dev` of pyproject.toml lists it. To use it:"
            " requirements_from: [{file: pyproject.toml, groups: [dev]}]"
        ),
    ]


def test_few_names_are_mentioned_and_none_can_add_a_line(tmp_path: Path) -> None:
    extras = "".join(f"x{number} = []\n" for number in range(20))
    text = (
        f"[project]\nname = 'x'\ndependencies = ['rich']\n[project.optional-dependencies]\n{extras}"
    )
    lay(tmp_path, {"pyproject.toml": text + '"a\\nb: c" = []\n'})
    for number in range(20):
        (tmp_path / f"requirements-{number}\nrequirements: [evil].txt").write_text("")
        (tmp_path / f"requirements-{number:02}.txt").write_text("")
    lines = started(tmp_path).splitlines()
    assert "  # - {file: pyproject.toml, extras: [x0, x1, x2, x3, x4]}" in lines
    assert [line for line in lines if line.startswith("  # - requirements")] == [
        f"  # - requirements-{number:02}.txt" for number in range(5)
    ]
    assert len(lines) <= 15


ODD = st.from_regex(r"\A[a-z0-9._ ,#{}\[\]&%@!-]{1,20}\.txt\Z")


@given(st.none() | ODD, st.lists(ODD, max_size=9))
def test_whatever_is_mentioned_changes_nothing(name: str | None, mentioned: list[str]) -> None:
    sources = (Source(main=RequirementFile(file=name)),) if name else ()
    choice = draft.Choice(sources=sources, others=tuple(mentioned))
    text = draft.text(choice, draft.Draft())
    assert definition(text).requirements_from == ((name,) if name else ())
    assert len(text.splitlines()) <= 15


@pytest.mark.parametrize(
    ("readme", "expected"), [("", "env.yml"), ("requirements.txt", "requirements.txt")]
)
def test_an_environment_that_includes_the_list_is_taken_instead(
    tmp_path: Path, readme: str, expected: str
) -> None:
    text = "dependencies: [ffmpeg, numpy, {pip: [-r requirements.txt]}]\n"
    lay(tmp_path, {"requirements.txt": "rich\n", "env.yml": text, "environment.yml": "a: 1\n"})
    shown = InstallHints(files={readme: "README.md"} if readme else {})
    choice = draft.choose(tmp_path, tuple(repository.files(tmp_path)), shown)
    assert [source.main.file for source in choice.sources] == [expected]


@given(ODD, st.sampled_from(["dev", "on", "1"]))
def test_a_file_with_an_odd_name_or_extra_is_listed(name: str, extra: str) -> None:
    file = RequirementFile(file=name, extras=(extra,))
    text = draft.text(draft.Choice(sources=(Source(main=file),)), draft.Draft())
    assert definition(text).requirements_from == (file,)
