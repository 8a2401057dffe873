"""What other tools say about this host, beside `envbuilder detect`: answer, time, processes, size.

    python benchmarks/peers.py [--rounds N] [--folder FOLDER]

Each tool gets a virtual environment below FOLDER (a temporary one unless given), from where pip is
configured to look. What is there is used again; envbuilder's is refreshed from this checkout.
Prints two Markdown tables; what they quote is kept in FOLDER/output:

1. this host: answer, median wall time of N alternating rounds (after one that is not counted),
   programs started (strace), packages and MB that a bare virtual environment does not have;
2. hosts of tests/data/hosts: envbuilder reads the tree; torchruntime, which asks `lspci`, gets
   one that lists the tree's PCI devices. The others ask torch and cannot be shown another host.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENVS = {
    "bare": (),
    "torchruntime": ("torchruntime==2.24.0",),
    "accelerate": ("accelerate==1.15.0", "torch==2.13.0"),
    "torch": ("torch==2.13.0",),
    "envbuilder": (str(ROOT),),
}
TREES = (
    "rtx4090",
    "p100",
    "driver470",
    "nouveau",
    "container-without-gpu",
    "nvidia-unlisted",
    "arc-b580",
    "intel-unvalidated",
    "iris-xe",
    "amd-gpu",
)
PATH = tuple(os.environ["PATH"].split(os.pathsep))


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One command line and which part of its output is about the accelerator."""

    venv: str
    command: str
    says: str


TORCHRUNTIME = Peer(
    venv="torchruntime",
    command="python -m torchruntime info",
    says=r"device_name='.+?'|No GPUs found!|(?<=PLATFORM ---\n).+",
)
DETECT = Peer(
    venv="envbuilder",
    command="envbuilder detect",
    says=r"^(?:\w+ )?GPU +.*(?:\n {8,}.*)*|^→ (?s:.*)",
)
PEERS = (
    TORCHRUNTIME,
    Peer(venv="accelerate", command="accelerate env", says=r"PyTorch accelerator: .*"),
    Peer(
        venv="torch",
        command="python -m torch.utils.collect_env",
        says=r"^(?:Is (?:CUDA|XPU) available|GPU models.*|Nvidia driver version): .*",
    ),
    DETECT,
)
JSON = replace(DETECT, command="envbuilder detect --json", says=r'"profile":.*?(?=,"fits")')


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Where commands run, and PATH after the peer's own programs."""

    label: str
    path: tuple[str, ...] = PATH


@dataclass(frozen=True)
class Bench:
    """Runs peers as if their environment below `folder` were activated."""

    folder: Path

    def environment(self, peer: Peer, there: Situation) -> dict[str, str]:
        """Variables: bytecode is not held back, and settings in the user's home are not read."""
        dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"}
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        kept["PATH"] = os.pathsep.join([str(self.folder / peer.venv / "bin"), *there.path])
        return {**kept, "HOME": str(self.folder), "COLUMNS": "200"}

    def answer(self, peer: Peer, there: Situation, *options: str) -> str:
        """Run once and keep the output; returns what it says, or how it failed."""
        done = run([*peer.command.split(), *options], self.environment(peer, there))
        name = re.sub(r"\W+", "-", f"{there.label} {peer.command}").strip("-")
        text = f"$ {peer.command}\n{done.stdout}\n[exit code {done.returncode}]\n{done.stderr}"
        (self.folder / "output" / f"{name}.txt").write_text(text)
        if done.returncode:
            return f"exit code {done.returncode}: {last_line(done)}"
        found = re.findall(peer.says, done.stdout, re.MULTILINE)
        return " · ".join(" ".join(part.split()) for part in found) or last_line(done)

    def started(self, peer: Peer, there: Situation) -> str:
        """How many processes beyond the first ran a program, and which, by strace."""
        if not shutil.which("strace"):
            return "not counted (no strace)"
        with tempfile.TemporaryDirectory() as traces:
            # One file a process (-ff): no call is split by another's.
            strace = ["strace", "-ff", "-qq", "-e", "trace=execve", "-o", f"{traces}/t"]
            done = run([*strace, *peer.command.split()], self.environment(peer, there))
            texts = [path.read_text() for path in Path(traces).iterdir()]
        if done.returncode:
            return f"not counted: {last_line(done)}"
        ran = [re.findall(r'^execve\("([^"]+)".* = 0$', text, re.MULTILINE) for text in texts]
        names = [Path(programs[-1]).name for programs in ran if programs]
        names.remove(peer.command.split()[0])
        counts = (f"{names.count(name)} {name}" for name in sorted(set(names)))
        return f"{len(names)}: {', '.join(counts)}" if names else "0"

    def needs(self, venv: str) -> str:
        """What an environment has beyond a bare one: MB (10⁶ bytes), packages, main versions."""
        packages = []
        size = []
        for prefix in (self.folder / "bare", self.folder / venv):
            command = [str(prefix / "bin" / "python"), "-m", "pip", "list", "--format=freeze"]
            packages.append(set(run(command, dict(os.environ)).stdout.split()))
            size.append(sum(path.lstat().st_size for path in prefix.rglob("*") if path.is_file()))
        more = packages[1] - packages[0]
        asked = (venv, *(requirement.partition("==")[0] for requirement in VENVS[venv]))
        shown = ", ".join(sorted(text for text in more if text.partition("==")[0] in asked))
        return f"{(size[1] - size[0]) / 1e6:.1f} MB, {len(more)} packages ({shown})"


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One run with captured text; the program is looked up in that environment's PATH."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that has text, of errors if there are any."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def install(folder: Path) -> None:
    """Make or refresh the environments; ends the script where pip fails."""
    for name, requirements in VENVS.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        if requirements:
            pip = [str(python), "-m", "pip", "install", "--quiet", *requirements]
            if (done := run(pip, dict(os.environ))).returncode:
                sys.exit(f"{name}: pip ended with {done.returncode}: {last_line(done)}")


