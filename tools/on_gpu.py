"""Show on a machine with a GPU what only such a machine can show.

    tools/on_gpu.sh pack [--python-version 3.12] [--folder .gpu]
    tools/on_gpu.sh run OUT [--device cuda] [--python EXE] [--only host,verify,…] [--quick]

`pack` puts what such a machine lacks without a network into one folder: envbuilder's own
dependencies as wheels for x86-64 Linux, without uv, since nothing is built there, and MNIST. They
are for envbuilder's process alone; the interpreter that is verified does not see them.

`run` takes the standard library only. Every step has a limit of its own and keeps its exit code,
time, output and log; one that fails or runs out of time does not stop the next. OUT gets at most 8
files, written again after each step: summary.json and summary.txt, host.tar.gz (for `detect
--root`), report.json and report.html of the verification, epochs.json (against PyTorch's example),
logs.tar.gz (all else). Exit code 1 where a step did not end as it must, 2 for wrong arguments.

envbuilder finds its own packages by a path of its process: no variable is set that the interpreter
in question would see. Nothing of the machine is changed: faults are tried in a copy of hard links.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GROUPS = (
    "host",
    "verify",
    "watch",
    "epoch",
    "refusals",
    "faults",
    "watch-cost",
    "tune",
    "devices",
    "jax",
)
# Fault → the check that must see it.
_FAULTS = {"matmul_a_thousandth_off": "arithmetic", "lower_matmul_precision": "precision"}
_FAULTS_OF = {
    # Of an accelerator whose profiler sees nothing, memory is evidence enough for a warning.
    "cpu": {"profiler_that_sees_nothing": "device used"},
    "cuda": {"device_that_is_the_cpu": "device used"},
}


@dataclass(frozen=True)
class Step:
    """One command, how long it may take, and how it must end."""

    name: str
    argv: tuple[str, ...]
    seconds: float
    codes: tuple[int, ...] = (0,)
    failed_check: str = ""
    """The check that must have failed in the report that it prints."""
    variables: dict[str, str] = field(default_factory=dict)
    after: tuple[str, int] | None = None
    """Only where this step ended with this exit code."""
    fault: str = ""
    """A module of the sabotage that is put into the copied environment for this step."""


@dataclass(frozen=True)
class Setting:
    """What the commands are made of."""

    envbuilder: tuple[str, ...]
    """How envbuilder is started."""
    script: tuple[str, ...]
    """How a Python file with envbuilder's packages is started."""
    module: tuple[str, ...]
    """How a module is."""
    python: str
    """The interpreter in question."""
    device: str
    data: str
    """Folder with MNIST, or with the small subset."""
    work: Path
    overlay: str
    """The interpreter of the copy that faults are put into."""
    quick: bool


def plan(setting: Setting, groups: tuple[str, ...]) -> list[Step]:
    """Return the steps of these groups, in the order of their worth."""
    quick = ("--quick", "--force")
    made = {
        "host": _host(setting),
        "verify": _verify(setting),
        "epoch": _epoch(setting),
        "watch": _watch(setting),
        "watch-cost": _watch_cost(setting),
        "refusals": _refusals(setting),
        "faults": _faults(setting),
        # It runs for long on a CPU; where it is cut off, the summary says so.
        "tune": [Step("tune", _verification(setting, "--quick", command="tune"), 100)],
        "devices": [Step("devices", _verification(setting, *quick, "--devices", "all"), 60)],
        "jax": [Step("jax", _verification(setting, *quick, profile=f"jax-{setting.device}"), 200)],
    }
    return [step for name in GROUPS if name in groups for step in made[name]]


def _host(setting: Setting) -> list[Step]:
    recorder = str(ROOT / "tools" / "record_host.py")
    return [
        Step("detect", (*setting.envbuilder, "detect", "--json"), 30),
        # It exits with 3 if something is blocking: that is an answer.
        Step("doctor", (*setting.envbuilder, "doctor", "--json"), 30, codes=(0, 3)),
        Step("record", (*setting.script, recorder, str(setting.work / "host.tar.gz")), 60),
    ]


def _verification(
    setting: Setting, *options: str, command: str = "verify", profile: str = "", python: str = ""
) -> tuple[str, ...]:
    which = ("--profile", profile or setting.device, "--python", python or setting.python)
    return (*setting.envbuilder, command, *which, *options, "--json")


