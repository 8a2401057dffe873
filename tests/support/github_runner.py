"""Run a workflow as GitHub does, job by job and step by step, each job in a clean container.

The containers have no network: what jobs install is in a folder, which pip is told of by variables,
as a self-hosted runner may have them. GitHub's own actions are operations on local folders.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tests.support.github_expressions import UnknownWorkflowError, filled, holds
from tests.support.github_services import Artifacts, Caches, inside, lines

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tests.support.github_workflow import Job, Step, Workflow

HOME = "/home/runner"
WORKSPACE = f"{HOME}/work"
PACKAGES = "/packages"
LABEL = "ubuntu-24.04"
"""The runner that the containers stand for."""
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
Result = Literal["success", "failure", "skipped"]


@dataclass(frozen=True)
class Event:
    """What a run is for."""

    name: Literal["push", "pull_request"]
    branch: str
    """The one that was pushed to, or that a pull request is merged into."""


@dataclass
class Run:
    """What came of the jobs."""

    results: dict[str, Result] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    """The scripts that failed."""
    log: str = ""
    """All scripts, and what they printed."""
    summary: str = ""


class Machine:
    """A container whose user has a folder of this machine as home."""

    def __init__(self, image: str, folder: Path, packages: Path) -> None:
        done = subprocess.run(
            [
                *("docker", "run", "--rm", "--detach", "--init", "--network", "none"),
                *("--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{folder}:{HOME}"),
                *("--volume", f"{packages}:{PACKAGES}:ro", image, "sleep", "3600"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()

    def execute(
        self, *argv: str, variables: Mapping[str, str], seconds: int
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the workspace for so many seconds at most."""
        stated = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        return subprocess.run(
            [
                *("docker", "exec", "--workdir", WORKSPACE, *stated, self.id),
                *("timeout", str(seconds), *argv),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def remove(self) -> None:
        subprocess.run(["docker", "rm", "--force", self.id], capture_output=True, check=True)


class Runner:
    """Runs workflows; its caches outlive a run."""

    def __init__(
        self, image: str, folder: Path, packages: Path, pythons: Mapping[str, str]
    ) -> None:
        """`pythons`: what `python-version` may ask for → a program of the image."""
        self.image, self.folder, self.packages, self.pythons = image, folder, packages, pythons
        self.caches = Caches(folder / "caches")
        self.artifacts = Artifacts(folder / "artifacts")
        self.runs = 0

    def run(
        self,
        workflow: Workflow,
        commit: Path,
        event: Event,
        *,
        passed: Collection[str] = (),
        left: Path | None = None,
    ) -> Run:
        """Run the jobs on the files in `commit`.

        Those that have `passed` are not run again, and have uploaded what they did: "re-run failed
        jobs". `left` is moved into the next workspace: what an earlier job left there.
        """
        run = Run(results=dict.fromkeys(passed, "success"))
        if event.name == "push" and event.branch not in workflow.branches:
            return run
        self.runs += 1
        for name, job in workflow.jobs.items():
            if name not in passed:
                self.artifacts.forget(name)
                context = self._context(workflow, job, event, run)
                run.results[name] = self._result(name, job, context, commit, run, left)
                left = None
        return run

    def _context(self, workflow: Workflow, job: Job, event: Event, run: Run) -> dict[str, Any]:
        """What the expressions of a job may name."""
        pushed = event.name == "push"
        needs: dict[str, dict[str, Result]] = {
            name: {"result": run.results[name]} for name in job.needs
        }
        context: dict[str, Any] = {
            "github": {
                "workflow": workflow.name,
                "workspace": WORKSPACE,
                "event_name": event.name,
                "ref": f"refs/heads/{event.branch}" if pushed else "refs/pull/7/merge",
                "ref_name": event.branch if pushed else "7/merge",
                "base_ref": "" if pushed else event.branch,
                "run_id": str(self.runs),
                "run_attempt": "1",
            },
            "needs": needs,
            "cancelled": lambda: False,
            "success": lambda: all(need["result"] == "success" for need in needs.values()),
        }
        for text in workflow.expressions:
            filled(text, context)
        return context

    def _result(
        self,
        name: str,
        job: Job,
        context: Mapping[str, Any],
        commit: Path,
        run: Run,
        left: Path | None,
    ) -> Result:
        """Run a job once for each row, and return what came of it."""
        if not holds(job.condition, context):
            return "skipped"
        good = True
        for number, row in enumerate(job.rows):
            folder = self.folder / f"{self.runs}-{name}-{number}"
            folder.mkdir()
            if left is None:
                (folder / "work").mkdir()
            else:
                left.rename(folder / "work")
            machine = Machine(self.image, folder, self.packages)
            try:
                session = _Session(self, name, job, folder, machine, {**context, "matrix": row})
                good &= session.complete(commit, run)
            finally:
                machine.remove()
        return "success" if good else "failure"


class _Session:
    """A job under way."""

    def __init__(
        self,
        runner: Runner,
        name: str,
        job: Job,
        folder: Path,
        machine: Machine,
        context: Mapping[str, Any],
    ) -> None:
        self.runner, self.name, self.job, self.folder = runner, name, job, folder
        self.machine, self.workspace = machine, folder / "work"
        self.good, self.path = True, "/usr/local/bin:/usr/bin:/bin"
        self.caches: list[tuple[str, tuple[str, ...]]] = []
        """Keys and folders that are saved in the end, if all is well."""
        self.context = {**context, "success": lambda: self.good, "hashFiles": self._sha256}

    def _sha256(self, *paths: str) -> str:
        digest = hashlib.sha256()
        for path in dict.fromkeys(paths):
            digest.update(hashlib.sha256((self.workspace / path).read_bytes()).digest())
        return digest.hexdigest()

    def complete(self, commit: Path, run: Run) -> bool:
        """Do all steps, and what actions do after the last; return whether all is well."""
        label = filled(self.job.label, self.context)
        if label != LABEL:
            raise UnknownWorkflowError(f"runs-on: {label}")
        for step in self.job.steps:
            if holds(step.condition, self.context):
                inputs = {name: filled(text, self.context) for name, text in step.inputs.items()}
                if step.action:
                    self._act(step.action, inputs, commit, run)
                else:
                    self._script(step, run)
        if self.good:
            for key, paths in self.caches:
                self.runner.caches.save(key, paths, self.workspace)
        return self.good

    def _act(self, action: str, inputs: Mapping[str, str], commit: Path, run: Run) -> None:
        match action:
            case "actions/checkout@v5":
                shutil.copytree(commit, self.workspace, dirs_exist_ok=True)
            case "actions/setup-python@v6":
                self._python(inputs["python-version"])
            case "actions/cache@v4":
                run.log += self._restore(inputs)
                self.caches.append((inputs["key"], inside(inputs["path"])))
            case "actions/cache/restore@v4":
                run.log += self._restore(inputs)
            case "actions/cache/save@v4":
                self.runner.caches.save(inputs["key"], inside(inputs["path"]), self.workspace)
            case "actions/upload-artifact@v5":
                paths = inside(inputs["path"])
                self.runner.artifacts.upload(self.name, inputs["name"], paths, self.workspace)
            case "actions/download-artifact@v5":
                (path,) = inside(inputs["path"])
                self.runner.artifacts.download(inputs["pattern"], self.workspace / path)
            case _:
                raise UnknownWorkflowError(f"uses: {action}")

    def _python(self, version: str) -> None:
        """Put a Python with pip first on PATH, as the action does."""
        program = self.runner.pythons.get(version)
        if program is None:
            raise UnknownWorkflowError(f"python-version: {version}")
        made = self.runner.folder / program
        if not made.is_dir():
            argv = (program, "-m", "venv", f"{HOME}/python")
            done = self.machine.execute(*argv, variables=VARIABLES, seconds=120)
            assert done.returncode == 0, done.stdout
            (self.folder / "python").rename(made)
        shutil.copytree(made, self.folder / "python", symlinks=True)
        self.path = f"{HOME}/python/bin:{self.path}"

    def _restore(self, inputs: Mapping[str, str]) -> str:
        """Restore a cache if there is one; return a line for the log."""
        prefixes = lines(inputs.get("restore-keys", ""))
        found = self.runner.caches.find(inputs["key"], prefixes)
        if found is not None:
            self.runner.caches.restore(found, self.workspace)
        return f"cache {inputs['key']}: {found or 'none'}\n"

    def _script(self, step: Step, run: Run) -> None:
        files = {name: self.folder / name for name in ("script", "path", "summary")}
        for path in files.values():
            path.write_text("")
        files["script"].write_text(step.script)
        stated = {**self.job.variables, **step.variables}
        variables = {name: filled(text, self.context) for name, text in stated.items()}
        done = self.machine.execute(
            *("bash", "-e", f"{HOME}/script"),
            variables={**VARIABLES, "PATH": self.path, **variables},
            seconds=self.job.minutes * 60,
        )
        run.log += f"$ {step.script}\n{done.stdout}"
        run.summary += files["summary"].read_text()
        if done.returncode != 0:
            self.good = False
            run.failed.append(step.script)
            run.log += f"(exit code {done.returncode})\n"
        for line in files["path"].read_text().splitlines():
            self.path = f"{line}:{self.path}"
