"""Decide which profiles fit a host, which one to use, and why. Pure: data in, sentences out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.core.errors import HostError
from envbuilder.profiles import backends, finding, frameworks, ways
from envbuilder.profiles.accelerators import ACCELERATORS, of_vendor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envbuilder.host.model import Host
    from envbuilder.profiles.finding import Finding, Level
    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

    Locks = Mapping[str, Lock | None]

Verdict = Literal["fits", "warnings", "no"]
_VERDICTS: tuple[Verdict, ...] = ("fits", "warnings", "no")
_DECISIVE: dict[Verdict, tuple[Level, ...]] = {
    "fits": ("note",),
    "warnings": ("no", "warning"),
    "no": ("no",),
}


class Fit(Struct, frozen=True, kw_only=True):
    """Whether a profile fits a host, with the reasons for that verdict, one sentence each.

    `warnings`: no obstacle is known, but something could not be confirmed, or the engine that its
    images need does not respond. `impossible`: the result cannot exist on this host, so it cannot
    be built here, either.
    """

    profile: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    impossible: bool = False
    backend: str | None = None
    """The backend that this is about: the requested one, or the one that works best here."""
    lacks_engine: bool = False
    """Whether all that is missing is a container engine that responds."""
    environment: dict[str, str] = {}
    """Variables that hide GPUs which do not work with it; commands that run it here set them."""
    way_out: str = ""
    """How it works here if it does not do so natively; one or two sentences."""


class Choice(Struct, frozen=True, kw_only=True):
    """The profile to use, or None, with the reason and the fit of every profile."""

    profile: str | None
    reason: str
    fits: tuple[Fit, ...]


def fit(
    profile: Profile,
    host: Host,
    *,
    lock: Lock | None = None,
    backend: str | None = None,
    building: bool = False,
) -> Fit:
    """Return how a profile and its locked files fit a host, with one backend or with the best.

    `building` checks only whether the result can exist here: what keeps it from running becomes a
    warning.
    """
    every = ways.judged(profile, host, lock)
    way = every[0] if backend is None else ways.requested(profile, host, lock, backend)
    # Not every image builder needs an engine; those that do check for it themselves.
    findings = [f for f in way.findings if not (building and f.code == "engine")]
    worst = finding.worst(findings)
    impossible = worst == "impossible"
    if worst == "note":
        verdict: Verdict = "fits"
    elif worst == "warning" or (building and not impossible):
        verdict = "warnings"
    else:
        verdict = "no"
    only = ways.only_image(every) if backends.makes_image(way.backend) and verdict != "no" else ""
    unknown = [f for f in findings if f.gpu is not None and f.gpu.vendor == "unknown"]
    if unknown and verdict == "warnings":
        # Whether there is a GPU at all comes before what it would need.
        only, findings = "", unknown
    # If it is impossible, nothing else matters.
    sentences = _sentences(findings, ("impossible",) if impossible else _DECISIVE[verdict])
    return Fit(
        profile=profile.name,
        verdict=verdict,
        reasons=(*((f"image only: {only}",) if only else ()), *sentences),
        impossible=impossible,
        backend=way.backend,
        lacks_engine=verdict == "warnings" and way.lacks_engine and not way.lacks_more,
        environment={} if verdict == "no" else finding.left_out(way.findings),
        way_out=ways.way_out(profile, host, every),
    )


def _sentences(findings: Sequence[Finding], levels: Sequence[Level]) -> tuple[str, ...]:
    texts = [f.text for level in levels for f in findings if f.level == level]
    hidden = [f.text for f in findings if f.variables and "warning" in levels]
    return tuple(dict.fromkeys([*texts, *hidden]))


def choose(
    profiles: Sequence[Profile],
    host: Host,
    *,
    locks: Locks | None = None,
    backend: str | None = None,
) -> Choice:
    """Return the profile to use on a host, of some that bring the same framework.

    An accelerator that fits takes precedence over the CPU, in the order cuda, rocm, xpu, mps
    (jax-cuda … for another framework), cuda-legacy, then the user's own profiles by accelerator and
    name. Of two for one accelerator, the one that leaves no GPU out takes precedence. On the CPU,
    `cpu` is chosen: zendnn speeds up inference only, and is mentioned if it fits. Profiles that fit
    take precedence over those that fit with warnings, so `cpu` is chosen if an accelerator could
    not be confirmed, and the reason states that. If nothing fits for certain, profiles that lack
    only a container engine come first, then the CPU. Opt-in profiles are never chosen, nor are
    those without a usable lock in `locks`.
    """
    ordered = sorted((p for p in profiles if not p.opt_in), key=_rank)
    fits = {p.name: _fit_locked(p, host, locks, backend) for p in profiles}
    certain = [p for p in ordered if fits[p.name].verdict == "fits"]
    unsure = [p for p in ordered if fits[p.name].verdict == "warnings"]
    unsure.sort(key=lambda p: 0 if fits[p.name].lacks_engine else 1 + (p.accelerator != "cpu"))
    chosen = next(iter((*certain, *unsure)), None)
    if chosen is not None and fits[chosen.name].environment:
        # One that leaves no GPU out, if there is one for the same accelerator.
        alike = [p for p in certain if p.accelerator == chosen.accelerator]
        chosen = next((p for p in alike if not fits[p.name].environment), chosen)
    everything = tuple(fits[p.name] for p in sorted(profiles, key=_rank))
    if chosen is None:
        return Choice(profile=None, reason="no profile fits this host", fits=everything)
    reason = _why(chosen, ordered, fits, host)
    return Choice(profile=chosen.name, reason=reason, fits=everything)


def ways_out(choice: Choice) -> tuple[str, ...]:
    """Return how the chosen profile works here, or which better ones lack only an engine."""
    better: list[str] = []
    for candidate in choice.fits:
        if candidate.profile == choice.profile:
            return (candidate.way_out,) if candidate.way_out else tuple(better)
        if candidate.lacks_engine and candidate.way_out:
            better.append(candidate.way_out)
    return tuple(better)


def _fit_locked(profile: Profile, host: Host, locks: Locks | None, backend: str | None) -> Fit:
    lock = locks.get(profile.name) if locks is not None else None
    result = fit(profile, host, lock=lock, backend=backend)
    if locks is None or (lock is not None and lock.state != "unlocked"):
        return result
    reason = f"it has no lock: run `envbuilder lock --profile {profile.name}`"
    rest = result.reasons if result.verdict == "no" else ()
    return Fit(profile=profile.name, verdict="no", reasons=(*rest, reason))


def _rank(profile: Profile) -> tuple[bool, int, int, int, str]:
    name, on_cpu = profile.name, profile.accelerator == "cpu"
    order = list(ACCELERATORS).index(profile.accelerator)
    variants = ACCELERATORS[profile.accelerator].variants
    if name == frameworks.first_profile(profile.framework, profile.accelerator):
        return on_cpu, 0, order, 0, name
    if name in variants:
        # Variants for a GPU rank before a user's profiles, those for the CPU after them.
        return on_cpu, 3 if on_cpu else 1, order, variants.index(name), name
    return on_cpu, 2, order, 0, name


def _why(chosen: Profile, ordered: Sequence[Profile], fits: dict[str, Fit], host: Host) -> str:
    chosen_fit = fits[chosen.name]
    facts = "; ".join(chosen_fit.reasons)
    if chosen_fit.verdict == "warnings":
        return f"{chosen.name} may run here, and nothing fits for certain: {facts}"
    if chosen.accelerator != "cpu":
        others = [
            p.name
            for p in ordered
            if fits[p.name].verdict == "fits" and p.accelerator not in ("cpu", chosen.accelerator)
        ]
        also = f"; {' and '.join(others)} would fit too (--profile)" if others else ""
        return f"{chosen.name} fits: {facts}{also}"
    unsure = [
        f"{_and([fit.profile for fit in group])} may run too ({'; '.join(group[0].reasons)})"
        for group in grouped(fits[p.name] for p in ordered if p.accelerator != "cpu")
        if group[0].verdict == "warnings"
    ]
    first = "no accelerator is certain to work here" if unsure else "no accelerator fits this host"
    obstacles = "; ".join(_obstacles(ordered, fits, host))
    first += f" ({obstacles}): see `envbuilder doctor`" if obstacles and not unsure else ""
    zendnn = fits.get("zendnn")
    if chosen.name != "zendnn" and zendnn and zendnn.verdict == "fits":
        unsure.append("zendnn fits too, which speeds up inference, not training")
    return "; ".join([first, *unsure])


def grouped(fits: Iterable[Fit]) -> list[list[Fit]]:
    """Return the fits in groups with the same verdict and reasons: one cause is stated once."""
    groups: dict[tuple[str, tuple[str, ...]], list[Fit]] = {}
    for one in fits:
        groups.setdefault((one.verdict, one.reasons), []).append(one)
    return list(groups.values())


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _obstacles(ordered: Sequence[Profile], fits: dict[str, Fit], host: Host) -> list[str]:
    """Return, for each vendor of GPUs here, what blocks its profile with the fewest obstacles."""
    reasons = []
    for vendor in dict.fromkeys(gpu.vendor for gpu in host.gpus):
        candidates = [fits[p.name] for p in ordered if p.accelerator == of_vendor(vendor)]
        if candidates:
            reasons.append(min(candidates, key=lambda f: len(f.reasons)).reasons[0])
        else:
            reasons += [g.detail.rstrip(".") for g in host.gpus if g.vendor == vendor][:1]
    return list(dict.fromkeys(reasons))


def require(
    profile: Profile,
    host: Host,
    *,
    locks: Locks | None = None,
    backend: str | None = None,
    building: bool = False,
    others: Sequence[Profile] = (),
) -> Fit:
    """Return the fit of a profile. Raises `HostError` with all reasons if it cannot be used here.

    `others` are the profiles in which the hint looks for one that fits.
    """
    lock = locks.get(profile.name) if locks is not None else None
    result = fit(profile, host, lock=lock, backend=backend, building=building)
    if result.verdict != "no":
        return result
    action = "be built" if building else "run"
    with_it = f" with --backend {backend}" if backend and result.way_out else ""
    raise HostError(
        f"profile '{profile.name}' cannot {action} on this host{with_it}:"
        f" {'; '.join(result.reasons)}",
        result.way_out or _instead(profile, host, locks, others),
    )


def _instead(profile: Profile, host: Host, locks: Locks | None, others: Sequence[Profile]) -> str:
    """Return a hint on what to use instead, never presenting the CPU as equal to a GPU."""
    hint = "See `envbuilder detect` for what was found."
    choice = choose([p for p in others if p.name != profile.name], host, locks=locks)
    if choice.profile is None:
        return hint
    candidate = next(f for f in choice.fits if f.profile == choice.profile)
    device = {p.name: p.accelerator for p in others}[choice.profile]
    verb = "may fit" if candidate.verdict == "warnings" else "fits"
    slower = " on the CPU alone" if device == "cpu" != profile.accelerator else ""
    return f"`--profile {choice.profile}` {verb} this host{slower}. {hint}"