def _verify(setting: Setting) -> list[Step]:
    out, page = (str(setting.work / name) for name in ("report.json", "report.html"))
    how = ("--quick",) if setting.quick else ("--data", setting.data)
    words = _verification(setting, *how, "--output", out, "--html", page)
    return [
        Step("verify", words, 170),
        # Where the host is judged wrongly, that is a bug, and the GPU is measured all the same.
        Step("verify-forced", (*words, "--force"), 170, after=("verify", 3)),
    ]


def _epoch(setting: Setting) -> list[Step]:
    words = (
        *setting.script,
        str(ROOT / "benchmarks" / "example.py"),
        "1" if setting.quick else "3",
        "--python",
        setting.python,
        "--device",
        setting.device,
        "--epochs",
        "1" if setting.quick else "2",
        "--data",
        setting.data,
        "--json",
        str(setting.work / "epochs.json"),
        "--envbuilder",
        str(setting.work / "envbuilder"),
    )
    return [Step("epoch", words, 280)]


def _watch(setting: Setting) -> list[Step]:
    """Return the steps that train under `watch`: what NVML counts needs a machine for itself."""
    words = (
        *setting.module,
        "pytest",
        "-q",
        "--rootdir",
        str(ROOT),
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=",
        "--dist",
        "load",
        str(ROOT / "tests" / "integration" / "gpu"),
    )
    variables = {"ENVBUILDER_TEST_GPU": setting.python}
    results = f"--junitxml={setting.work / 'logs' / 'watch.xml'}"
    at_once = (*words, "-m", "not quiet", "-n", "4", results)
    return [
        Step("watch", at_once, 240, variables=variables),
        Step("watch-alone", (*words, "-m", "quiet"), 90, variables=variables),
    ]


def _watch_cost(setting: Setting) -> list[Step]:
    words = (str(ROOT / "benchmarks" / "watch.py"), setting.python, "9", setting.device)
    return [Step("watch-cost", (*setting.script, *words), 150)]


def _refusals(setting: Setting) -> list[Step]:
    """Return the steps for a hidden device, and for one that this machine does not have."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    cuda = _verification(setting, "--quick", profile="cuda")
    other = _verification(setting, "--quick", "--force", profile="xpu")
    return [
        Step("hidden", cuda, 40, codes=(3,), variables=hidden),
        Step("hidden-forced", (*cuda, "--force"), 60, codes=(5,), variables=hidden),
        Step("other-device", other, 60, codes=(5,)),
    ]


def _faults(setting: Setting) -> list[Step]:
    words = _verification(setting, "--quick", "--epochs", "1", "--force", python=setting.overlay)
    faults = _FAULTS | _FAULTS_OF[setting.device]
    # Without a fault the copy passes: what fails below fails for its fault.
    steps = [Step("without-fault", words, 60)]
    for name, check in list(faults.items())[: 1 if setting.quick else None]:
        step = Step(f"fault-{name.replace('_', '-')}", words, 45, (5,), failed_check=check)
        steps.append(replace(step, after=("without-fault", 0), fault=name))
    return steps


# How they are run, judged and brought back.

STARTER = ROOT / "tests" / "support" / "sabotage_starter.py"
FAULTS_DIR = ROOT / "tests" / "integration" / "torch" / "sabotage"
_SUBSET = ROOT / "envbuilder" / "data" / "mnist-subset"
MOST_BYTES = 15 * 2**20  # of one file in OUT
_MOST_LOG = 2**20
_LEAST_SECONDS = 5.0
_RETURNED = ("host.tar.gz", "report.json", "report.html", "epochs.json")

LAUNCHER = """\
import runpy, sys
sys.path[:0] = {paths!r}
if sys.argv[1:2] == ["--script"]:
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
elif sys.argv[1:2] == ["--module"]:
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    from envbuilder.cli import main
    main()
