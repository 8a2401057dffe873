"""`init` writes one file, never over another, and says what became of each line."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import requests

from envbuilder.builds import import_check, pipeline
from envbuilder.builds.import_check import Outcome
from envbuilder.commands import init, run as run_command
from envbuilder.core import settings
from envbuilder.core.errors import BuildError, HostError, InvalidError
from envbuilder.host import probe
from envbuilder.locks import chooser, entries
from envbuilder.locks.chooser import Answer, Way
from envbuilder.packages import upstream
from envbuilder.packages.fetch import Place
from envbuilder.packages.python.uv import UnresolvableError
from envbuilder.profiles import requirements as requirement
from envbuilder.profiles.lock import Lock, Reason
from envbuilder.profiles.profile import Profile
from envbuilder.project import draft, repository
from envbuilder.project.lines import Line
from tests.support import host_trees, repositories
from tests.support.command_line import FILE, Command
from tests.support.folders import names_in
from tests.support.recorded import replaced
from tests.support.shipped import shipped_lock
from tests.support.user_index import refused

Report = Callable[..., dict[str, Any]]
lay = functools.partial(repositories.lay, Path())
LIST = Path("requirements.txt")
README = "```\npip install einops tqdm torch\napt-get install ffmpeg\n```\n"


@pytest.fixture(autouse=True)
def nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_locked", lambda report, _: report)  # which takes a network


@pytest.fixture
def report(envbuilder: Command) -> Report:
    """`report(*options)`: what `init --json` says."""

    def report(*options: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(envbuilder("init", "--json", *options).out)
        return result

    return report


def an_index(monkeypatch: pytest.MonkeyPatch, **pages: bytes | Exception) -> dict[str, Any]:
    """Let `init` ask an index that has some pages, and fails for others."""
    answers: dict[str, Any] = {**pages}

    def read(url: str) -> bytes:
        answer = answers.get(url.split("/")[-2], refused(404))
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    @contextlib.contextmanager
    def opened(*_: object) -> Iterator[upstream.Index]:
        yield upstream.Index([Place(url="https://index.example/simple")], read, lambda _: [])

    monkeypatch.setattr(upstream, "opened", opened)
    return answers


def questions(
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer | None = None,
    ways: Sequence[Way] = (),
    old: Collection[str] = (),
    moved: Mapping[str, tuple[Answer, dict[str, str]]] | None = None,
    absent: Collection[str] = (),
) -> None:
    """Let uv give these answers; `moved`: platform → the answer where pins stand in the way.

    It refuses without one, and names the packages that are `absent` as long as it is asked for
    them.
    """

    class Chooser(chooser.Chooser):
        def too_old(self, names: Iterable[str]) -> frozenset[str]:
            return frozenset(old).intersection(names)

        def answer(self, profile: Profile, *_: str, **__: object) -> Answer | UnresolvableError:
            listed = map(requirement.distribution, profile.requirements)
            missing = frozenset(absent).intersection(listed)
            refusal = UnresolvableError("no", named=missing)
            if missing:
                return refusal
            platform = profile.platforms[0]
            if not moved or platform not in moved:
                return answer or refusal
            nearest, versions = moved[platform]
            taken = {requirement.distribution(text) for text in profile.resolution.overrides}
            has_release = nearest.release(profile) == profile.release
            return nearest if has_release and taken >= versions.keys() - {"torch"} else refusal

        def alternatives(self, *_: object) -> Iterator[Way]:
            return iter(ways)

        def moved(self, *_: object) -> Iterator[tuple[Answer, dict[str, str]]]:
            platform = self._profile.platforms[0]
            yield from [nearest for name, nearest in (moved or {}).items() if name == platform]

    monkeypatch.setattr(chooser, "Chooser", Chooser)


def answered(*sources: str, python: str = "3.11") -> Answer:
    """Return an answer without wheels, where some packages have to be built."""
    return Answer(python, {}, frozenset(sources))


def active() -> list[str]:
    lines = FILE.read_text().splitlines()
    return [line for line in lines if not line.lstrip().startswith("#")]


def test_it_prints_what_it_wrote_and_what_comes_next(envbuilder: Command) -> None:
    lay({"requirements.txt": "rich>=13\ntorch>=2\n", "train.py": ""})
    assert envbuilder("init", "--offline").out == (
        f"wrote {FILE.absolute()}:\n"
        "  requirements_from:\n"
        "    - requirements.txt\n"
        "used: 2 packages of requirements.txt\n"
        "Next:\n"
        "  envbuilder lock\n"
        "  envbuilder run -- python train.py\n"
    )
    assert names_in(Path()) == {
        "envbuilder.yaml",
        "requirements.txt",
        "train.py",
    }


@pytest.mark.parametrize(
    ("files", "following"),
    [
        ({"play.ipynb": repositories.notebook("import rich")}, "jupyter"),
        ({"play.ipynb": repositories.notebook("import rich"), "lib/x.py": ""}, "run -- python"),
        ({"setup.py": "setup(entry_points={'console_scripts': ['go=a:b']})"}, "run -- go"),
        ({"setup.py": "setup()", "train.py": ""}, "run -- python train.py"),
    ],
)
def test_what_comes_next_can_be_pasted(
    report: Report, files: dict[str, str], following: str
) -> None:
    lay({"requirements.txt": "rich\n", **files})
    assert report("--offline")["next"][-1] == f"envbuilder {following}"


def test_no_more_than_a_dozen_packages_are_suggested_and_the_rest_is_counted(
    report: Report, envbuilder: Command
) -> None:
    names = ["click", "dill", "einops", "fire", "gdown", "nltk", "pandas"]
    names += ["rich", "scipy", "six", "timm", "tqdm", "wandb"]
    text = "\n".join(f"import {name}" for name in names)
    lay({"requirements.txt": "numpy\n", "a.py": "", "examples/x.py": text})
    printed = "".join(envbuilder("init", "--offline")[1:])
    assert "timm tqdm" in printed
    assert "wandb" not in printed
    assert "and 1 more: `envbuilder init --json`" in printed
    assert len(report("--offline")["suggested"]) == len(names)


def test_the_result_as_json(report: Report) -> None:
    result = report("--offline")
    assert result == {
        "schema": 2,
        "file": str(FILE.absolute()),
        "written": True,
        "text": FILE.read_text(),
        **{key: [] for key in ("taken", "changed", "dropped", "needs_you", "suggested")},
        **{key: [] for key in ("others", "impossible")},
        "imports": None,
        "locked": "",
        "next": ["envbuilder lock", "envbuilder run -- python"],
    }


def test_what_becomes_of_each_line(report: Report) -> None:
    lines = (
        "torch==2.4.1+cu124",
        "sklearn",
        "-i https://index.example/simple",
        "x @ git+https://host.example/x",
        "einops",
        "Write==1.0+cu118",  # what a note says of a line does not depend on the words in it
    )
    docker = "RUN pip install nltk tqdm\n"
    lay({"requirements.txt": "\n".join(lines), "README.md": README, "Dockerfile": docker})
    result = report("--offline")
    requirements = ["torch==2.4.1", "scikit-learn", "x", "einops", "write==1.0"]
    assert result["taken"] == [
        {"file": "requirements.txt", "why": "", "requirements": requirements},
        {"file": "README.md", "why": "no file lists them", "requirements": ["tqdm"]},
    ]
    assert [text[:24] for text in result["changed"]] == [
        "requirements.txt:1: torc",
        "requirements.txt:2: skle",
        "requirements.txt:6: Writ",
    ]
    assert [text[:22] for text in result["dropped"]] == ["requirements.txt:3: -i"]
    assert result["suggested"] == [{"requirement": "nltk", "source": "Dockerfile:1"}]
    assert "build_from_source: [x]  # their own code runs while they are built" in active()
    text = FILE.read_text()
    assert "# requirements:\n#   - nltk  # Dockerfile:1\n" in text
    assert "# system_packages: [ffmpeg]  # README.md:3\n" in text
    assert active()[:2] == ["requirements:", "  - tqdm  # README.md:2"]


def test_a_program_of_conda_is_left_to_the_user_only_if_debian_is_not_known_to_have_it(
    report: Report,
) -> None:
    lay({"environment.yml": "dependencies: [numpy, ffmpeg, r-ggplot2]\n"})
    (needed,) = report("--offline")["needs_you"]
    assert needed == (
        "environment.yml: no Python package of this name: r-ggplot2. Use --backend conda or, if"
        " the package index has the same package, list it under requirements:."
    )
    assert "system_packages: [ffmpeg]  # in images" in active()


def test_channels_of_a_list_get_their_urls(report: Report) -> None:
    channels = "channels: [pytorch, pyg, conda-forge, defaults]\n"
    lay({"environment.yml": f"{channels}dependencies: [numpy, r-ggplot2]\n"})
    report("--offline")
    text = FILE.read_text()
    assert (
        "indexes:  # where the list's channels are\n  pyg: https://conda.anaconda.org/pyg\n" in text
    )
    assert settings.load({}, Path.cwd()).configuration.indexes["pyg"].endswith("/pyg")
    lay({"environment.yml": f"{channels}dependencies: [pytorch]\n"})
    FILE.unlink()
    report("--offline")
    assert "indexes:" not in FILE.read_text()


def test_what_only_conda_has_is_not_called_misspelled(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_index(monkeypatch, numpy=b"<a href=numpy-1.tar.gz></a>")
    absent = ("gone", "mdtraj", "python-graphviz")
    questions(monkeypatch, answered(), absent=absent)
    listed = "dependencies: [numpy, mdtraj, {pip: [gone, python-graphviz]}]\n"
    lay({"environment.yml": listed})
    needed = report()["needs_you"]
    assert sorted(text.partition(":")[0] for text in needed) == [*absent]
    conda_alone = "no package index has it: use --backend conda, or remove it from the list."
    assert f"mdtraj: {conda_alone}" in needed
    wrong = "no index has it, so it is excluded. Correct its name."
    assert {f"gone: {wrong}", f"python-graphviz: {wrong} Is it graphviz?"} <= {*needed}


def test_nobody_consents_to_a_build_for_a_name_that_only_conda_lists(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_index(monkeypatch)
    questions(monkeypatch, answered("mdtraj", "mrcfile", "of-stated", "stated"))
    monkeypatch.setattr("envbuilder.commands.init._absent", lambda *_: {})
    conda = (
        "dependencies:\n- mdtraj\n- mrcfile\n- gromacs=2025.4\n- pip: \n  - stated\n  - mrcfile\n"
    )
    lay({"environment.yml": conda})
    needed = report()["needs_you"]
    (built,) = (line for line in active() if line.startswith("build_from_source"))
    assert built.startswith("build_from_source: [mrcfile, of-stated, stated]  #")
    assert any(text.endswith("build_from_source: [mdtraj]") for text in needed)
    assert any("no Python package of this name: gromacs" in text for text in needed)


def test_a_module_that_no_table_knows_is_only_named(report: Report) -> None:
    lay({"train.py": "import einops, mpi, torch, own.x\n"})
    LIST.write_text("my-own-x\n")
    result = report("--offline")
    assert active()[:2] == ["requirements:", "  - einops  # imported by train.py"]
    (needed,) = result["needs_you"]
    assert needed.startswith("imported modules whose packages are unknown: mpi. ")


def test_a_fork_that_is_listed_brings_the_module(report: Report) -> None:
    lay({"train.py": "import shap, tqdm, torch\n"})
    LIST.write_text("kundajelab-shap==1\nsome-lab-tools\n")
    report("--offline")
    assert active()[:2] == ["requirements:", "  - tqdm  # imported by train.py"]
    assert "shap  #" not in FILE.read_text()


def test_a_script_lists_what_it_requires_itself(report: Report) -> None:
    block = "# /// script\n# dependencies = ['einops', 'jax']\n# ///\nimport einops\n"
    lay({"train.py": block, "helper.py": "", "tools/other.py": block})
    (taken,) = report("--offline")["taken"]
    assert taken["file"] == "train.py"
    assert taken["requirements"] == ["einops", "jax"]
    assert active() == ["requirements_from:", "  - train.py"]


def test_a_long_list_takes_less_than_a_screen(envbuilder: Command) -> None:
    lines = [f"package-{number}==1.0+cu118" for number in range(100)]
    LIST.write_text("\n".join([*lines, *(f"-f {line}" for line in lines)]))
    printed = envbuilder("init", "--offline").out.splitlines()
    assert len(printed) <= 24
    assert max(map(len, printed)) <= 80 or str(Path.cwd()) in max(printed, key=len)
    assert "and 198 more: `envbuilder init --json`" in printed


def test_what_is_for_other_hardware_is_named_by_it(report: Report) -> None:
    LIST.write_text("torch==2.15.0\nxformers\nflash-attn\ncupy-cuda12x\n")
    result = report("--offline")
    assert result["dropped"] == ["cpu, mps: without xformers and flash-attn and cupy-cuda12x"]
    assert result["needs_you"] == [
        "cuda: cupy-cuda12x is made for CUDA 12, for which profile 'cuda' has no build of 2.15.0"
    ]


@pytest.mark.parametrize(
    "files",
    [
        {"Dockerfile": README},
        {"model.py": "import einops, tqdm, torch, os\n", "x/y.py": "import model, tqdm\n"},
        {"README.md": f"Optional:\n{README}", "setup.sh": "pip install einops"},
    ],
)
def test_where_no_file_lists_anything_texts_and_code_are_the_list(
    report: Report, files: dict[str, str]
) -> None:
    lay(files)
    (taken,) = report("--offline")["taken"]
    assert {"einops", "tqdm"} == {line.partition("=")[0] for line in taken["requirements"]}
    assert taken["why"] == "no file lists them"
    assert active()[0] == "requirements:"
    assert {line.split()[1].partition("=")[0] for line in active()[1:]} == {"einops", "tqdm"}


RESEARCH = {
    "requirements.txt": "torch\nrich\nopencv-python\n",
    "README.md": "```\npip install -r requirements.txt\npython -m examples.sample\n```\n",
    "train.py": "import torch, fire, yaml\nfrom models import net\n\ndef f():\n    import wandb\n",
    "models/net.py": "import timm, rich, cv2\n",
    "models/more.py": "import torchvision\nimport h5py\n",
    "examples/sample.py": "import tqdm\n",
    "examples/show.py": "import matplotlib\n",
    "plot.ipynb": repositories.notebook("%pip install ipywidgets\nimport seaborn, torch"),
}


def test_what_programs_import_is_taken_and_what_examples_alone_do_is_offered(
    envbuilder: Command,
) -> None:
    lay(RESEARCH)
    _, _, rest = envbuilder("init", "--offline").out.partition(
        "suggested, in comments:\n  envbuilder add "
    )
    assert {*active()} == {
        "requirements:",
        "  - fire  # imported by train.py",
        "  - pyyaml  # imported by train.py",
        "  - timm  # imported by models/net.py",
        "  - tqdm  # imported by examples/sample.py",
        "  - torchvision  # imported by models/more.py",
        "requirements_from:",
        "  - requirements.txt",
    }
    assert {*rest.splitlines()[0].split()} == {
        "ipywidgets",
        "wandb",
        "h5py",
        "matplotlib",
        "seaborn",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"setup.sh": "pip install tensorflow\n", "tf/a.py": "import tensorflow\n"}, "tensorflow"),
        ({"lib/a.py": "import jax, tensorflow\n", "lib/b.py": "import jax\n"}, "jax"),
        ({"lib/a.py": "import torch, numpy\n"}, None),
    ],
)
def test_the_framework_is_what_code_imports_or_texts_install(
    files: dict[str, str], expected: str | None, envbuilder: Command
) -> None:
    lay({**files, "setup.py": "setup(name='x', install_requires=['rich'])"})
    envbuilder("init", "--offline")
    (stated,) = [line for line in active() if line.startswith("framework:")] or [""]
    assert stated.partition("  #")[0] == (f"framework: {expected}" if expected else "")


def test_an_extra_that_is_gone_and_a_lock_that_is_not_read_need_the_user(report: Report) -> None:
    lay({"pyproject.toml": "[project]\nname = 'x'\ndependencies = ['rich']\n"})
    lay({"README.md": "# x\n## Install\n`pip install -e .[viz]`\n", "poetry.lock": ""})
    extra, lock = report("--offline")["needs_you"]
    assert "viz" in extra
    assert ", which the README installs." in extra
    assert lock.startswith(
        "poetry.lock: envbuilder does not read requirements from this kind of file."
    )
    assert "poetry export" in lock


def test_a_module_of_a_folder_that_nothing_installs_needs_the_user(report: Report) -> None:
    lay({"requirements.txt": "rich\n", "train.py": "import simple_knn, other_knn\n"})
    lay({"submodules/simple-knn/setup.py": "setup(name='simple_knn')"})
    mine, others = report("--offline")["needs_you"]
    assert mine == (
        "train.py imports simple_knn. To build it from this folder with its own code:"
        " requirements: [simple-knn @ ./submodules/simple-knn], build_from_source: [simple-knn]"
    )
    assert others.startswith("imported modules whose packages are unknown: other_knn.")


def test_of_several_frameworks_that_notebooks_import_none_is_lost(envbuilder: Command) -> None:
    cells = ("import tensorflow, jax, keras\n", "import torch\n")
    both = repositories.notebook(*cells)
    lay({"a.ipynb": both, "b.ipynb": repositories.notebook("import tensorflow\n")})
    envbuilder("init", "--offline")
    assert {*active()} == {
        "requirements:",
        "  - keras  # imported by a.ipynb",
        "  - torch  # imported by a.ipynb",
        "  - tensorflow  # imported by a.ipynb",
        "framework: jax  # others are ordinary packages",
    }


def test_notebooks_alone_are_read_like_texts_and_code(report: Report) -> None:
    cells = ("!pip install einops>=0.8 git+https://host.example/x.git", "import einops, cv2, torch")
    lay({"demo.ipynb": repositories.notebook(*cells)})
    result = report("--offline")
    assert active() == [
        "requirements:",
        "  - einops>=0.8  # demo.ipynb",
        "  - opencv-python-headless  # imported by demo.ipynb",
    ]
    (needed,) = result["needs_you"]
    assert needed.startswith("demo.ipynb: git+https://host.example/x.git: a version control ")
    assert "move the line to a requirements.txt" in needed


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        ("--platform=linux/amd64 pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", "torch==2.1.0"),
        ("rocm/pytorch:rocm6.0_py3.10_pytorch_2.1.1 AS base", "torch==2.1.1"),
        ("nvcr.io/nvidia/l4t-pytorch:r35.2.1-pth2.0-py3", "torch==2.0"),
        ("tensorflow/tensorflow:2.15.0-gpu", "tensorflow==2.15.0"),
        ("nvcr.io/nvidia/pytorch:23.10-py3", ""),
    ],
)
def test_a_base_image_is_a_hint_to_the_release_and_no_list(
    envbuilder: Command, image: str, hint: str
) -> None:
    lay({"Dockerfile": f"FROM {image}\n", "README.md": "pip install tqdm torch\n"})
    assert "envbuilder add" not in envbuilder("init", "--offline").out
    comment = f"#   - {hint}  # Dockerfile's base image"
    assert (comment in FILE.read_text().splitlines()) == bool(hint)
    assert hint not in active()


def test_what_a_setup_py_computes_needs_the_user_and_the_rest_is_taken(report: Report) -> None:
    lay({"setup.py": "from x import r\nsetup(install_requires=r)\n"})
    lay({"README.md": "pip install .\n", "main.py": "import einops\n"})
    (needed,) = report("--offline")["needs_you"]
    assert needed.startswith("setup.py:2: install_requires is computed")
    assert active()[1] == "  - einops  # imported by main.py"
    lay({"requirements.txt": "rich\n", "envbuilder.yaml": ""})
    assert report("--offline")["needs_you"][0].startswith(
        "setup.py:2: install_requires is computed"
    )


def test_what_code_alone_imports_is_never_built(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_index(monkeypatch)
    questions(monkeypatch, answered("einops", "tqdm"))
    monkeypatch.setattr("envbuilder.commands.init._absent", lambda *_: {})
    lay({"README.md": "pip install tqdm\n", "train.py": "import einops, timm\n"})
    needed = report()["needs_you"]
    assert [line.partition("  #")[0] for line in active()] == [
        "requirements:",
        "  - tqdm",
        "  - timm",
        "build_from_source: [tqdm]",
    ]
    assert any(text.endswith("build_from_source: [einops]") for text in needed)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("poetry.lock", "", "poetry export"),
        ("setup.py", "setup(install_requires=read('x'))", "setup.py"),
    ],
)
def test_what_it_does_not_read_is_said(
    envbuilder: Command, file: str, text: str, words: str
) -> None:
    lay({file: text})
    assert words in "".join(envbuilder("init", "--offline")[1:])


def test_again_it_changes_nothing_and_says_what_it_would_write(envbuilder: Command) -> None:
    LIST.write_text("rich\n")
    envbuilder("init", "--offline")
    text = FILE.read_text()
    FILE.write_text(text.replace("requirements.txt", "list.txt"))
    printed = envbuilder("init", "--offline").out
    assert "already exists and was not changed. A new one would be:\n" in printed
    assert "    - requirements.txt\nused: 1 package" in printed
    assert "list.txt" in FILE.read_text()
    FILE.write_text("not: [valid\n")
    envbuilder("init", "--offline", code=2)
    assert FILE.read_text() == "not: [valid\n"
    FILE.write_text("")
    envbuilder("init", "--offline")
    assert "requirements.txt" in FILE.read_text()


def test_a_link_that_leads_nowhere_is_never_followed(envbuilder: Command) -> None:
    FILE.symlink_to("elsewhere.yaml")
    envbuilder("init", "--offline")
    assert not Path("elsewhere.yaml").exists()


def test_profiles_with_another_torch_are_named(report: Report) -> None:
    LIST.write_text("torch==1.13.1\n")
    names = {each["profile"] for each in report("--offline")["impossible"]}
    assert names == {"zendnn", "xpu"}
    assert active() == ["requirements_from:", "  - requirements.txt"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"requirements.txt": "torch==1.6.0\n"}, ['framework_version: "1.12"']),
        ({"requirements.txt": "jax==0.4.26\n"}, ['framework_version: "0.4.30"']),
        ({"requirements.txt": "torchvision==0.6.0\n"}, ['framework_version: "1.12"']),
        ({"env.yml": "dependencies: [python=2.7, rich]\n"}, ['python: "3.8"']),
        ({"env.yml": "dependencies: [python=3.6, numpy]\n"}, ['python: "3.8"']),
        ({"env.yml": "dependencies: [python=3.7, pytorch=1.4]\n"}, ["framework_version", "python"]),
        ({"requirements.txt": "jax\nflax\ntensorflow\n"}, ["framework: jax"]),
        (
            {"requirements.txt": "jax\nflax\ntorch\n", "a.py": "import torch\n"},
            ["framework: torch"],
        ),
        (
            {"requirements.txt": "jax\n", "Dockerfile": "RUN pip install torch==2.5.1\n"},
            ["framework: torch"],
        ),
    ],
)
def test_where_nothing_fits_the_nearest_is_taken_and_said(
    report: Report, files: dict[str, str], expected: list[str]
) -> None:
    lay(files)
    result = report("--offline")
    written = active()[2:]
    assert len(written) == len(expected)
    for line, words in zip(written, expected, strict=True):
        assert line.startswith(words)
    possible = {"cpu", "cuda", "jax-cpu", "jax-cuda"}
    assert not possible.intersection(each["profile"] for each in result["impossible"])


def test_the_text_is_written_and_read_back_once_however_much_is_tried(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    read_back = list[str]()

    def counted(module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        def call(*arguments: Any) -> Any:
            calls[name] += 1
            read_back.extend(arguments[:1] if name == "decoded" else ())
            return original(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(draft, "text")
    counted(settings, "decoded")
    counted(init, "_tried")
    lay({"env.yml": "dependencies: [python=3.7, pytorch=1.4]\n"})
    found = report("--offline")
    assert found["written"]
    assert read_back == [found["text"]]
    assert calls.pop("_tried") > 10
    assert calls == {"text": 1, "decoded": 1}


def test_old_code_without_versions_gets_releases_of_its_day(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "last_commit", lambda _: date(2022, 11, 10))
    LIST.write_text("numpy\ntqdm\nrich==13\n")
    report("--offline")
    assert active()[2].startswith("as_of: 2022-11-10  # the last commit's day")
    FILE.unlink()
    LIST.write_text("numpy>=1.2,!=1.3\ntqdm>4\nrich>=13\nx<3\n")
    assert "as_of" in report("--offline")["text"], "nothing bounds most of them from above"
    LIST.write_text("numpy\ntqdm==4\nrich==13\n")
    assert "as_of" not in report("--offline")["text"], "most lines say what they need"


def test_names_that_no_index_has_are_excluded_and_said(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = an_index(monkeypatch, rich=b"<a href=rich-1.tar.gz></a>")
    release = Line("torch==2.6.0", "vllm 0.8.4")
    ways = [Way("3.10", ("rich",), release, frozenset({"of3.10"}))]
    questions(monkeypatch, ways=ways, absent=["gone"])
    LIST.write_text("rich\ngone>=2\nx @ git+https://host.example/x\n")
    captured = envbuilder("init")
    assert "exclude: [gone]  # no index has them" in active()
    built = "build_from_source: [x, of3.10]  # their own code runs while they are built"
    python = 'python: "3.10"  # there are wheels of rich for it'
    version = 'framework_version: "2.6.0"  # needed by vllm 0.8.4'
    assert {built, python, version} <= {*active()}
    assert "gone: no index has it, so it is excluded" in captured.out
    assert "· look up 2 packages on the index\n" in captured.err
    FILE.unlink()
    del answers["rich"]
    envbuilder("init")
    for line in active():
        assert not line.startswith("exclude"), "none answered"


def test_what_is_outside_of_the_project_is_said_once_and_asked_of_no_index(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_index(monkeypatch, rich=b"<a href=rich-1.tar.gz></a>")
    questions(monkeypatch, answered())
    text = '[project]\nname = "x"\ndependencies = ["rich", "other"]\n[tool.uv.sources]\n'
    lay({"pyproject.toml": f'{text}other = {{ path = "../other" }}\n'})
    lay({"tool/uv.lock": "", "tool/requirements.txt": "tqdm\n"})
    result = report()
    (needed,) = result["needs_you"]
    assert "../other is outside the project, so other is left out" in needed
    assert active()[:2] == ["requirements_from:", "  - pyproject.toml"]
    assert not any(line.startswith("exclude") for line in active())


def test_pins_that_stand_in_the_way_move_to_the_nearest_versions_that_fit(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "torch==2.0.1+cu117\ntorchtext==0.15\nnumba[x]==0.55; python_version > '3'\nrich\n"
    LIST.write_text(lines)
    linux = Answer("3.10", {"torch": "2.1.2+cpu"}, frozenset({"of-linux"}))
    moved = {
        "linux/amd64": (linux, {"torch": "2.1.2", "torchtext": "0.16.2"}),
        "macos/arm64": (answered("of-mac", python="3.10"), {"numba": "0.57"}),
    }
    an_index(monkeypatch)
    questions(monkeypatch, moved=moved)
    result = report()
    nearest = (
        "the nearest version that fits the others, instead of torchtext==0.15 in requirements.txt:2"
    )
    mac = (
        'the nearest with wheels for Macs, instead of numba[x]==0.55; python_version > "3" in'
        " requirements.txt:3"
    )
    assert active()[2:] == [
        "build_from_source: [of-linux, of-mac]  # their own code runs while they are built",
        'framework_version: "2.1.2"  # differs from the one in files',
        'python: "3.10"  # the nearest for which all packages fit together',
        "overrides:  # whatever packages require of each other",
        f'  torchtext: "torchtext==0.16.2"  # {nearest}',
        f"  numba: \"numba[x]==0.57; sys_platform == 'darwin'\"  # {mac}",
    ]
    assert f"torchtext==0.16.2: {nearest}" in result["changed"]


def test_a_mac_has_the_next_version_with_a_wheel_rather_than_a_build(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Chooser(chooser.Chooser):
        def answer(self, profile: Profile, *_: str, **__: object) -> Answer:
            is_built = profile.accelerator == "mps" and not profile.resolution.overrides
            return answered("numba") if is_built else answered()

        def moved(self, *_: object) -> Iterator[tuple[Answer, dict[str, str]]]:
            yield answered(), {"numba": "0.57"}

    LIST.write_text("torch\nnumba==0.55\n")
    an_index(monkeypatch)
    monkeypatch.setattr(chooser, "Chooser", Chooser)
    report()
    why = "the nearest with wheels for Macs, instead of numba==0.55 in requirements.txt:2"
    assert active()[2:] == [
        "overrides:  # whatever packages require of each other",
        f"  numba: \"numba==0.57; sys_platform == 'darwin'\"  # {why}",
    ]


def test_nothing_is_written_that_was_tried_in_vain(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    LIST.write_text("torch==2.0.1\ntorchtext==0.15\nrich\n")
    an_index(monkeypatch)
    questions(monkeypatch)
    nearest = (answered(python="3.10"), {"torchtext": "0.16.2"})
    monkeypatch.setattr(chooser.Chooser, "moved", lambda *_: iter([nearest, nearest]))
    needed = json.loads(envbuilder("init", "--json").out)["needs_you"]
    assert active() == ["requirements_from:", "  - requirements.txt"]
    assert needed == ["cuda cannot be locked: no", "mps cannot be locked: no"]


def test_a_second_framework_that_is_too_old_for_any_python_is_left_out_and_said(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    LIST.write_text("torch\ntensorflow<1.16\nrich==14\n")
    an_index(monkeypatch)
    # Of the others none counts: what uses a framework may be built, or moved.
    questions(monkeypatch, old=["tensorflow", "rich"])
    needed = report()["needs_you"]
    old = "the requested version is too old for Python 3.8 and later"
    assert f"exclude: [tensorflow]  # {old}" in active()
    assert f"tensorflow: {old}, so it is excluded. Code that imports it will fail." in needed


LOCKED = init._locked


def test_a_machine_that_no_profile_fits_gets_the_file_without_a_lock(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise HostError("no profile fits this machine")

    LIST.write_text("rich\n")
    an_index(monkeypatch)
    questions(monkeypatch, answered())
    monkeypatch.setattr(pipeline, "choose", refuse)
    monkeypatch.setattr(init, "_locked", LOCKED)
    captured = envbuilder("init")
    assert "nothing was locked: no profile fits this machine" in captured.err
    assert "Next:\n  envbuilder lock\n" in captured.out


def test_a_lock_for_other_machines_alone_is_none_for_this_one(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    LIST.write_text("torchaudio\n")
    an_index(monkeypatch)
    questions(monkeypatch, answered())
    replaced(monkeypatch, probe, "host", host_trees.recorded("rtx4090"))
    why = {"linux/amd64 3.11": Reason(text="away")}
    lock = msgspec.structs.replace(shipped_lock("cuda"), targets=(), missing=why)
    replaced(monkeypatch, run_command, "lock_profile", lock)
    monkeypatch.setattr(init, "_locked", LOCKED)
    captured = envbuilder("init", code=2)
    assert "has no files for linux/amd64 with Python 3.11: away" in captured.err
    assert "locked:" not in captured.out


def test_a_strangers_package_is_excluded_and_said(report: Report) -> None:
    lay({"requirements.txt": "torch\napex\n"})
    (needed,) = report("--offline")["needs_you"]
    assert "apex: the index has an unrelated package of this name, so it is excluded." in needed
    assert active()[2:] == ["exclude: [apex]  # the index has an unrelated package of this name"]
    FILE.unlink()
    lay({"requirements.txt": "torch\napex @ git+https://host.example/apex\n"})
    assert "exclude" not in report("--offline")["text"]


def test_a_framework_that_is_listed_by_another_name_is_not_added(report: Report) -> None:
    lay({"requirements.txt": "jax\ntensorflow-cpu\n", "a.py": "import jax\nimport tensorflow\n"})
    assert "tensorflow" not in report("--offline")["text"].partition("# framework")[0]


def test_three_hosts_write_the_same_decision(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes the lock of its own profile of it."""
    an_index(monkeypatch)
    asked = asked_of(monkeypatch, answered)
    locked: list[str] = []
    decided = []
    monkeypatch.setattr(init, "_locked", LOCKED)

    def lock_profile(name: str, *_: object) -> Lock:
        locked.append(name)
        return shipped_lock(name)

    monkeypatch.setattr(run_command, "lock_profile", lock_profile)
    lay({"requirements.txt": "torch<2.9\nxformers\nnumpy==1.26.4\n"})
    for name in ("rtx4090", "mac-m2", "zen2-epyc-half-channels"):
        replaced(monkeypatch, probe, "host", host_trees.recorded(name))
        FILE.unlink(missing_ok=True)
        asked.clear()
        text = report()["text"]
        decisions = [
            (e.name, e.decided, repr(e.profile))
            for e in entries.entries(settings.load({}, Path.cwd()))
        ]
        decided.append((text, tuple(asked), decisions))
    assert locked == ["cuda", "mps", "cpu"]
    assert decided[0][2]
    assert decided[1:] == [decided[0]] * 2


