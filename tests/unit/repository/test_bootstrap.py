"""`bootstrap.py`, as far as it starts no programs."""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from pathlib import Path

import pytest

import bootstrap
from envbuilder.core import pip


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose `.venv` works, and where all installing succeeds."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "pyproject.toml").write_text("x")
    for name in bootstrap.SETS:
        (root / f"requirements/{name}.txt").write_text(name)
    venv = root / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").touch()
    monkeypatch.setattr(bootstrap, "ROOT", root)
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", venv / "bin/python")
    monkeypatch.setattr(bootstrap, "STAMP", venv / "envbuilder-setup")
    monkeypatch.setattr(bootstrap, "_quiet", lambda *command: 0)
    return root


@pytest.fixture
def installed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sets that were installed."""
    names: list[str] = []

    def pip(*arguments: object) -> tuple[int, str]:
        assert bootstrap.STAMP.read_text() == "" if bootstrap.STAMP.exists() else True
        names.extend(Path(str(a)).stem for a in arguments if str(a).endswith(".txt"))
        return 0, ""

    monkeypatch.setattr(bootstrap, "_pip", pip)
    return names


def test_a_second_run_installs_nothing(installed: list[str]) -> None:
    assert bootstrap._set_up("run") == bootstrap._set_up("run") == ""
    assert installed == ["run"]


def test_a_larger_set_holds_the_smaller_ones(installed: list[str]) -> None:
    for name in ("test", "run", "dev", "test", "run"):
        assert bootstrap._set_up(name) == ""
    assert installed == ["test", "dev"]


@pytest.mark.parametrize(
    "file", ["pyproject.toml", *(f"requirements/{s}.txt" for s in bootstrap.SETS)]
)
def test_a_changed_file_is_installed_again_and_so_is_the_old_one(
    checkout: Path, installed: list[str], file: str
) -> None:
    """Going back to an older commit must not leave the newer one's versions."""
    before = (checkout / file).read_text()
    assert bootstrap._set_up("run") == ""
    (checkout / file).write_text("changed")
    assert bootstrap._set_up("run") == ""
    (checkout / file).write_text(before)
    assert bootstrap._set_up("run") == ""
    assert installed == ["run"] * 3