"""


@dataclass(frozen=True)
class Result:
    """How a step ended; `outcome` is one of expected, unexpected, out of time, not run."""

    name: str
    outcome: str
    why: str = ""
    code: int | None = None
    seconds: float = 0.0
    limit: float = 0.0
    command: str = ""


def judge(step: Step, code: int | None, printed: str) -> tuple[str, str]:
    """Return the outcome of a step that ended by itself or was ended (code None), and why."""
    if code is None:
        return "out of time", ""
    if code not in step.codes:
        allowed = " or ".join(map(str, step.codes))
        return "unexpected", f"exit code {code}, not {allowed}"
    if step.failed_check:
        try:
            checks = json.loads(printed)["checks"]
            failed = [check["name"] for check in checks if check["status"] == "failed"]
        except (ValueError, KeyError, TypeError):
            return "unexpected", "no report was printed"
        if step.failed_check not in failed:
            names = ", ".join(failed) or "none"
            return "unexpected", f"the check {step.failed_check!r} did not fail; failed: {names}"
    return "expected", ""


class Runner:
    """Runs steps one after the other, within a time for all of them."""

    def __init__(self, work: Path, seconds: float) -> None:
        self.work = work
        self.deadline = time.monotonic() + seconds
        self.results: list[Result] = []
        self.environment = {
            **os.environ,
            **{f"ENVBUILDER_{name}_DIR": str(work / name) for name in ("DATA", "CACHE", "CONFIG")},
        }

    def run(self, step: Step) -> Result:
        """Run a step, and remember how it ended."""
        limit = min(step.seconds, self.deadline - time.monotonic())
        before, code = step.after or ("", None)
        if before and code not in [r.code for r in self.results if r.name == before]:
            result = Result(step.name, "not run", f"only after {before} with exit code {code}")
        elif limit < _LEAST_SECONDS:
            result = Result(step.name, "not run", "no time left")
        else:
            result = self._run(step, limit)
        self.results.append(result)
        return result

    def printed(self, name: str) -> str:
        """Return what a step printed."""
        path = self.work / "logs" / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def skip(self, name: str, why: str) -> None:
        """Remember a step that is not run."""
        self.results.append(Result(name, "not run", why))

    def _run(self, step: Step, limit: float) -> Result:
        logs = self.work / "logs"
        logs.mkdir(exist_ok=True)
        began = time.monotonic()
        why = ""
        with (
            (logs / f"{step.name}.out").open("wb") as out,
            (logs / f"{step.name}.log").open("wb") as log,
        ):
            try:
                code = _to_its_end(step.argv, limit, self.environment | step.variables, out, log)
            except OSError as error:
                code = 127
                why = str(error)
            except SystemExit:
                self.skip(step.name, "ended from outside")
                raise
        outcome, reason = judge(step, code, self.printed(step.name))
        if outcome == "unexpected":
            words = (logs / f"{step.name}.log").read_text(errors="replace").strip()
            why = why or words.rpartition("\n")[2][-400:]
        return Result(
            name=step.name,
            outcome=outcome,
            why=": ".join(filter(None, (reason, why))),
            code=code,
            seconds=round(time.monotonic() - began, 2),
            limit=round(limit, 1),
            command=shlex.join(step.argv),
        )


def _to_its_end(
    argv: tuple[str, ...], limit: float, environment: dict[str, str], out: Any, log: Any
) -> int | None:
    """Return the exit code of a command, or None if its time was over; leave no process behind."""
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=log,
        env=environment,
        start_new_session=True,
    )
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number, patience in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 2.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience)


# The copy that faults are put into.

_WHERE = (
    "import json, sys, sysconfig as s;"
    "print(json.dumps([sys.prefix, sys.base_prefix, s.get_path('purelib')]))"
)


def copied(python: str, work: Path) -> tuple[Path, Path, Path]:
    """Copy the virtual environment of an interpreter by hard links: its folder, Python, packages.

    A fault is put into an environment that is whole: torch and its libraries lie in its prefix.
    `OSError` or `ValueError` where that cannot be.
    """
    asked = subprocess.run(
        [python, "-I", "-c", _WHERE], capture_output=True, text=True, check=True, timeout=60
    )
    prefix, base, packages = map(Path, json.loads(asked.stdout))
    if prefix == base:
        raise ValueError(f"{python} is of no virtual environment: none can be copied")
    near = next((p for p in (work, prefix.parent) if p.stat().st_dev == prefix.stat().st_dev), None)
    if near is None:
        raise ValueError(f"{prefix} is on a file system of its own: no hard links")
    folder = Path(tempfile.mkdtemp(prefix="on-gpu-", dir=near))
    shutil.copytree(prefix, folder / "copy", symlinks=True, copy_function=os.link)
    copy = folder / "copy"
    return folder, copy / "bin" / Path(python).name, copy / packages.relative_to(prefix)


@contextlib.contextmanager
def injected(packages: Path, fault: str) -> Any:
    """Put a fault behind the import of torch in the copy, and take it out again."""
    names = {
        "sabotage_starter.py": STARTER.read_text(),
        "sabotage.framework": "torch",
        "sabotage_fault.py": (FAULTS_DIR / f"{fault}.py").read_text(),
        "sabotage.pth": "import sabotage_starter\n",
    }
    try:
        for name, text in names.items():
            (packages / name).write_text(text)
        yield
    finally:
        for name in names:
            (packages / name).unlink(missing_ok=True)


# What comes back.


def collect(results: list[Result], facts: dict[str, Any], work: Path, out: Path) -> None:
    """Write what is known so far into the folder, each file bounded."""
    summary = {"schema": 1, **facts, "steps": [asdict(result) for result in results]}
    _replace(out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    _replace(out / "summary.txt", text(results, facts).encode())
    for name in _RETURNED:
        path = work / name
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            _replace(out / name, path.read_bytes())
    _replace(out / "logs.tar.gz", _archive(sorted((work / "logs").glob("*"))))


def text(results: list[Result], facts: dict[str, Any]) -> str:
    """Return the summary for people."""
    head = [f"{name}: {value}" for name, value in facts.items()]
    steps = [
        f"{r.outcome:<12} {r.name:<32} {'' if r.code is None else r.code:>4} {r.seconds:7.1f} s"
        f"  {r.why}".rstrip()
        for r in results
    ]
    return "\n".join([*head, "", *steps, ""])


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)


def _archive(paths: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in paths:
            content = path.read_bytes()
            if len(content) > _MOST_LOG:
                content = content[: _MOST_LOG // 2] + b"\n[...]\n" + content[-_MOST_LOG // 2 :]
            member = tarfile.TarInfo(f"logs/{path.name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def findings(work: Path) -> dict[str, Any]:
    """Return the figures that matter most, of what has been written so far."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        report = json.loads((work / "report.json").read_text())
        found |= {"verdict": report["status"], "reasons": report["reasons"]}
        found |= {"name": report["device"]["name"], "framework": report["framework"]["version"]}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        epochs = json.loads((work / "epochs.json").read_text())
        found |= {"epoch": epochs["medians"], "ratios": epochs["ratios"]}
    return found


