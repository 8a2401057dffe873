"""A repository that is a package, as after `git clone`: nothing is locked, and `run` is all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.integration.conftest import TINY, start
from tests.support.folders import names_in
from tests.support.projects import lay_profile

FILES = {
    "envbuilder.yaml": "profiles: [tiny]\nrequirements_from: [setup.py]\ninstall_project: true\n",
    "setup.py": """\
from setuptools import find_packages, setup
raise SystemExit("it ran")
setup(
    name="adder", version="0.3", packages=find_packages("lib"), package_dir={"": "lib"},
    install_requires=["wheel==0.45.1"],
    entry_points={"console_scripts": ["adder = adder.cli:main"]},
)
""",
    "lib/adder/__init__.py": "def add(a, b): return a + b\n",
    "lib/adder/cli.py": """\
from importlib.metadata import version
import sys, adder
def main():
    print(version("adder"), adder.add(*map(int, sys.argv[1:])))
    return 7
""",
    "projects/adder/run.py": "import adder, os; print(adder.add(2, 3), os.getcwd())\n",
    "tests/test_missing.py": "import sys; print('before', flush=True); import nosuch.part\n",
}


@pytest.mark.slow
def test_it_runs_from_any_folder(session_environment: dict[str, str], tmp_path: Path) -> None:
    lay_profile(tmp_path, "tiny", TINY)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(
        *words: str, below: str = ".", more: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        options = ("--profile", "tiny", "--backend", "venv", *more, "--")
        given = {**session_environment, **variables}
        return start(("run", *options, *words), given, cwd=tmp_path / below)

    for refused in (run("adder", CI="true"), run("adder", more=("--locked",))):
        assert refused.returncode == 125
        assert "Run:\n  envbuilder lock\n" in refused.stderr
    assert not (tmp_path / "envbuilder.lock").exists()

    done = run("adder", "1", "2")
    if done.returncode == 125:
        missing("network", f"the package index cannot be asked: {done.stderr[-400:]}")
    assert (done.returncode, done.stdout) == (7, "0.3 3\n"), done.stderr
    assert names_in(tmp_path / "envbuilder.lock") == {"default.tiny.json"}
    assert run("adder", "1", "2", more=("--locked",)).returncode == 7

    below = tmp_path / "tests"
    done = run("python", "../projects/adder/run.py", below="tests")
    assert done.stdout == f"5 {below}\n", done.stderr
    done = run("sh", "-c", "cd / && adder 4 5; python -c 'import adder.cli'", below="tests")
    assert (done.returncode, done.stdout) == (0, "0.3 9\n"), done.stderr

    done = run("python", "test_missing.py", below="tests")
    assert (done.returncode, done.stdout) == (1, "before\n")
    assert done.stderr.endswith(
        "ModuleNotFoundError: No module named 'nosuch'\n"
        "nosuch is in no requirement, and no table says which package brings it\n"
    )
    assert "Traceback" not in run("python", "-c", "raise SystemExit(3)").stderr
    # What the project says now is locked again, and what it no longer has is gone.
    (tmp_path / "setup.py").write_text("import setuptools\nsetuptools.setup(name='other')\n")
    done = run("adder", "1", "2")
    assert done.returncode == 127
    assert "adder: not found" in done.stderr
    assert "wheel-0.45.1" not in (tmp_path / "envbuilder.lock/default.tiny.json").read_text()
