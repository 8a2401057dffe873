"""Find what keeps the accelerators, or the requested profile, from working on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.doctor import remedies
from envbuilder.doctor.problem import Problem, Severity
from envbuilder.doctor.surroundings import GFX_OVERRIDE
from envbuilder.host.model import is_wsl1
from envbuilder.host.text import clean
from envbuilder.profiles import fit
from envbuilder.profiles.accelerators import needs, of_vendor
from envbuilder.profiles.needs import LEVELS, worst

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.doctor.surroundings import Around
    from envbuilder.host.model import Gpu, Host
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.needs import Finding, Level
    from envbuilder.profiles.profile import Profile

_LASTING = ("unsupported", "kernels", "platform", "cpu-flags")
"""Findings that no command on this machine can change."""


def problems(
    host: Host,
    candidates: Sequence[Profile],
    locks: Mapping[str, Lock | None],
    around: Around,
    requested: Profile | None,
) -> list[Problem]:
    """Return what blocks the requested profile or, without one, each vendor's best profile."""
    look = _Look(host, candidates, locks, around)
    if requested is not None:
        result = look.of_profile(requested, requested=True)
        return [*result, *(_override(host, around) if requested.accelerator == "rocm" else ())]
    result = look.of_vendors()
    if is_wsl1(host.kernel):
        text = "this is WSL 1, where no program can use a GPU"
        fix = "In Windows, run `wsl --set-version NAME 2` (`wsl --list` has the name)."
        result.append(Problem(severity="blocks", code="wsl1", text=text, fix=fix))
    result += _override(host, around)
    if not look.fitting and not any(p.severity == "blocks" for p in result):
        result += look.of_nothing()
    return list({(p.code, p.text): p for p in result}.values())


def _override(host: Host, around: Around) -> list[Problem]:
    """Return a problem if a variable makes ROCm take the GPUs here for others."""
    names = sorted(name for name in around.variables if name.startswith(GFX_OVERRIDE))
    gpus = [gpu for gpu in host.gpus if gpu.vendor == "amd"]
    if not names or not gpus:
        return []
    shown = " ".join(f"{name}={clean(around.variables[name]) or ''}" for name in names)
    real = " and ".join(f"{_name(gpu)} is {gpu.family or 'unknown'}" for gpu in gpus)
    return [
        Problem(
            severity="limits",
            code="gfx-override",
            text=f"{shown} makes ROCm run kernels for another GPU, but {real}",
            fix=f"Run `unset {' '.join(names)}`, and find where it is set: programs crash or"
            " compute wrongly under it.",
        )
    ]


