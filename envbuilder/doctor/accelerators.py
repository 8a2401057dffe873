"""Find the problems with this host's accelerators or with the requested profile.

For each finding code and each GPU obstacle, there is a one-sentence fix. A test checks that there
is a sentence for every obstacle in `host.Obstacle` and for every finding code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.doctor.problem import Problem, Severity
from envbuilder.host.accelerators import ACCELERATORS, of_gpus, of_vendor
from envbuilder.host.gpus import accelerator, pci
from envbuilder.host.gpus.accelerator import LEVELS, Accelerator, Finding, Needs, worst
from envbuilder.host.model import Gpu, Host, is_wsl1
from envbuilder.host.snapshot import clean
from envbuilder.profiles import fit
from envbuilder.profiles.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envbuilder.doctor.surroundings import Case
    from envbuilder.profiles.profile import Profile

_LASTING = ("unsupported", "kernels", "platform", "cpu-flags")
"""Codes of findings that no command on this machine can change."""
_TRY = "Try it: run `envbuilder verify`."
_UNKNOWN = "Run `envbuilder detect` to see what is known about it."
_FORCE = "`envbuilder verify --force` tries it anyway."
_ON_MACS = {
    "platform": "Start a container engine and use --backend docker, or a profile for macOS.",
    "system-old": "Update macOS.",
}
_NOTHING = ("kernels", "platform", "unsupported")
"""Codes of findings that can only be fixed by using another profile that fits."""


def problems(case: Case) -> list[Problem]:
    """Return the problems with the requested profile.

    If no profile was requested, return the problems with the best profile for each GPU vendor.
    """
    look = _Look(case)
    if case.requested is not None:
        row = ACCELERATORS[case.requested.accelerator]
        return [*look.of_profile(case.requested, requested=True), *_disguised(case, [row])]
    result = look.of_vendors()
    if is_wsl1(case.host.kernel):
        result.append(
            Problem(
                severity="blocks",
                code="wsl1",
                text="this is WSL 1, where no program can use a GPU",
                fix="In Windows, run `wsl --set-version NAME 2` (`wsl --list` has the name).",
            )
        )
    result += _disguised(case, of_gpus())
    if not look.fitting and not any(p.severity == "blocks" for p in result):
        result += look.of_nothing()
    return list({(p.code, p.text): p for p in result}.values())


def _disguised(case: Case, rows: Iterable[Accelerator]) -> list[Problem]:
    """Return the problems caused by variables that make a driver mistake a GPU for another model.

    Because of such a variable, the driver runs kernels for the other model. There is at most one
    problem for each accelerator in `rows`.
    """
    result = []
    variables = case.around.variables
    for row in rows:
        gpus = [gpu for gpu in case.host.gpus if gpu.vendor == row.vendor]
        names = sorted(n for n in variables if row.disguise and n.startswith(row.disguise))
        if not names or not gpus:
            continue
        shown = " ".join(f"{name}={clean(variables[name]) or ''}" for name in names)
        real = " and ".join(f"{named(gpu)} is {gpu.family or 'unknown'}" for gpu in gpus)
        result.append(
            Problem(
                severity="limits",
                code="gfx-override",
                text=f"{shown} makes {row.brand}'s driver run kernels for another GPU, but {real}",
                fix=(
                    f"Run `unset {' '.join(names)}`, and find out where it is set: with it,"
                    " programs crash or compute wrong results."
                ),
            )
        )
    return result


class _Look:
    """The candidate profiles for a diagnosis, each judged once on the diagnosed host."""

    def __init__(self, case: Case) -> None:
        self.host = case.host
        self.around = case.around
        self.locks = case.locks
        self.advice = case.advice
        self.engine = case.host.containers.has_engine
        self.profiles = [p for p in case.candidates if not p.opt_in]
        self.findings = {p.name: self.judge(p) for p in self.profiles}
        self.fitting = [p for p in self.profiles if self.level(p) < LEVELS.index("no")]

    def judge(self, profile: Profile) -> tuple[Finding, ...]:
        """Return the findings for the backend that a build on this host would use.

        If that backend lacks a container engine, return the findings for a native environment
        instead.
        """
        every = fit.judge_backends(profile, self.host, self.locks.get(profile.name))
        native = fit.best_of(every, images=False)
        if native is not None and every[0].lacks_engine:
            return native.findings
        return every[0].findings

    def native(self, profile: Profile) -> list[Finding]:
        """Return warnings about what an image includes but a native environment lacks."""
        if not self.engine or "venv" not in profile.backends:
            return []
        findings = fit.findings(profile, self.host, "venv", self.locks.get(profile.name))
        return [replace(f, level="warning") for f in findings if f.code == "level-zero"]

    def level(self, profile: Profile) -> int:
        return LEVELS.index(worst(self.findings[profile.name]))

    def of_vendors(self) -> list[Problem]:
        result: list[Problem] = []
        works = any(p.accelerator != "cpu" for p in self.fitting)
        for vendor in dict.fromkeys(gpu.vendor for gpu in self.host.gpus):
            reported: set[int] = set()
            row = of_vendor(vendor)
            candidates = [p for p in self.profiles if row and p.accelerator == row.name]
            if candidates:
                best = min(candidates, key=self._hopeless)
                reported = {id(f.gpu) for f in self.findings[best.name] if f.level != "note"}
                # Do not report on every run that a display GPU is no accelerator.
                if not (works and self._hopeless(best)[1]):
                    result += self.of_profile(best, requested=False)
            for gpu in self.host.gpus:
                if gpu.vendor != vendor or gpu.state == "usable" or id(gpu) in reported:
                    continue
                if works and gpu.obstacle in (None, "unsupported") and vendor != "unknown":
                    continue
                result.append(self._idle(gpu))
        return result

    def _hopeless(self, profile: Profile) -> tuple[int, int]:
        """Return a sort key that is smallest for the profile with the least severe findings.

        It consists of the worst level of the findings, and of the number of findings that no
        command on this machine can change.
        """
        lasting = [f for f in self.findings[profile.name] if f.code in _LASTING]
        return self.level(profile), len(lasting)

    def of_nothing(self) -> list[Problem]:
        """Return the problems with the simplest profile.

        This method is used if no profile fits the host.
        """
        plainest = [p for p in self.profiles if p.accelerator == "cpu"] or self.profiles
        if plainest:
            return self.of_profile(min(plainest, key=self.level), requested=True)
        return []

    def of_profile(self, profile: Profile, *, requested: bool) -> list[Problem]:
        platform = fit.docker_platform(self.host) or profile.platforms[0]
        required = needs(profile, self.locks.get(profile.name), platform, wsl=self.host.wsl)
        instead = [
            p.name
            for p in self.profiles
            if p.name != profile.name
            and p.accelerator == profile.accelerator
            and self.level(p) == LEVELS.index("note")
        ]
        findings = self.findings.get(profile.name) or self.judge(profile)
        relevant = [f for f in (*findings, *self.native(profile)) if f.level != "note"]
        if any(f.code == "no-gpu" for f in relevant):
            relevant = [f for f in relevant if not f.code.startswith("level-zero")]
        if not requested:
            # If it can never work, anything else that is missing is irrelevant.
            relevant = [f for f in relevant if f.code in _LASTING] or relevant
        advice = ""
        if not instead and any(f.code in fit.OF_RELEASE for f in relevant):
            advice = self.advice(profile, self.host)
        problems = []
        for finding in relevant:
            text = self._joined(finding.gpu) or fix(finding, required, self.host, instead)
            if finding.code in fit.OF_RELEASE and advice:
                text = f"{advice} {text}"
                advice = ""
            problems.append(
                Problem(
                    severity=_severity(finding, requested=requested),
                    code=finding.code,
                    text=f"{profile.name}: {finding.text}",
                    fix=text,
                )
            )
        return problems

    def _idle(self, gpu: Gpu) -> Problem:
        """Return the problem of an unusable GPU that no profile's findings mention."""
        return Problem(
            severity="limits",
            code=gpu.obstacle or "gpu",
            text=f"{named(gpu)}: {gpu.detail.rstrip('.')}",
            fix=self._joined(gpu) or of_gpu(gpu, self.host),
        )

    def _joined(self, gpu: Gpu | None) -> str:
        """Return advice to log in again if the user has already joined the device node's group.

        A process keeps the groups that it was started with. Return "" if the advice does not apply.
        """
        if gpu and gpu.obstacle == "node-closed" and gpu.render_node_group in self.around.joined:
            user = self.around.user
            return f"Log in again: {user} joined {gpu.render_node_group} after this session began."
        return ""


