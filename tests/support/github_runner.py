"""Run a workflow as GitHub does, job by job and step by step, each job in a clean container.

The containers have no network: what jobs install is in a folder, which pip is told of by variables,
as a self-hosted runner may have them. GitHub's own actions are operations on local folders; an
action, a name in an expression or an event that is not known here is an error. actionlint checks
the keys.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from tests.conftest import succeeded

HOME = "/home/runner"
WORKSPACE = f"{HOME}/work"
PACKAGES = "/packages"
VARIABLES = {
    "CI": "true",
    "GITHUB_ACTIONS": "true",
    "GITHUB_PATH": f"{HOME}/path",
    "GITHUB_STEP_SUMMARY": f"{HOME}/summary",
    "GITHUB_WORKSPACE": WORKSPACE,
    "HOME": HOME,
    "PIP_FIND_LINKS": PACKAGES,
    "PIP_NO_INDEX": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait for each other take minutes on busy machines
    "PIP_NO_COMPILE": "1",  # it would take half of pip's time
}
PUSH = "push"
PULL = "pull_request"
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not "}
_EXPRESSIONS = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True)


@dataclass
class Run:
    """What came of the jobs."""

    results: dict[str, str] = field(default_factory=dict)
    """Job → success, failure or skipped."""
    failed: list[str] = field(default_factory=list)
    """The scripts that failed."""
    log: str = ""
    """All scripts, and what they printed."""
    summary: str = ""


def value(expression: str, context: Mapping[str, Any]) -> Any:
    """Return the value of one of GitHub's expressions."""
    python = re.sub(r"&&|\|\||!(?!=)", lambda match: _OPERATORS[match[0]], expression)
    return _EXPRESSIONS.compile_expression(python.strip(), undefined_to_none=False)(**context)


def filled(text: str, context: Mapping[str, Any]) -> str:
    """Return a text with the values of its expressions."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(value(match[1], context)), text)


def holds(condition: str, context: Mapping[str, Any]) -> bool:
    """Return whether an `if` holds. Unless it names a status, nothing may have failed before."""
    text = condition.strip().removeprefix("${{").removesuffix("}}")
    return bool(value(text, context)) and ("cancelled()" in text or context["success"]())


class Runner:
    """Runs workflows; its caches outlive a run."""

    def __init__(
        self, image: str, folder: Path, packages: Path, pythons: Mapping[str, str]
    ) -> None:
        """`pythons`: what `python-version` may name → a program of the image."""
        self.image, self.folder, self.packages, self.pythons = image, folder, packages, pythons
        self.caches: dict[str, Path] = {}
        """Key → entry, of which none is ever overwritten; the last is the newest."""
        self.artifacts = folder / "artifacts"
        self.runs = 0

    def run(
        self,
        workflow: Mapping[str, Any],
        commit: Path,
        event: str,
        *,
        passed: Collection[str] = (),
        left: Path | None = None,
    ) -> Run:
        """Run the jobs on the files in `commit`, for a push to main or a pull request into it.

        Those that have `passed` are not run again, and have uploaded what they did: "re-run failed
        jobs". `left` is moved into the next workspace: what an earlier job left there.
        """
        run = Run(results=dict.fromkeys(passed, "success"))
        self.runs += 1
        for name, job in workflow["jobs"].items():
            if name in passed:
                continue
            shutil.rmtree(self.artifacts / name, ignore_errors=True)
            needs = [need for need in [job.get("needs")] if need]
            context = {
                "github": self._github(event),
                "needs": {need: {"result": run.results[need]} for need in needs},
                "cancelled": lambda: False,
                "success": lambda needs=needs: all(run.results[n] == "success" for n in needs),
            }
            if not holds(job.get("if", "success()"), context):
                run.results[name] = "skipped"
                continue
            good = True
            rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
            for number, row in enumerate(rows):
                folder = self.folder / f"{self.runs}-{name}-{number}"
                folder.mkdir()
                if left is None:
                    (folder / "work").mkdir()
                else:
                    left.rename(folder / "work")
                    left = None
                good &= _Job(self, name, job, folder, {**context, "matrix": row}, run).do(commit)
            run.results[name] = "success" if good else "failure"
        return run

    def keep_python(self, job: str, program: str) -> None:
        """Give later jobs the Python that a job has left, as a runner of one's own does."""
        shutil.rmtree(self.folder / program)
        (self.folder / job / "python").rename(self.folder / program)

    def _github(self, event: str) -> dict[str, str]:
        pushed = event == PUSH
        return {
            "workspace": WORKSPACE,
            "event_name": event,
            "ref_name": "main" if pushed else "7/merge",
            "base_ref": "" if pushed else "main",
            "run_id": str(self.runs),
            "run_attempt": "1",
        }

    def save(self, key: str, paths: list[str], workspace: Path) -> None:
        """Keep those of some folders that exist; nothing if none does, or if the key is taken."""
        existing = [path for path in paths if (workspace / path).exists()]
        if key not in self.caches and existing:
            self.caches[key] = self.folder / f"cache-{len(self.caches)}"
            for path in existing:
                _link(workspace / path, self.caches[key] / path)

    def restore(self, inputs: Mapping[str, str], workspace: Path) -> str:
        """Restore the entry with the key, else the newest with a prefix; return a log line."""
        keys = (inputs["key"], *_lines(inputs.get("restore-keys", "")))
        for number, key in enumerate(keys):
            for saved in reversed(self.caches):
                if saved == key or (number and saved.startswith(key)):
                    _link(self.caches[saved], workspace)
                    return f"cache {keys[0]}: {saved}\n"
        return f"cache {keys[0]}: none\n"