class _Look:
    """The candidate profiles, each judged once against one host."""

    def __init__(
        self,
        host: Host,
        candidates: Sequence[Profile],
        locks: Mapping[str, Lock | None],
        around: Around,
    ) -> None:
        self.host, self.around, self.locks = host, around, locks
        self.engine = any(e.state == "usable" for e in host.containers.engines)
        self.profiles = [p for p in candidates if not p.opt_in]
        self.findings = {p.name: self.judge(p) for p in self.profiles}
        self.fitting = [p for p in self.profiles if self.level(p) < _level("no")]

    def judge(self, profile: Profile) -> tuple[Finding, ...]:
        """Return the findings for the backend that a build on this host would use.

        If that backend lacks a container engine, a native environment's findings replace them.
        """
        every = fit.judge_backends(profile, self.host, self.locks.get(profile.name))
        native = fit.native_fit(every)
        if native is not None and every[0].lacks_engine:
            return native.findings
        return every[0].findings

    def native(self, profile: Profile) -> list[Finding]:
        """Return, as warnings, what a native environment lacks but an image would include."""
        if not self.engine or "venv" not in profile.backends:
            return []
        findings = fit.findings(profile, self.host, "venv", self.locks.get(profile.name))
        return [replace(f, level="warning") for f in findings if f.code == "level-zero"]

    def level(self, profile: Profile) -> int:
        return _level(worst(self.findings[profile.name]))

    def of_vendors(self) -> list[Problem]:
        result: list[Problem] = []
        works = any(p.accelerator != "cpu" for p in self.fitting)
        for vendor in dict.fromkeys(gpu.vendor for gpu in self.host.gpus):
            reported: set[int] = set()
            candidates = [p for p in self.profiles if p.accelerator == of_vendor(vendor)]
            if candidates:
                best = min(candidates, key=self._hopeless)
                reported = {id(f.gpu) for f in self.findings[best.name] if f.level != "note"}
                # Do not report on every run that a display GPU is no accelerator.
                if not (works and self._hopeless(best)[1]):
                    result += self.of_profile(best, requested=False)
            result += [
                self._idle(gpu)
                for gpu in self.host.gpus
                if gpu.vendor == vendor and gpu.state != "usable" and id(gpu) not in reported
                if not (works and gpu.obstacle in (None, "unsupported") and vendor != "unknown")
            ]
        return result

    def _hopeless(self, profile: Profile) -> tuple[int, int]:
        """Return the worst level and the number of permanent findings, as a sort key."""
        lasting = [f for f in self.findings[profile.name] if f.code in _LASTING]
        return self.level(profile), len(lasting)

    def of_nothing(self) -> list[Problem]:
        """Return what blocks the simplest profile, for hosts that no profile fits."""
        plainest = [p for p in self.profiles if p.accelerator == "cpu"] or self.profiles
        if not plainest:
            return []
        return self.of_profile(min(plainest, key=self.level), requested=True)

    def of_profile(self, profile: Profile, *, requested: bool) -> list[Problem]:
        platform = fit.docker_platform(self.host) or profile.platforms[0]
        required = needs(profile, self.locks.get(profile.name), platform, wsl=self.host.wsl)
        instead = [
            p.name
            for p in self.profiles
            if p.name != profile.name
            and p.accelerator == profile.accelerator
            and self.level(p) == _level("note")
        ]
        findings = self.findings.get(profile.name) or self.judge(profile)
        relevant = [f for f in (*findings, *self.native(profile)) if f.level != "note"]
        if any(f.code == "no-gpu" for f in relevant):
            relevant = [f for f in relevant if not f.code.startswith("level-zero")]
        lasting = [f for f in relevant if f.code in _LASTING]
        return [
            Problem(
                severity=_severity(finding, requested=requested),
                code=finding.code,
                text=f"{profile.name}: {finding.text}",
                fix=self._joined(finding.gpu)
                or remedies.fix(finding, required, self.host, instead),
            )
            # If it can never work, anything else that is missing is irrelevant.
            for finding in (relevant if requested else lasting or relevant)
        ]

    def _idle(self, gpu: Gpu) -> Problem:
        """Return the problem of an unusable GPU that no profile's findings mention."""
        return Problem(
            severity="limits",
            code=gpu.obstacle or ("unread" if gpu.vendor == "unknown" else "gpu"),
            text=f"{_name(gpu)}: {gpu.detail.rstrip('.')}",
            fix=self._joined(gpu) or remedies.of_gpu(gpu, self.host),
        )

    def _joined(self, gpu: Gpu | None) -> str:
        """Return the advice to log in again if the user already joined the node's group.

        A process keeps the groups it was started with.
        """
        group = gpu.render_node_group if gpu and gpu.obstacle == "node-closed" else None
        if group not in self.around.joined:
            return ""
        return f"Log in again: {self.around.user} joined {group} after this session began."


def _name(gpu: Gpu) -> str:
    if gpu.vendor == "unknown":
        return "whether there is a GPU is unknown"
    return f"{gpu.name} at {gpu.bus}" if gpu.bus else gpu.name


def _level(level: Level) -> int:
    return LEVELS.index(level)


def _severity(finding: Finding, *, requested: bool) -> Severity:
    if finding.level == "warning" or (finding.code in _LASTING and not requested):
        return "limits"
    return "blocks"