def named(gpu: Gpu) -> str:
    """Return a GPU's name and address, to be used at the beginning of a message.

    If the vendor is unknown, return "whether there is a GPU is unknown" instead.
    """
    if gpu.vendor == "unknown":
        return "whether there is a GPU is unknown"
    return accelerator.named(gpu)


def _severity(finding: Finding, *, requested: bool) -> Severity:
    if finding.level == "warning" or (finding.code in _LASTING and not requested):
        return "limits"
    return "blocks"


def fix(finding: Finding, needs: Needs, host: Host, instead: Sequence[str]) -> str:
    """Return the fix for a finding.

    `instead` contains the names of fitting profiles for the same accelerator.
    """
    sentence = _sentence(finding, needs, host)
    if not instead:
        return sentence
    other = f"Use --profile {instead[0]}, which fits."
    if finding.code in _NOTHING:
        return other
    return f"{other} Or: {sentence}"


def _sentence(finding: Finding, needs: Needs, host: Host) -> str:
    gpu = finding.gpu
    row = of_vendor(gpu.vendor) if gpu else None
    if gpu is not None and (finding.code == gpu.obstacle or gpu.vendor == "unknown"):
        return of_gpu(gpu, host, needs.driver)
    if gpu and row and finding.code == "driver-old":
        return row.install(gpu, host, needs.driver)
    if host.os == "macos" and finding.code in _ON_MACS:
        return _ON_MACS[finding.code]
    sentences = {
        "backend": "Use another --backend.",
        "platform": "Use a profile for this platform: see `envbuilder profiles`.",
        "libc-other": "Use --backend docker: the image has its own C library.",
        "system-old": "Use --backend docker, whose image has its own C library, or update the"
        " system.",
        "system-unread": _TRY,
        "rosetta": (
            "In a terminal where `uname -m` prints arm64, install an arm64 Python (from"
            " python.org, or Homebrew's in /opt/homebrew), and use it to install envbuilder."
        ),
        "rosetta-linux": "Use containers for linux/arm64: they run on this chip itself.",
        "cpu-flags": _cpu_flags(finding),
        "no-gpu": (
            "Use --profile cpu. If the machine has a GPU, `envbuilder detect` shows what was read."
        ),
        "gpu": _UNKNOWN,
        "kernels": "No driver helps: these wheels have no kernels for this GPU.",
        "kernels-partly": _TRY,
        "release-unknown": f"{_TRY} Or install a newer envbuilder, whose tables may have it.",
        "package": "Lock another version of this package. Code that does not use it works.",
        "gfx-unread": _TRY,
        "kernels-ptx": f"{_TRY} The first start takes a long time.",
        "sm-unread": _TRY,
        "lock-unread": "Make the lock again: `envbuilder lock`. If that does not help, the tables"
        f" lack this release. {_TRY}",
        "unlisted": _TRY,
        "left-out": f"Set {_first_variables()} to the GPU that works.",
        "engine": _engine(host),
        "level-zero-unread": _TRY,
        "unread": "Run envbuilder as a user who can read /proc and /sys, or outside the sandbox.",
    }
    for each in of_gpus():
        sentences |= each.fixes_of_host(host)
    if gpu and row:
        sentences |= row.fixes(gpu, host)
    return sentences[finding.code]


