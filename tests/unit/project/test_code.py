"""A repository's own code: what it imports, and which of its files is its program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from envbuilder.project import code, names, repository
from tests.support.repositories import lay, notebook

GUARD = 'def main(): ...\n\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("files", "shown", "expected"),
    [
        ({}, (), ()),
        ({"a.py": GUARD, "test_a.py": GUARD, "setup.py": "", "conftest.py": ""}, (), ("a.py",)),
        ({"train.py": "", "evaluate.py": GUARD, "sample.py": GUARD}, (), ("train.py",)),
        ({"thing/__main__.py": "", "main.py": GUARD}, (), ("main.py",)),
        ({"a.py": GUARD, "b.py": GUARD}, (), ()),
        ({"a.py": GUARD, "b.py": GUARD}, (("gone.py",), ("b.py",)), ("b.py",)),
        ({"download_models.py": GUARD, "prepare_data.py": ""}, (("download_models.py",),), ()),
        ({"a/make_x.py": "", "go.py": ""}, (("-m", "a.make_x"),), ("go.py",)),
        ({"a/run/go.py": "", "b.py": ""}, (("-m", "venv"), ("-m", "a.run.go")), ("-m", "a.run.go")),
        ({"thing/__main__.py": "", "thing/model.py": ""}, (), ("-m", "thing")),
    ],
)
def test_the_program(
    tmp_path: Path,
    files: dict[str, str],
    shown: tuple[tuple[str, ...], ...],
    expected: tuple[str, ...],
) -> None:
    lay(tmp_path, files)
    found = [*repository.files(tmp_path)]
    assert code.program_arguments(tmp_path, found, shown) == expected


def imported(folder: Path, *programs: Sequence[str], lists: Sequence[str] = ()) -> dict[str, str]:
    """Return the modules that a repository's code imports → the file, with ! for those at start."""
    files = [*repository.files(folder)]
    uses = code.imports(folder, files, programs, lists)
    return {name: "!" * use.at_start + use.file for name, use in uses.items()}


def test_imports_of_others_without_the_standard_library_and_its_own(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import os, cv2\nfrom lib.nets import x\nfrom . import y\nimport helper\n",
            "lib/nets.py": "def f():\n    import einops.layers, cv2\n",
            "tools/helper.py": "from yaml import safe_load\n",
            "tests/test_x.py": "import pytest\n",
            "lib/nets_test.py": "import pytest\n",
            "documentation/show.py": "import openvino\n",
            "noxfile.py": "import nox\n",
            "old.py": "print 'two'\nimport six\n",
            "deep.py": f"x = {'(' * 5000}1{')' * 5000}\n",
            "nul.py": "import nul\0\n",
        },
    )
    found = imported(tmp_path)
    assert next(iter(found)) == "cv2"
    assert found == {"cv2": "!train.py", "einops": "lib/nets.py", "yaml": "tools/helper.py"}


def test_what_a_program_cannot_start_without(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import a1, pkg.sub.x\nfrom pkg import net\nif True:\n    import later\n"
            "try:\n    import maybe\nexcept ImportError:\n    pass\n",
            "pkg/__init__.py": "import a2\n",
            "pkg/net.py": "from .blocks import b\nfrom ..top import c\n",
            "pkg/blocks.py": "import a3, a1\n",
            "pkg/sub/x.py": "import a4\n",
            "top.py": "import a5\n",
            "pkg/unused.py": "import b1\n",
            "src/thing/go.py": "from thing import rest\n",
            "src/thing/rest.py": "import a6\n",
            "examples/show.py": "import b2, a1\n",
            "plot.ipynb": notebook("import b3"),
        },
    )
    found = imported(tmp_path, ("-m", "src.thing.go"))
    assert {name: file for name, file in found.items() if file[0] == "!"} == {
        "a1": "!train.py",
        "a2": "!pkg/__init__.py",
        "a3": "!pkg/blocks.py",
        "a4": "!pkg/sub/x.py",
        "a5": "!top.py",
        "a6": "!src/thing/rest.py",
    }
    assert {*found} >= {"b1", "b2", "b3", "later", "maybe"}


def test_the_module_of_a_command_is_a_program(tmp_path: Path) -> None:
    for start, other in (("cli.py", "server.py"), ("cli/__init__.py", "server/__init__.py")):
        for above in ("", "src/"):
            cli = f"{above}adder/{start}"
            server = f"{above}adder/{other}"
            files = {cli: "import fire\n", server: "import tritonclient\n"}
            found = imported(lay(tmp_path / above / start, files), ("-m", "adder.cli"))
            assert found == {"fire": f"!{cli}", "tritonclient": server}


def test_without_a_program_all_code_counts_but_examples_only_if_nothing_lists(
    tmp_path: Path,
) -> None:
    lay(
        tmp_path,
        {
            "lib/x.py": "import a1\n",
            "examples/x.py": "import a2\n",
            "plot.ipynb": notebook("import a3\n"),
        },
    )
    assert {*imported(tmp_path).values()} == {"!lib/x.py", "!examples/x.py", "!plot.ipynb"}
    assert imported(tmp_path, lists=["requirements.txt"]) == {
        "a1": "!lib/x.py",
        "a2": "examples/x.py",
        "a3": "plot.ipynb",
    }


def test_folders_with_lists_of_their_own_are_other_projects_unless_these_are_taken(
    tmp_path: Path,
) -> None:
    lay(
        tmp_path,
        {
            "train.py": "import a1, harness.x\n",
            "harness/setup.py": "",
            "src/requirements.txt": "",
            "src/x.py": "import a4\n",
            "harness/x.py": "import a2\n",
            "parts/seg/requirements.txt": "",
            "parts/seg/train.py": "import a3\n",
        },
    )
    assert imported(tmp_path, lists=["requirements.txt"]) == {
        "a1": "!train.py",
        "a4": "src/x.py",
    }
    assert {*imported(tmp_path, lists=["parts/seg/requirements.txt"])} == {"a1", "a3", "a4"}


def test_of_modules_that_many_packages_share_the_part_is_named(tmp_path: Path) -> None:
    text = (
        "from google.cloud import vision\n"
        "import google.protobuf.message, google.colab\nfrom azure.identity import Credential\n"
    )
    lay(tmp_path, {"train.py": text})
    assert {name: names.distribution_of_module(name) for name in imported(tmp_path)} == {
        "google.cloud": "",
        "google.protobuf": "protobuf",
        "azure.identity": "azure-identity",
    }


def test_hostile_code_is_read_in_no_time(tmp_path: Path) -> None:
    lay(tmp_path, dict.fromkeys(["a.py", "b.py", "c.py"], "import a1\n" * 26_000))
    assert imported(tmp_path) == {"a1": "!a.py"}


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {f"m{number}.py": f"import m{number + 1}, a{number}\n" for number in range(30)})
    monkeypatch.setattr(code, "_MOST_FILES", 10)
    assert len(imported(tmp_path)) == 10
