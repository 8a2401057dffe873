"""Native environments with a fault in them, and the commands that verify them.

A fault is injected into an environment, never into the check: one small module is imported when the
interpreter starts, or as soon as the framework is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.builds import payload as pack
from envbuilder.core import resources
from envbuilder.payload.training import dataset
from tests.support import warm

STARTER = Path(__file__).with_name("sabotage_starter.py")
ONE_EPOCH = ("--quick", "--epochs", "1")
COMMAND = (sys.executable, "-m", "envbuilder")

Words = tuple[str | Path, ...]


class Overlay:
    """A native environment of its own with the files of another one, and a fault.

    Files are shared by hard links: what is imported from elsewhere is foreign, and would fail.
    `modules` are the folders of faults, looked through in this order.
    """

    def __init__(self, folder: Path, prefix: Path, modules: tuple[Path, ...]) -> None:
        self.modules = modules
        self.prefix = folder
        shutil.copytree(prefix, folder, copy_function=os.link, symlinks=True, dirs_exist_ok=True)
        self.site = next(folder.glob("lib/python3.*/site-packages"))
        self.python = folder / "bin/python"

    def at_start(self, fault: str) -> Overlay:
        """Import a module of `sabotage/` when the interpreter starts."""
        return self._inject("sabotage_fault", fault)

    def after(self, framework: str, *faults: str) -> Overlay:
        """Import modules of `sabotage/` as soon as a framework has been imported."""
        shutil.copy(STARTER, self.site / "sabotage_starter.py")
        (self.site / "sabotage.framework").write_text(framework)
        return self._inject("sabotage_starter", *faults)

    def after_torch(self, *faults: str) -> Overlay:
        """Import modules of `sabotage/` as soon as torch has been imported."""
        return self.after("torch", *faults)

    def with_node(self, fault: str) -> Overlay:
        """Import a module of `sabotage/` when the interpreter starts, before any other fault."""
        shutil.copy(self._module(fault), self.site / "sabotage_node.py")
        (self.site / "node.pth").write_text("import sabotage_node\n")
        return self

    def package(self, name: str, fault: str) -> Overlay:
        """Put a module of `sabotage/` in a package's place."""
        shutil.copy(self._module(fault), self.site / f"{name}.py")
        return self

    def _module(self, fault: str) -> Path:
        return next(file for folder in self.modules if (file := folder / f"{fault}.py").exists())

    def _inject(self, first: str, *faults: str) -> Overlay:
        for fault in faults:
            shutil.copy(self._module(fault), self.site / f"sabotage_{fault}.py")
        imports = (f"import sabotage_{fault}\n" for fault in faults)
        (self.site / "sabotage_fault.py").write_text("".join(imports))
        (self.site / "sabotage.pth").write_text(f"import {first}\n")
        return self


@dataclass(frozen=True)
class Verdict:
    """How a command ended and what it reported."""

    code: int
    report: dict[str, Any]
    stderr: str

    def check(self, name: str) -> dict[str, Any]:
        checks = {check["name"]: check for check in self.report["checks"]}
        assert name in checks, self.report["reasons"]
        return checks[name]

    def require_failed(self, check: str, words: str = "") -> str:
        """The verdict is "failed" with exit code 5, and this check names this cause: its detail."""
        assert (self.code, self.report["status"]) == (5, "failed"), self.report
        found = self.check(check)
        assert found["status"] == "failed", self.report["reasons"]
        assert words in found["detail"], found["detail"]
        assert any(words in reason for reason in self.report["reasons"])
        return str(found["detail"])


class Bench:
    """The commands, in a working folder of their own."""

    def __init__(
        self,
        folder: Path,
        prefix: Path,
        environment: dict[str, str],
        kept: Path,
        *modules: Path,
    ) -> None:
        self.folder, self.prefix, self.kept, self.modules = folder, prefix, kept, modules
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            **environment,
        }

    @property
    def overlay(self) -> Overlay:
        """A new environment without a fault."""
        return Overlay(self.folder / "overlay", self.prefix, self.modules)

    def run(self, *command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        given = {"cwd": self.folder, "env": self.environment, **options}
        return subprocess.run(words, capture_output=True, text=True, check=False, **given)

    def envbuilder(self, *arguments: str | Path, command: Words = COMMAND) -> Verdict:
        """`envbuilder verify ARGUMENTS --json` as a process."""
        done = self.run(*command, "verify", *arguments, "--json")
        report = json.loads(done.stdout) if done.stdout else {}
        return Verdict(done.returncode, report, done.stderr)

    def verify(
        self,
        overlay: Overlay,
        *options: str | Path,
        profile: str = "cpu",
        command: Words = (sys.executable, warm.__file__),
    ) -> Verdict:
        """Verify an overlay quickly, through the command line."""
        which = ("--python", overlay.python, "--profile", profile, *ONE_EPOCH)
        places = (self.kept, self.prefix, overlay.prefix)
        self.environment[warm.PLACES] = os.pathsep.join(map(str, places))
        return self.envbuilder(*which, *options, command=command)

    def payload(self, overlay: Overlay, *options: str | Path) -> Verdict:
        """Run the payload alone in an overlay; it records its first step, which nobody repeats."""
        pyz = self.folder / "payload.pyz"
        record = self.folder / "record"
        pyz.write_bytes(pack.payload_pyz())
        record.mkdir(exist_ok=True)
        recorded = ("--record", record, "--record-steps", "0")
        python = (overlay.python, "-X", f"pycache_prefix={self.bytecode(overlay)}")
        done = self.run(*python, pyz, "verify", *options, *recorded)
        last = json.loads(done.stdout.splitlines()[-1])
        return Verdict(done.returncode, last.get("report", {}), done.stderr)

    def bytecode(self, overlay: Overlay) -> Path:
        """A new folder with the kept bytecode."""
        folder = self.folder / "bytecode"
        warm.lay(folder, self.kept, self.prefix, overlay.prefix)
        return folder


def few_digits(folder: Path) -> Words:
    """Options for a payload that trains on 320 digits: seconds, and too few to learn from."""
    for stem in dataset.MNIST_SHA256:
        found = dataset.read(
            resources.mnist_subset_dir() / f"{stem}.gz", 3 if "images" in stem else 1
        )
        count = 320 if stem.startswith("train") else 100
        size = len(found.content) // found.shape[0]
        shape = (count, *found.shape[1:])
        header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        (folder / stem).write_bytes(header + found.content[: count * size])
    return (*ONE_EPOCH, "--data", folder)
