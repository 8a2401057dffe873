"""The steps that `tools/on_gpu.sh run` takes on a machine with a GPU: commands, limits, ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

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
