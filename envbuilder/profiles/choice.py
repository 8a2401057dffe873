"""Choose a command's profile: the requested one, the configured one, or the best for the host.

`choose_best` has no side effects. The other functions read profiles and locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.errors import Hint, HostError
from envbuilder.host.accelerators import ACCELERATORS, of_vendor
from envbuilder.profiles.fit import BackendFit, Fit, judge, judge_backends
from envbuilder.profiles.frameworks import DEFAULT, FRAMEWORKS, first_profile
from envbuilder.profiles.profile import Profile

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.lock import Lock

    Locks = Mapping[str, Lock | None]


_REASONS = 3
"""Maximum number of reasons to give if no profile fits."""


class Chosen(Struct, frozen=True, kw_only=True):
    """The profile that was chosen for a host, and the reason for the choice.

    `judged` contains the profile's fit with each backend. It is empty if the fit was not
    determined.
    """

    profile: Profile
    reason: str
    judged: tuple[BackendFit, ...] = ()


class Choice(Struct, frozen=True, kw_only=True):
    """The best profile for a host, if any, with the reason for it and the fit of every profile."""

    profile: str | None
    reason: str
    fits: tuple[Fit, ...]
    judged: Mapping[str, tuple[BackendFit, ...]]
    """The fit of each profile with each backend, by profile name."""


def choose(
    library: Library, settings: Settings, host: Host, *, backend: str | None = None
) -> Chosen:
    """Return the profile set in the configuration, or else the one that fits the host best.

    If `backend` is given, only this backend is considered. Raise `HostError` if no profile fits,
    and `InvalidError` if the only profile that would fit is not locked.
    """
    configured = settings.configuration.profile
    if configured:
        return Chosen(profile=library.named(configured), reason="set in the configuration")
    candidates = library.candidates()
    locks = library.locks(candidates)
    choice = choose_best(candidates, host, locks=locks, backend=backend)
    framework, because = library.framework
    title = FRAMEWORKS[framework].title
    if choice.profile is None:
        # What stands in the way may be the lock alone.
        if name := fitting(library, host, backend=backend):
            library.usable_lock(library.profile(name))
        of_framework = because and f" with {title} ({because})"
        hints = [Hint("See", ("detect",))]
        if all(profile.accelerator != "cpu" for profile in candidates):
            name = first_profile(framework, "cpu")
            hints.insert(0, Hint(f"To use the CPU, add {name} to profiles: in envbuilder.yaml."))
        reasons = "; ".join(
            f"{', '.join(fit.profile for fit in group)}: {group[0].reasons[0]}"
            for group in grouped(choice.fits)[:_REASONS]
        )
        raise HostError(f"no profile{of_framework} fits this machine: {reasons}", hints)
    reason = choice.reason
    if because and framework != DEFAULT:
        reason = f"{title}, because {because}: {reason}"
    judged = choice.judged[choice.profile]
    return Chosen(profile=library.profile(choice.profile), reason=reason, judged=judged)


def fitting(library: Library, host: Host, *, backend: str | None = None) -> str | None:
    """Return the name of the best profile for the host, assuming that all locks are usable.

    Return None if no profile fits.
    """
    candidates = library.candidates()
    locks = library.locks(candidates).items()
    usable = {name: replace(lock, state="claimed") for name, lock in locks if lock}
    return choose_best(candidates, host, locks=usable, backend=backend).profile


def require_host(
    profile: Profile,
    host: Host,
    library: Library,
    *,
    backend: str | None,
    building: bool,
    locked: bool = True,
    judged: Sequence[BackendFit] = (),
) -> Fit:
    """Return the fit of a profile on this host, or raise `HostError` if the host cannot run it.

    The error's hint names another profile that fits. Other profiles are read only for this hint. If
    `building` is set, it is sufficient that the host can build the profile. `locked` means that the
    wheels from the profile's lock will be used. `judged` is the result of `fit.judge_backends` for
    this lock, if the caller already has it.
    """
    lock = library.lock(profile.name) if locked else None
    fit = judge(
        profile,
        host,
        lock=lock,
        backend=backend,
        building=building,
        judged=judged,
    )
    if fit.verdict != "no":
        return fit
    hints = [Hint(fit.workaround)]
    if not fit.workaround:
        others = library.candidates(profile.framework)
        hints = [_instead(profile, host, library.locks(others) | {profile.name: lock}, others)]
        if locked and (advice := library.advice(profile, host)):
            hints.append(Hint(advice))
    action = "be built" if building else "run"
    with_it = f" with --backend {backend}" if backend and fit.workaround else ""
    raise HostError(
        f"profile '{profile.name}' cannot {action} on this host{with_it}: {'; '.join(fit.reasons)}",
        hints,
    )


def choose_best(
    profiles: Sequence[Profile],
    host: Host,
    *,
    locks: Locks,
    backend: str | None = None,
) -> Choice:
    """Return the best profile for a host, among profiles of the same framework.

    An accelerator that fits takes precedence over the CPU. The order of profiles is cuda, rocm,
    xpu, mps (or jax-cuda and so on for another framework), cuda-legacy, then the user's own
    profiles by accelerator and name. Of two profiles for the same accelerator, the one that uses
    all GPUs takes precedence. On the CPU, `cpu` is chosen, because zendnn speeds up only inference.
    If zendnn fits, the reason mentions it.

    Profiles that fit take precedence over profiles that fit with warnings. Therefore, `cpu` is
    chosen if an accelerator could not be confirmed, and the reason says so. If no profile is
    certain to fit, profiles that lack only a container engine come first, then the CPU. Opt-in
    profiles and profiles without a usable lock in `locks` are never chosen.
    """
    ordered = sorted((p for p in profiles if not p.opt_in), key=_rank)
    judged = {}
    fits = {}
    for profile in profiles:
        lock = locks.get(profile.name)
        every = judge_backends(profile, host, lock)
        judged[profile.name] = every
        fit = judge(profile, host, lock=lock, backend=backend, judged=every)
        fits[profile.name] = _require_lock(fit, lock)
    certain = [p for p in ordered if fits[p.name].verdict == "fits"]
    unsure = [p for p in ordered if fits[p.name].verdict == "warnings" and p not in certain]
    unsure.sort(key=lambda p: 0 if fits[p.name].lacks_engine else 1 + (p.accelerator != "cpu"))
    ranked = tuple(fits[p.name] for p in sorted(profiles, key=_rank))
    if not certain and not unsure:
        return Choice(profile=None, reason="no profile fits this host", fits=ranked, judged=judged)
    chosen = [*certain, *unsure][0]
    if fits[chosen.name].environment:
        # One that leaves no GPU out, if there is one for the same accelerator.
        for profile in certain:
            if profile.accelerator == chosen.accelerator and not fits[profile.name].environment:
                chosen = profile
                break
    return Choice(
        profile=chosen.name,
        reason=_why(chosen, ordered, fits, host),
        fits=ranked,
        judged=judged,
    )


def unserved(profiles: Sequence[Profile], host: Host, choice: Choice) -> Iterator[Profile]:
    """Yield a profile for each kind of GPU that this host has but that no fitting profile supports.

    For each kind of GPU, this is the first of its profiles that is not opt-in.
    """
    fitting = {f.profile for f in choice.fits if f.verdict == "fits"}
    for row in filter(None, map(of_vendor, dict.fromkeys(gpu.vendor for gpu in host.gpus))):
        usual = [p for p in profiles if p.accelerator == row.name and not p.opt_in]
        if usual and not fitting & {p.name for p in usual}:
            yield usual[0]


def workarounds(choice: Choice) -> tuple[str, ...]:
    """Return instructions for using the chosen profile, or better ones, in spite of an obstacle.

    If the chosen profile has a workaround, return only that workaround. Otherwise, return the
    workarounds for the better profiles that lack only a container engine.
    """
    better = []
    for candidate in choice.fits:
        if candidate.profile == choice.profile:
            if candidate.workaround:
                return (candidate.workaround,)
            break
        if candidate.lacks_engine and candidate.workaround:
            better.append(candidate.workaround)
    return tuple(better)


def _require_lock(fit: Fit, lock: Lock | None) -> Fit:
    """Return the fit of a profile, with the verdict `no` if there is no usable lock."""
    if lock is not None and lock.state != "unlocked":
        return fit
    reasons = [f"it has no lock: run `envbuilder lock --profile {fit.profile}`"]
    if fit.verdict == "no":
        reasons = [*fit.reasons, *reasons]
    return Fit(profile=fit.profile, verdict="no", reasons=tuple(reasons))


def _rank(profile: Profile) -> tuple[bool, int, int, int, str]:
    name = profile.name
    on_cpu = profile.accelerator == "cpu"
    order = list(ACCELERATORS).index(profile.accelerator)
    variants = ACCELERATORS[profile.accelerator].variants
    if name == first_profile(profile.framework, profile.accelerator):
        return on_cpu, 0, order, 0, name
    if name in variants:
        # Variants for a GPU rank before a user's profiles, those for the CPU after them.
        return on_cpu, 3 if on_cpu else 1, order, variants.index(name), name
    return on_cpu, 2, order, 0, name


def _why(chosen: Profile, ordered: Sequence[Profile], fits: dict[str, Fit], host: Host) -> str:
    chosen_fit = fits[chosen.name]
    facts = "; ".join(chosen_fit.reasons)
    if chosen_fit.verdict == "warnings":
        return f"{chosen.name} may work here, but no profile fits for certain: {facts}"
    if chosen.accelerator != "cpu":
        others = [
            p.name
            for p in ordered
            if fits[p.name].verdict == "fits" and p.accelerator not in ("cpu", chosen.accelerator)
        ]
        text = f"{chosen.name} fits: {facts}"
        if others:
            text += f" ({' and '.join(others)} would fit too: --profile)"
        return text
    unsure = []
    for group in grouped(fits[p.name] for p in ordered if p.accelerator != "cpu"):
        if group[0].verdict == "warnings":
            names = " and ".join(fit.profile for fit in group)
            unsure.append(f"{names} may work too ({'; '.join(group[0].reasons)})")
    first = "no GPU was found"
    if unsure:
        first = "no accelerator is certain to work here"
    elif host.gpus:
        first = "no accelerator fits this host"
        if obstacles := "; ".join(_obstacles(ordered, fits, host)):
            first += f" ({obstacles}): see `envbuilder doctor`"
    zendnn = fits.get("zendnn")
    if chosen.name != "zendnn" and zendnn and zendnn.verdict == "fits":
        unsure.append("zendnn fits too, but only speeds up inference")
    return "; ".join([first, *unsure])


def grouped(fits: Iterable[Fit]) -> list[list[Fit]]:
    """Group fits with the same verdict and reasons, so that each cause is reported once."""
    groups: dict[tuple[str, tuple[str, ...]], list[Fit]] = {}
    for one in fits:
        groups.setdefault((one.verdict, one.reasons), []).append(one)
    return list(groups.values())


def _obstacles(ordered: Sequence[Profile], fits: dict[str, Fit], host: Host) -> list[str]:
    """Return the main obstacle to using the GPUs of each vendor on this host.

    Of the vendor's profiles, the one with the fewest reasons against it is used, and the obstacle
    is the first of these reasons. If the vendor has no profile, the obstacle is the detail given
    for the vendor's first GPU.
    """
    reasons = []
    for vendor in dict.fromkeys(gpu.vendor for gpu in host.gpus):
        row = of_vendor(vendor)
        candidates = [fits[p.name] for p in ordered if row and p.accelerator == row.name]
        if candidates:
            reasons.append(min(candidates, key=lambda f: len(f.reasons)).reasons[0])
        else:
            reasons += [g.detail.rstrip(".") for g in host.gpus if g.vendor == vendor][:1]
    return list(dict.fromkeys(reasons))


def _instead(profile: Profile, host: Host, locks: Locks, others: Sequence[Profile]) -> Hint:
    """Return a hint that suggests another profile.

    If that profile uses the CPU instead of a GPU, the hint says so.
    """
    see = "To see what was found"
    detect = ("detect",)
    choice = choose_best([p for p in others if p.name != profile.name], host, locks=locks)
    if choice.profile is None:
        return Hint(see, detect)
    candidate = next(f for f in choice.fits if f.profile == choice.profile)
    device = {p.name: p.accelerator for p in others}[choice.profile]
    verb = "may fit" if candidate.verdict == "warnings" else "fits"
    text = f"`--profile {choice.profile}` {verb} this host"
    if device == "cpu" != profile.accelerator:
        text += ", but only uses the CPU"
    return Hint(f"{text}. {see}", detect)