def _first_variables() -> str:
    *names, last = (row.choosing[0] for row in of_gpus() if row.choosing)
    return f"{', '.join(names)} or {last}"


def _engine(host: Host) -> str:
    if host.containers.engines:
        return "Fix the engine: `docker version` or `podman version` shows why it does not answer."
    if host.os == "macos" or host.wsl:
        return "Start Docker Desktop, or your other container engine."
    return "Install Docker or podman, and start it."


def _cpu_flags(finding: Finding) -> str:
    if finding.level == "warning":
        return "Use `envbuilder verify --quick`, which skips the checks that need these flags."
    if "sse4_1" not in finding.text:
        return "Use --profile cpu: no setting adds instructions to a CPU."
    return (
        "If this is a virtual machine, pass the host's CPU through to it (QEMU, libvirt, Proxmox:"
        " CPU type host). Nothing adds instructions to a real CPU."
    )


def of_gpu(gpu: Gpu, host: Host, driver: str = "") -> str:
    """Return the fix for the obstacle that makes a GPU unusable.

    `driver` is the oldest driver version that is sufficient.
    """
    row = of_vendor(gpu.vendor) or Accelerator(name="")
    node = gpu.render_node or "/dev/dri/renderD128"
    # A kernel driver is bound, so only the node is missing.
    missing = (
        "Run `sudo udevadm trigger --subsystem-match=drm`. In a sandbox, give it access to"
        " /dev/dri."
    )
    if host.container:
        missing = "Start the container with --device /dev/dri."
    sentences: dict[str, str] = {
        "hidden": f"Run `unset {' '.join(row.choosing)}`, and find out where it is set.",
        "driver-missing": _driver_fix(gpu, host, row, driver),
        "driver-other": _driver_fix(gpu, host, row, driver),
        "driver-unread": "Run envbuilder as a user who can read /sys and /proc/driver.",
        "node-missing": missing,
        "node-closed": pci.join_group(gpu, host, node),
        "node-unread": "Check who may open the nodes: `ls -l /dev/dri /dev/nvidia*`.",
        "unsupported": "Use --profile cpu: PyTorch does not support this GPU.",
        "unlisted": _FORCE,
        "virtual": f"Run envbuilder outside the virtual machine. Here, {_FORCE}",
        "wsl": f"See what Windows reports (`nvidia-smi.exe`, Device Manager). {_FORCE}",
        "unread": "Run envbuilder as a user who can read /sys, or outside the sandbox.",
    }
    return (sentences | row.fixes(gpu, host)).get(gpu.obstacle or "", _UNKNOWN)


def _driver_fix(gpu: Gpu, host: Host, row: Accelerator, needed: str) -> str:
    if gpu.kernel_driver == "vfio-pci":
        return (
            "The GPU is reserved for virtual machines: remove that setting (vfio-pci.ids,"
            " driverctl)."
        )
    return row.install(gpu, host, needed)