def test_a_moved_checkout_is_installed_again(
    checkout: Path, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bootstrap._set_up("run") == ""
    moved = checkout.rename(checkout.with_name("moved"))
    monkeypatch.setattr(bootstrap, "ROOT", moved)
    monkeypatch.setattr(bootstrap, "STAMP", moved / ".venv/envbuilder-setup")
    assert bootstrap._set_up("run") == ""
    assert installed == ["run"] * 2


def test_after_a_failure_nothing_counts_as_installed(
    checkout: Path, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bootstrap._set_up("dev") == ""
    (checkout / "pyproject.toml").write_text("changed")
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "_pip", lambda *arguments: (1, "ERROR: x"))
        assert "requirements/run.txt: its message is above" in bootstrap._set_up("run")
    (checkout / "pyproject.toml").write_text("x")
    assert bootstrap._set_up("dev") == ""
    assert installed == ["dev", "dev"]


def test_a_missing_file_is_named(checkout: Path) -> None:
    (checkout / "requirements/run.txt").unlink()
    assert "run.txt: not found" in bootstrap._set_up("run")


def test_an_environment_of_others_is_not_removed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_quiet", lambda *command: 1)
    assert "remove" in bootstrap._set_up("run")
    assert (checkout / ".venv/bin/python").exists()


@pytest.mark.parametrize(
    ("messages", "advice"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE …", "not the one that is locked"),
        ("ERROR: … [Errno 28] No space left on device", "the disk is full"),
        ("WARNING: Retrying (Retry(total=4, connect=None", "cannot be reached"),
        ("… that satisfies the requirement a==1 (from versions: none)", "cannot be reached"),
        ("… (from versions: 0.9)\nERROR: No matching distribution found", "has no wheel of that"),
        ("ERROR: something that pip has not said yet", "its message is above"),
    ],
)
def test_what_to_do_about_pips_messages(messages: str, advice: str) -> None:
    assert advice in bootstrap._advice(messages)


def test_of_pips_settings_only_those_of_places_hold(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    own = checkout / "pip.conf"
    own.write_text(
        "[global]\nextra-index-url =\n    https://a/s\n    https://b/s\nquiet = 3\n"
        "[install]\ntarget = /x\nconstraint = /c\nfind-links = /wheels\n"
    )
    monkeypatch.setattr(pip, "files", lambda environ, prefix: (own,))
    spoiling = ("USER", "TARGET", "PREFIX", "PYTHON", "CONSTRAINT", "NO_BINARY", "DRY_RUN", "X")
    for name in spoiling:
        monkeypatch.setenv(f"PIP_{name}", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "180")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    environment = bootstrap._pip_environment()
    assert {k: v for k, v in environment.items() if k.startswith("PIP_")} == {
        "PIP_INDEX_URL": "https://mirror/simple",
        "PIP_EXTRA_INDEX_URL": "\nhttps://a/s\nhttps://b/s",
        "PIP_FIND_LINKS": "/wheels",
        "PIP_DEFAULT_TIMEOUT": "180",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    assert environment["HTTPS_PROXY"] == "http://proxy"


def test_the_callers_python_settings_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "PYTHON_GIL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PYENV_VERSION", "3.11")
    bootstrap._drop_python_settings()
    assert not [name for name in os.environ if name.startswith("PYTHON")]
    assert os.environ["PYENV_VERSION"] == "3.11"


@pytest.mark.parametrize(
    ("version", "there", "found"),
    [
        ((3, 9), {"3.11", "3.13", "3.16"}, "3.13"),
        ((3, 9), {"3.16", "3.17"}, "3.17"),
        ((3, 9), {"3.10"}, ""),
        ((3, 16), {"3.12", "3.17"}, "3.12"),
        ((3, 16), {"3.15", "3.17"}, ""),
    ],
)
def test_pythons_that_the_lock_is_for_come_first(
    version: tuple[int, int], there: set[str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_quiet", lambda *command: 0)
    monkeypatch.setattr(
        bootstrap.shutil,
        "which",
        lambda name: name if name.removeprefix("python") in there else None,
    )
    assert bootstrap._other_python(version) == (f"python{found}" if found else "")


@pytest.mark.parametrize("arguments", [["dev", "setup"], ["setup", "all"], ["setup", "run", "dev"]])
def test_wrong_arguments_are_usage_errors(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main(arguments) == 2
    assert "python3 bootstrap.py" in capsys.readouterr().err


def test_a_failure_is_exit_code_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "_set_up", lambda requirement_set: f"{requirement_set}: broken")
    assert bootstrap.main(["setup", "dev"]) == bootstrap.main(["test"]) == bootstrap.main([]) == 4
    assert (
        capsys.readouterr().err == "error: dev: broken\nerror: test: broken\nerror: run: broken\n"
    )


def test_an_old_python_can_read_it(repository: Path) -> None:
    """It must get as far as starting a newer one."""
    source = (repository / "bootstrap.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 6))
    annotations = [
        annotation
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for annotation in (node.returns, *(argument.annotation for argument in node.args.args))
        if annotation is not None
    ]
    # Evaluated where they are not quoted; `list[str]` is no expression of Python 3.6.
    for a in annotations:
        assert isinstance(a, ast.Name | ast.Constant)
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [n for n in top if isinstance(n, ast.ImportFrom) and n.module == "__future__"]


def test_its_pythons_are_those_of_the_project(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    minors = [int(c.rpartition(".")[2]) for c in project["classifiers"] if ":: 3." in c]
    assert list(range(bootstrap.OLDEST[1], bootstrap.NEWEST[1] + 1)) == sorted(minors)
    assert project["requires-python"] == ">={}.{}".format(*bootstrap.OLDEST)
    assert sys.version_info[:2] >= bootstrap.OLDEST