def asked_of(monkeypatch: pytest.MonkeyPatch, give: Callable[[], Answer]) -> list[str]:
    """Let uv answer what is given; return the profiles that it is asked for."""
    asked: list[str] = []

    class Chooser:
        sources = frozenset[str]()

        def __init__(self, profile: Profile, **_: object) -> None:
            asked.append(profile.name)

        def answer(self, *_: object, **__: object) -> Answer:
            return give()

    monkeypatch.setattr(chooser, "Chooser", Chooser)
    return asked


def test_an_index_that_fails_is_asked_once_and_said_after_what_was_written(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Answer:
        raise BuildError("uv could not resolve rich: the index is away")

    LIST.write_text("rich==14\n")
    an_index(monkeypatch)
    asked = asked_of(monkeypatch, fail)
    captured = envbuilder("init", code=1)
    assert "used: 1 package of requirements.txt" in captured.out
    assert "the index is away" in captured.err
    assert "envbuilder init --offline" in captured.err
    assert asked == ["cuda"]
    assert FILE.exists()


@pytest.mark.parametrize(("status", "code"), [("failed", 5), ("warning", 0)])
def test_what_was_built_is_imported(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch, status: Any, code: int
) -> None:
    lay({"requirements.txt": "numpy\n"})
    an_index(monkeypatch)
    questions(monkeypatch, Answer("3.11", {}, frozenset()))

    def locked(report: init.Report, _: object) -> init.Report:
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1000, "a build needs the lock"
        return msgspec.structs.replace(report, locked="cpu")

    monkeypatch.setattr(init, "_locked", locked)
    prepared = []
    monkeypatch.setattr(pipeline, "prepare", lambda request, *_, running: prepared.append(request))
    replaced(monkeypatch, pipeline, "finish", None)
    replaced(monkeypatch, import_check, "tried", Outcome(status, "0 of 1; numpy: no"))
    printed = envbuilder("init", "--build", code=code)
    assert [request.profile for request in prepared] == ["cpu"]
    assert "imports: 0 of 1; numpy: no" in printed.out
    assert ("some packages that the project requires cannot be imported" in printed.err) is bool(
        code
    )


def test_pkg_resources_is_of_an_older_setuptools(report: Report) -> None:
    lay({"requirements.txt": "numpy\n", "train.py": "import pkg_resources\n"})
    assert "- setuptools<82  # imported by train.py" in report("--offline")["text"]


def test_nothing_is_built_of_what_is_not_locked(envbuilder: Command) -> None:
    lay({"requirements.txt": "numpy\n"})
    assert (
        "nothing was built, since nothing was locked"
        in envbuilder("init", "--offline", "--build").err
    )


def test_what_cannot_be_locked_here_is_said_after_what_was_written(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> init.Report:
        raise InvalidError("default.cpu cannot be locked: for a reason")

    LIST.write_text("rich\n")
    an_index(monkeypatch)
    questions(monkeypatch, answered())
    monkeypatch.setattr(init, "_locked", refuse)
    captured = envbuilder("init", code=2)
    assert "used: 1 package of requirements.txt" in captured.out
    assert "default.cpu cannot be locked: for a reason" in captured.err
    assert FILE.exists()
    envbuilder("init")  # what exists stays, and is not locked again


def test_hardware_with_packages_of_its_own_decides(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_index(monkeypatch)
    asked = asked_of(monkeypatch, answered)
    for listed, expected in (
        ("rich", ["cpu"]),
        ("rich==14", ["cuda", "mps"]),
        ("xformers", ["cuda"]),
        ("flash_attn", ["cuda"]),
    ):
        asked.clear()
        FILE.unlink(missing_ok=True)
        LIST.write_text(listed)
        envbuilder("init", "--json")
        assert asked == expected


@pytest.mark.parametrize(
    "failure", [refused(502), requests.ConnectionError("reset"), requests.Timeout("late")]
)
def test_an_index_that_fails_midway_excludes_no_package(
    report: Report, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    an_index(monkeypatch, rich=b"<a href=rich-1-py3-none-any.whl></a>", einops=failure)
    # One after the other: a server that is not reached is asked no more.
    monkeypatch.setattr(upstream, "PARALLEL", 1)
    questions(monkeypatch, answered(), absent=("gone", "einops"))
    LIST.write_text("rich\ngone\neinops\n")
    result = report()
    excluded = [line for line in active() if line.startswith("exclude")]
    assert excluded == ["exclude: [gone]  # no index has them"]
    (unsure,) = (line for line in result["needs_you"] if line.startswith("einops: "))
    assert "one index fails, so it is unknown whether the package exists (index.example: " in unsure


def test_a_file_that_cannot_be_read_is_left_out(report: Report) -> None:
    lay(
        {"pyproject.toml": "[project\n", "setup.cfg": "[options]\ninstall_requires = rich\n"},
    )
    assert report("--offline")["needs_you"][0].startswith("pyproject.toml:1: not valid TOML")
    assert active()[:2] == ["requirements_from:", "  - setup.cfg"]


def test_if_no_file_can_be_read_nothing_is_written(envbuilder: Command) -> None:
    lay({"pyproject.toml": "[project\n", "requirements.txt": "a b c\n"})
    err = envbuilder("init", "--offline", code=2).err
    assert not FILE.exists()
    assert "pyproject.toml:1: not valid TOML" in err
    assert "requirements.txt:1: a b c" in err


def test_an_index_that_takes_its_time_leaves_the_rest_to_lock(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    LIST.write_text("rich\n")
    an_index(monkeypatch)
    monkeypatch.setattr(init, "_PATIENCE", 0.05)
    monkeypatch.setattr(init, "_resolvable", lambda *_: threading.Event().wait(60))
    monkeypatch.setattr(init, "_locked", lambda *_: threading.Event().wait(60))
    printed = envbuilder("init")
    assert "the package index is slow, so only a part was checked" in printed.err
    assert "nothing is locked yet" in printed.err
    assert "envbuilder lock" in printed.out
    assert "requirements.txt" in FILE.read_text()