class _Job:
    """A job under way, in a container whose user has a folder of this machine as home."""

    def __init__(
        self,
        runner: Runner,
        name: str,
        job: Mapping[str, Any],
        folder: Path,
        context: Mapping[str, Any],
        run: Run,
    ) -> None:
        self.runner, self.name, self.job, self.folder, self.run = runner, name, job, folder, run
        self.workspace = folder / "work"
        self.good = True
        self.path = "/usr/local/bin:/usr/bin:/bin"
        self.kept: list[tuple[str, list[str]]] = []
        """Keys and folders that are saved in the end, if all is well."""
        hashed = {"success": lambda: self.good, "hashFiles": self._sha256}
        self.context = {**context, **hashed}

    def _sha256(self, *paths: str) -> str:
        contents = [(self.workspace / path).read_bytes() for path in dict.fromkeys(paths)]
        return hashlib.sha256(b"".join(contents)).hexdigest()

    def do(self, commit: Path) -> bool:
        """Do all steps, and what actions do after the last; return whether all is well."""
        assert filled(self.job["runs-on"], self.context) == "ubuntu-24.04"
        volumes = (f"{self.folder}:{HOME}", f"{self.runner.packages}:{PACKAGES}:ro")
        started = succeeded(
            subprocess.run(
                [
                    "docker",
                    "run",
                    "--rm",
                    "--detach",
                    "--init",
                    "--network",
                    "none",
                    "--user",
                    f"{os.getuid()}:{os.getgid()}",
                    *(word for volume in volumes for word in ("--volume", volume)),
                    self.runner.image,
                    "sleep",
                    "3600",
                ],
                capture_output=True,
                text=True,
                check=False,
            )
        )
        self.container = started.stdout.strip()
        try:
            for step in self.job["steps"]:
                if holds(step.get("if", "success()"), self.context):
                    if "uses" in step:
                        given = step["with"].items()
                        inputs = {name: filled(text, self.context) for name, text in given}
                        self._act(step["uses"], inputs, commit)
                    else:
                        self._script(step["run"], step.get("env", {}))
        finally:
            subprocess.run(
                ["docker", "rm", "--force", self.container], capture_output=True, check=True
            )
        for key, paths in self.kept if self.good else ():
            self.runner.save(key, paths, self.workspace)
        return self.good

    def _execute(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the workspace for as long as the job may take."""
        stated = [f"--env={name}={text}" for name, text in {**VARIABLES, **variables}.items()]
        limit = ("timeout", f"{self.job['timeout-minutes']}m")
        return subprocess.run(
            ["docker", "exec", "--workdir", WORKSPACE, *stated, self.container, *limit, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def _act(self, action: str, inputs: Mapping[str, str], commit: Path) -> None:
        paths = _lines(inputs.get("path", ""))
        match action.partition("@")[0]:
            case "actions/checkout":
                shutil.copytree(commit, self.workspace, dirs_exist_ok=True)
            case "actions/setup-python":
                self._python(self.runner.pythons[inputs["python-version"]])
            case "actions/cache":
                self.run.log += self.runner.restore(inputs, self.workspace)
                self.kept.append((inputs["key"], paths))
            case "actions/cache/restore":
                self.run.log += self.runner.restore(inputs, self.workspace)
            case "actions/cache/save":
                self.runner.save(inputs["key"], paths, self.workspace)
            case "actions/upload-artifact":
                folder = self.runner.artifacts / self.name / inputs["name"]
                for path in paths:
                    if (self.workspace / path).is_file():
                        folder.mkdir(parents=True, exist_ok=True)
                        shutil.copy(self.workspace / path, folder)
            case "actions/download-artifact":
                for artifact in sorted(self.runner.artifacts.glob("*/*")):
                    if fnmatch.fnmatchcase(artifact.name, inputs["pattern"]):
                        into = self.workspace / inputs["path"]
                        shutil.copytree(artifact, into, dirs_exist_ok=True)
            case _:
                raise AssertionError(f"uses: {action}")

    def _python(self, program: str) -> None:
        """Put a Python with pip first on PATH, as the action does."""
        made = self.runner.folder / program
        if not made.is_dir():
            succeeded(self._execute(program, "-m", "venv", f"{HOME}/python"))
            (self.folder / "python").rename(made)
        _link(made, self.folder / "python")  # pip, too, replaces files
        self.path = f"{HOME}/python/bin:{self.path}"

    def _script(self, script: str, variables: Mapping[str, str]) -> None:
        assert "${{" not in script, "an expression in a script is an injection"
        files = {name: self.folder / name for name in ("script", "path", "summary")}
        for name, path in files.items():
            path.write_text(script if name == "script" else "")
        stated = {**self.job.get("env", {}), **variables}
        values = {name: filled(text, self.context) for name, text in stated.items()}
        done = self._execute("bash", "-e", f"{HOME}/script", PATH=self.path, **values)
        self.run.log += f"$ {script}\n{done.stdout}"
        self.run.summary += files["summary"].read_text()
        if done.returncode != 0:
            self.good = False
            self.run.failed.append(script)
            self.run.log += f"(exit code {done.returncode})\n"
        for line in files["path"].read_text().splitlines():
            self.path = f"{line}:{self.path}"


def _link(source: Path, target: Path) -> None:
    """Copy as hard links: jobs may replace files, not write into them."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=os.link)


def _lines(text: str) -> list[str]:
    """Return the lines of an input that has several; all are plain paths in the workspace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        assert not Path(line).is_absolute(), lines
        assert not set(line) & set("*?[]!~"), lines
    return lines