# The whole.


def prepared(given: argparse.Namespace, work: Path) -> tuple[Setting, list[Step]]:
    """How envbuilder is started here, and a step that installs its packages, if they travelled."""
    site = work / "site"
    launcher = work / "launch.py"
    starter = work / "envbuilder"
    launcher.write_text(LAUNCHER.format(paths=[str(ROOT), str(site)]))
    start = (sys.executable, "-I", str(launcher))
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$@"\n')
    starter.chmod(0o755)
    wheels = sorted(map(str, (given.packed / "wheels").glob("*.whl")))
    options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir")
    install = (sys.executable, "-m", "pip", "install", *options, "--target", str(site), *wheels)
    setting = Setting(
        envbuilder=start,
        script=(*start, "--script"),
        module=(*start, "--module"),
        python=given.python,
        device=given.device,
        data=str(_SUBSET if given.quick else given.packed / "mnist"),
        work=work,
        overlay="",
        quick=given.quick,
    )
    return setting, [Step("packages", install, 60)] if wheels else []


def run(given: argparse.Namespace, groups: tuple[str, ...]) -> int:
    """Run all steps; 1 where one did not end as it must."""
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="on-gpu-") as work, contextlib.ExitStack() as stack:
        results = _all(given, groups, Path(work), stack)
    return 1 if {result.outcome for result in results} & {"unexpected", "out of time"} else 0


def _all(
    given: argparse.Namespace, groups: tuple[str, ...], work: Path, stack: contextlib.ExitStack
) -> list[Result]:
    began = time.monotonic()
    runner = Runner(work, given.seconds)
    setting, steps = prepared(given, work)

    def report() -> None:
        facts = {"device": given.device, "quick": given.quick, **findings(work)}
        facts["seconds"] = round(time.monotonic() - began, 1)
        collect(runner.results, facts, work, given.out)

    stack.callback(report)
    packages = work
    if "faults" in groups:
        try:
            folder, overlay, packages = copied(given.python, work)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            setting = replace(setting, overlay=str(overlay))
        except (OSError, ValueError, shutil.Error, subprocess.SubprocessError) as error:
            runner.skip("faults", f"no copy of the environment: {str(error)[:400]}")
            groups = tuple(name for name in groups if name != "faults")
    for step in [*steps, *plan(setting, groups)]:
        with injected(packages, step.fault) if step.fault else contextlib.nullcontext():
            result = runner.run(step)
        sys.stdout.write(f"{result.outcome}: {step.name} ({result.seconds} s) {result.why}\n")
        sys.stdout.flush()
        report()
    return runner.results


