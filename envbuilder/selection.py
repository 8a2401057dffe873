"""Which profiles fit a host, which one to take, and why. Pure: data in, sentences out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder import fitting
from envbuilder.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.fitting import Finding, Level
    from envbuilder.host import Host
    from envbuilder.profiles import Profile

Verdict = Literal["fits", "warnings", "no"]
_VERDICTS: tuple[Verdict, ...] = ("fits", "warnings", "no")
_TELLING: dict[Verdict, tuple[Level, ...]] = {
    "fits": ("note",),
    "warnings": ("no", "warning"),
    "no": ("no",),
}
_SHIPPED = ("cuda", "xpu", "mps", "cuda-legacy")
_SHIPPED_CPU = ("cpu", "zendnn", "cpu-ipex")
_ACCELERATORS = ("cuda", "xpu", "mps", "cpu")


class Fit(Struct, frozen=True, kw_only=True):
    """Whether a profile fits a host, with the reasons for that verdict, one sentence each.

    `warnings`: nothing known speaks against it, but something could not be confirmed. `impossible`:
    the result cannot exist on this host, so it cannot be built here either.
    """

    profile: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    impossible: bool = False


class Choice(Struct, frozen=True, kw_only=True):
    """The profile to take, or None, why, and how every profile fits."""

    profile: str | None
    reason: str
    fits: tuple[Fit, ...]


def fit(profile: Profile, host: Host, *, backend: str | None = None, building: bool = False) -> Fit:
    """How a profile fits a host.

    Without `backend`, the backend that speaks for it most counts. `building` only asks whether the
    result can exist here: what keeps it from running becomes a warning.
    """
    backends: Sequence[str] = (backend,) if backend else profile.backends
    fits = [_judge(profile, host, name, building=building) for name in backends]
    return min(fits, key=lambda f: (_VERDICTS.index(f.verdict), f.impossible))


def _judge(profile: Profile, host: Host, backend: str, *, building: bool) -> Fit:
    found = fitting.findings(profile, host, backend)
    worst = max((fitting.LEVELS.index(f.level) for f in found), default=0)
    impossible = fitting.LEVELS[worst] == "impossible"
    if fitting.LEVELS[worst] == "note":
        verdict: Verdict = "fits"
    elif fitting.LEVELS[worst] == "warning" or (building and not impossible):
        verdict = "warnings"
    else:
        verdict = "no"
    return Fit(
        profile=profile.name,
        verdict=verdict,
        # Where it is impossible, nothing else matters.
        reasons=_sentences(found, ("impossible",) if impossible else _TELLING[verdict]),
        impossible=impossible,
    )


def _sentences(found: Sequence[Finding], levels: Sequence[Level]) -> tuple[str, ...]:
    texts = [f.text for level in levels for f in found if f.level == level]
    return tuple(dict.fromkeys(texts))


def choose(profiles: Sequence[Profile], host: Host, *, backend: str | None = None) -> Choice:
    """The profile for a host.

    The rule: an accelerator that fits beats the CPU, in the order cuda, xpu, mps, cuda-legacy, then
    the user's own profiles by accelerator and name. On the CPU it is `cpu`: zendnn speeds up
    inference only, and is mentioned where it fits. What fits beats what fits with warnings, so
    `cpu` is taken where an accelerator could not be confirmed, and the reason says so; where
    nothing fits for certain, the CPU goes first. Opt-in profiles are never taken.
    """
    ordered = sorted((p for p in profiles if not p.opt_in), key=_rank)
    fits = {p.name: fit(p, host, backend=backend) for p in profiles}
    certain = [p for p in ordered if fits[p.name].verdict == "fits"]
    unsure = [p for p in ordered if fits[p.name].verdict == "warnings"]
    unsure.sort(key=lambda p: p.accelerator != "cpu")
    chosen = next(iter((*certain, *unsure)), None)
    everything = tuple(fits[p.name] for p in sorted(profiles, key=_rank))
    if chosen is None:
        return Choice(profile=None, reason="no profile fits this host", fits=everything)
    return Choice(profile=chosen.name, reason=_why(chosen, ordered, fits), fits=everything)


def _rank(profile: Profile) -> tuple[int, int, str]:
    name = profile.name
    if name in _SHIPPED:
        return 0, _SHIPPED.index(name), name
    if name in _SHIPPED_CPU:
        # `cpu` goes before a user's CPU profiles, its variants after them.
        return (2 if name == "cpu" else 4), _SHIPPED_CPU.index(name), name
    return (
        (3 if profile.accelerator == "cpu" else 1),
        _ACCELERATORS.index(profile.accelerator),
        name,
    )


def _why(chosen: Profile, ordered: Sequence[Profile], fits: dict[str, Fit]) -> str:
    own = fits[chosen.name]
    facts = ", ".join(own.reasons)
    if own.verdict == "warnings":
        return f"{chosen.name} may run here, and nothing fits for certain: {facts}"
    if chosen.accelerator != "cpu":
        return f"{chosen.name} fits: {facts}"
    unsure = [
        f"{p.name} may run too ({fits[p.name].reasons[0]})"
        for p in ordered
        if p.accelerator != "cpu" and fits[p.name].verdict == "warnings"
    ]
    first = "no accelerator is certain to work here" if unsure else "no accelerator fits this host"
    zendnn = fits.get("zendnn")
    if chosen.name != "zendnn" and zendnn and zendnn.verdict == "fits":
        unsure.append("zendnn fits too, which speeds up inference, not training")
    return "; ".join([first, *unsure])


def require(
    profile: Profile,
    host: Host,
    *,
    backend: str | None = None,
    building: bool = False,
    others: Sequence[Profile] = (),
) -> Fit:
    """The fit of a profile that can be used here; `HostError` with all reasons where it cannot.

    `others` are the profiles among which the hint looks for one that fits.
    """
    result = fit(profile, host, backend=backend, building=building)
    if result.verdict != "no":
        return result
    instead = choose([p for p in others if p.name != profile.name], host)
    hint = "See `envbuilder detect` for what was found."
    if instead.profile is not None:
        hint = f"`--profile {instead.profile}` fits this host. {hint}"
        if next(f for f in instead.fits if f.profile == instead.profile).verdict == "warnings":
            hint = hint.replace("fits", "may fit", 1)
    action = "be built" if building else "run"
    raise HostError(
        f"profile '{profile.name}' cannot {action} on this host: {'; '.join(result.reasons)}", hint
    )