def table(heading: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print()
    for cells in (heading, ["---"] * len(heading), *rows):
        print("|", " | ".join(cell.replace("|", "\\|") for cell in cells), "|")


def this_host(bench: Bench, host: Situation, rounds: int) -> None:
    """First table."""
    taken: dict[str, list[float]] = {peer.command: [] for peer in (*PEERS, JSON)}
    for number in range(rounds + 1):
        for peer in (*PEERS, JSON):
            command = peer.command.split()
            environment = bench.environment(peer, host)
            began = time.perf_counter()
            run(command, environment)
            if number:
                taken[peer.command].append(time.perf_counter() - began)
    base = statistics.median(taken[DETECT.command])
    rows = []
    for peer in (*PEERS, JSON):
        middle = statistics.median(taken[peer.command])
        times = [f"{middle:.3f} s", f"{middle / base:.2f}×", bench.started(peer, host)]
        said = bench.answer(peer, host)
        rows.append([f"`{peer.command}`", said, *times, bench.needs(peer.venv)])
    table(["command", "says", "median", "of detect", "processes started", "needs"], rows)


def constructed_hosts(bench: Bench) -> None:
    """Second table."""
    sys.path.insert(0, str(ROOT))
    from tests.support import host_trees

    hosts = {name: host_trees.load(name) for name in TREES}
    bare = host_trees.load("arc-b580")
    for key in ("files", "links", "nodes"):
        driver = re.compile("/driver|/drm/|dev/dri/|libze_")
        bare[key] = {path: v for path, v in bare[key].items() if not driver.search(path)}
    bare["nodes"]["dev/null"] = True
    hosts["arc-b580 without kernel driver, /dev/dri and Level Zero"] = bare
    rows = []
    for label, data in hosts.items():
        with tempfile.TemporaryDirectory() as scratch:
            tree = host_trees.plant(Path(scratch, "tree"), data)
            fake_lspci(tree, Path(scratch, "lspci"))
            there = Situation(label=label, path=(scratch, *PATH))
            said = bench.answer(DETECT, there, "--root", str(tree))
            rows.append([label, bench.answer(TORCHRUNTIME, there), said])
    table(["host", f"`{TORCHRUNTIME.command}`", f"`{DETECT.command} --root TREE`"], rows)


def fake_lspci(tree: Path, target: Path) -> None:
    """A program that lists the tree's devices as `lspci -nn` does where it has no names."""
    lines = []
    for device in sorted((tree / "sys/bus/pci/devices").iterdir()):
        files = (device / name for name in ("class", "vendor", "device"))
        kind, vendor, product = (file.read_text().strip().removeprefix("0x") for file in files)
        lines.append(f"{device.name[5:]} Class [{kind[:4]}]: Device [{vendor}:{product}]\n")
    target.write_text(f"#!/bin/sh\ncat <<'LIST'\n{''.join(lines)}LIST\n")
    target.chmod(0o755)


def main(rounds: int, folder: Path) -> None:
    """Install what is missing and print the tables."""
    (folder / "output").mkdir(parents=True, exist_ok=True)
    install(folder)
    bench = Bench(folder)
    today = datetime.datetime.now(datetime.UTC).date()
    load = os.getloadavg()[0]
    print(f"{today}: {os.cpu_count()} CPUs, load {load:.1f}, medians of {rounds} rounds")
    this_host(bench, Situation(label="this host"), rounds)
    constructed_hosts(bench)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="envbuilder detect beside its peers")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--folder", type=Path, help="keep environments and outputs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(options.rounds, (options.folder or Path(temporary)).resolve())