# What travels to such a machine.

MOST_PACKED = 64 * 2**20
"""What travels to such a machine: the checkout and this folder."""
_NOT_THERE = frozenset({"uv"})  # 25 MB, and it only resolves and installs
_PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
_OLD_PLATFORMS = ("manylinux2014", "manylinux2010", "manylinux1")


def requirements(project: str) -> list[str]:
    """Return what envbuilder needs at run time there, from the text of its pyproject.toml."""
    from packaging.requirements import Requirement

    listed = tomllib.loads(project)["project"]["dependencies"]
    needed = [Requirement(text) for text in listed]
    return [f"{r.name}{r.specifier}" for r in needed if r.name not in _NOT_THERE]


def download(version: str, folder: Path) -> None:
    """Fetch the wheels of a Python version, in the versions that pip chooses."""
    tags = [f"manylinux_{version}_x86_64" for version in _PLATFORMS]
    tags += [f"{name}_x86_64" for name in _OLD_PLATFORMS]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--implementation",
            "cp",
            "--python-version",
            version,
            *(word for tag in tags for word in ("--platform", tag)),
            "--dest",
            str(folder),
            *requirements((ROOT / "pyproject.toml").read_text()),
        ],
        check=True,
    )


def digits(folder: Path) -> None:
    """Put MNIST's four files there, packed; their bytes were checked."""
    from envbuilder.core import console
    from envbuilder.core.settings import load as load_settings
    from envbuilder.packages import mnist

    dataset = mnist.obtain(load_settings(), console.PlainProgress())
    if dataset.subset:
        raise SystemExit("error: MNIST cannot be fetched here")
    folder.mkdir(exist_ok=True)
    for path in sorted(dataset.folder.glob("*-ubyte")):
        with path.open("rb") as raw, gzip.open(folder / f"{path.name}.gz", "wb") as packed:
            shutil.copyfileobj(raw, packed)


def size(paths: list[Path]) -> int:
    """Bytes of these files."""
    return sum(path.lstat().st_size for path in paths if path.is_symlink() or path.is_file())


def pack(given: argparse.Namespace) -> None:
    """Make the folder anew, and say how large all of it is."""
    wheels = given.folder / "wheels"
    if wheels.exists():
        shutil.rmtree(wheels)
    wheels.mkdir(parents=True)
    download(given.python_version, wheels)
    digits(given.folder / "mnist")
    travels = (
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    listed = subprocess.run(travels, check=True, capture_output=True, text=True).stdout
    tree = size([ROOT / name for name in listed.split("\0") if name])
    packed = size(list(given.folder.rglob("*")))
    text = f"{given.folder}: {packed / 2**20:.1f} MiB, the checkout {tree / 2**20:.1f} MiB"
    if packed + tree > MOST_PACKED:
        raise SystemExit(f"error: {text}: more than the {MOST_PACKED >> 20} MiB that may travel")
    sys.stdout.write(f"{text}; there: tools/on_gpu.sh run OUT\n")


def main(arguments: list[str]) -> int:
    """Pack, or run all steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--python-version", default="3.12", help="of the machine  [3.12]")
    packing.add_argument("--folder", type=Path, default=ROOT / ".gpu")
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    running.add_argument("--python", default=sys.executable, help="the interpreter with torch")
    running.add_argument("--packed", type=Path, default=ROOT / ".gpu", help="what `pack` made")
    running.add_argument("--seconds", type=float, default=560.0, help="for all steps  [560]")
    running.add_argument("--only", default=",".join(GROUPS), help="groups of steps  [all]")
    running.add_argument("--quick", action="store_true", help="small data, one round, one fault")
    given = parser.parse_args(arguments)
    if given.command == "pack":
        pack(given)
        return 0
    groups = tuple(given.only.split(","))
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if not given.quick and not (given.packed / "mnist").is_dir():
        parser.error(f"{given.packed} holds no MNIST: run `tools/on_gpu.sh pack` first")
    return run(given, groups)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
