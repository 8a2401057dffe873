"""Choose the environment variables of a command, whether native or in a container.

Each variable has a single value and a source, which says who chose the value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import console
from envbuilder.core.errors import redacted
from envbuilder.payload.machine import threads

if TYPE_CHECKING:
    from envbuilder.builds.access import Access
    from envbuilder.profiles.profile import Profile

PATH = "PATH"
PRELOAD = "LD_PRELOAD"
PYTHONPATH = "PYTHONPATH"
THREADS = "OMP_NUM_THREADS"
DEFAULT_THREADS = "ENVBUILDER_THREADS"
"""Variable that contains the number of threads to use if the user sets none.

The startup hook in each Python applies this variable. `THREADS` is not set directly, because
programs that divide the cores among their processes (torchrun, accelerate, mpirun) do so only if
`THREADS` is not set.
"""
CALLER = "your shell"
MACHINE = "this machine's cores and quota"
STATED = "set by -e"
_FIRST = {
    PATH: "the environment's programs come first",
    PRELOAD: "libraries that the profile preloads come first",
    PYTHONPATH: "modules of envbuilder and of the project come first",
}
"""The source to report for each variable whose value is a list."""


class Variable(Struct, frozen=True):
    """The value of a variable, and where the value came from."""

    value: str
    source: str


class Place(Struct, frozen=True, kw_only=True):
    """The variables that an environment sets, and the items that it adds to list variables."""

    given: Mapping[str, str] = {}
    """Variables to set for each command, unless the profile sets the same variables."""
    first: Mapping[str, Sequence[str]] = {}
    """The items to put first in each list variable, such as `PATH`, by the name of the variable."""
    sets_profile: bool = False
    """Whether the environment itself sets the profile's variables, as images and activation scripts
    do."""


def machine_threads(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping that sets the variable `THREADS` to the number of threads for this machine.

    Return an empty mapping if the caller set `THREADS`.
    """
    if environ.get(THREADS):
        return {}
    return {THREADS: str(threads.decide(threads.fetch()))}


def of_command(
    profile: Profile,
    place: Place,
    devices: Mapping[str, str],
    access: Access,
    caller: Mapping[str, str],
) -> dict[str, Variable]:
    """Return the variables to set for a command, in addition to the caller's variables.

    `devices` contains the variables that select GPUs. List variables such as `PATH` begin with the
    environment's items. These are followed by the items given with `-e`. Without `-e`, they are
    followed by the items of the profile or the caller. If `-e` sets `LD_PRELOAD` to an empty value,
    nothing is preloaded.
    """
    of_profile = f"profile {profile.name}"
    inherited = {PATH: os.defpath, **caller}
    layers = (
        (MACHINE, machine_threads(caller)),
        (CALLER, {n: inherited[n] for n in (PATH, PRELOAD, PYTHONPATH) if inherited.get(n)}),
        ("the choice of devices", devices),
        ("the environment", place.given),
        (of_profile, profile.environment),
        (STATED, {name: caller[name] for name in access.passed}),
        (STATED, access.variables),
    )
    decided: dict[str, Variable] = {}
    for source, values in layers:
        for name, value in values.items():
            decided[name] = Variable(value, source)
    for name, entries in place.first.items():
        before = decided.get(name, Variable("", CALLER))
        is_stated = before.source == STATED
        if name == PRELOAD and is_stated and not before.value:
            continue
        # An empty element would mean the working folder.
        joined = os.pathsep.join(filter(None, (*entries, *before.value.split(os.pathsep))))
        if entries and joined:
            decided[name] = Variable(joined, STATED if is_stated else _FIRST[name])
    if access.shares_cores and THREADS in decided and decided[THREADS].source == MACHINE:
        decided[DEFAULT_THREADS] = decided.pop(THREADS)
    left_out = {CALLER, of_profile} if place.sets_profile else {CALLER}
    return {name: variable for name, variable in decided.items() if variable.source not in left_out}


def report(decided: Mapping[str, Variable]) -> None:
    """Print each variable and its source, if `--verbose` is set.

    Values given with `-e` are not printed, because they may be secret. Other values are omitted if
    the variable's name suggests that the value is secret.
    """
    for name, variable in sorted(decided.items()):
        value = f"={variable.value}"
        if variable.source == STATED:
            value = ""
        console.detail(redacted(f"{name}{value} ({variable.source})"))
