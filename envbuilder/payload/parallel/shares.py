"""The share of the machine that each rank of a data-parallel training gets.

A rank is one process. On an accelerator, it has one device; on the CPU, it has its own cores. The
functions are pure except for `fetch_cores`, `pin`, and the thread count in `environment_for`.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from itertools import chain
from pathlib import Path
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ..machine import threads
from ..machine.accelerators import ACCELERATORS
from ..report import CheckError

ALL = "all"
CPU_RANKS = 2
"""Ranks that `all` means on the CPU: the fewest that have to agree with each other."""

MOST_RANKS = 64
"""Processes that a caller may ask for: each takes a core and some hundred MB."""
_FOREIGN = (
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_",
    "ROLE_",
    "PET_",
    "TORCHELASTIC_",
)


class ChoiceError(CheckError, ArgumentTypeError):
    """An error for requested devices that are not available. The message says why."""


def parse(text: str) -> Optional[Tuple[int, ...]]:
    """Parse ``--devices``. Return None for ``all``, or otherwise distinct numbers counted from 0.

    Raise ChoiceError if the value is anything else.
    """
    if text.strip() == ALL:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        raise ChoiceError(f"{text!r} is neither 'all' nor numbers such as 0,1")
    numbers = tuple(map(int, parts))
    if len(set(numbers)) < len(numbers):
        raise ChoiceError(f"{text!r} names a device twice")
    return numbers


def require(accelerator: str, numbers: Optional[Tuple[int, ...]]) -> None:
    """Raise ChoiceError if no machine can satisfy the choice.

    This is checked before anything starts.
    """
    if not ACCELERATORS[accelerator].collective:
        raise ChoiceError(f"{accelerator} has one device: there is nothing to choose from")
    if accelerator != "cpu" or numbers is None:
        return
    if len(numbers) > 1:
        raise ChoiceError(
            "on the CPU the number is how many processes train together, such as 2; its cores are"
            " not chosen one by one"
        )
    if not 1 <= numbers[0] <= MOST_RANKS:
        raise ChoiceError(f"{numbers[0]} processes: 1 to {MOST_RANKS} can train together")


def choose(accelerator: str, numbers: Optional[Tuple[int, ...]], count: int) -> Tuple[int, ...]:
    """Return which of ``count`` devices to use or, on the CPU, one number for each rank.

    Raise ChoiceError if a requested device does not exist.
    """
    require(accelerator, numbers)
    if accelerator == "cpu":
        return tuple(range(CPU_RANKS if numbers is None else numbers[0]))
    if count < 1:
        raise ChoiceError(f"torch sees no {accelerator} device")
    missing = [number for number in numbers or () if number >= count]
    if missing:
        raise ChoiceError(
            f"device {missing[0]} was requested, but torch sees {count}, numbered from 0"
        )
    return tuple(range(count)) if numbers is None else numbers


def visible(
    accelerator: str, indices: Sequence[int], environment: Mapping[str, str]
) -> Dict[str, str]:
    """Return the variable that restricts a process to some of the currently visible devices.

    ``indices`` are their numbers among the visible devices. The result is empty for an accelerator
    without such a variable.
    """
    row = ACCELERATORS[accelerator]
    name = row.visible
    if not name:
        return {}
    text = next((environment[n] for n in (name, *row.also_visible) if environment.get(n)), "")
    listed = [entry.strip() for entry in text.split(",") if entry.strip()]
    # An existing list renumbers the devices: its first entry is device 0.
    shown = [listed[i] if i < len(listed) else str(i) for i in indices] if listed else indices
    return {name: ",".join(map(str, shown))}


def environment_for(
    accelerator: str,
    indices: Sequence[int],
    ranks: int,
    outside: Mapping[str, str],
    network: Mapping[str, str],
) -> Dict[str, str]:
    """Return the whole environment for ranks on these devices, including their thread count.

    Variables that an outer scheduler or launcher set for its own ranks are left out. ``network``
    contains the variables that specify the network interface to use. ``ranks`` is the number of
    ranks that share this machine's threads.
    """
    result = {k: v for k, v in outside.items() if not k.startswith(_FOREIGN)}
    result.update(visible(accelerator, indices, outside))
    result.update(network)
    total = threads.chosen_by_user(outside.get("OMP_NUM_THREADS"))
    total = total or threads.decide(threads.fetch())
    result["OMP_NUM_THREADS"] = str(max(1, total // ranks))
    return result


def split(cores: Sequence[Tuple[int, ...]], ranks: int) -> List[Tuple[int, ...]]:
    """Return the CPUs of each rank: whole cores of its own or, with too few cores, all CPUs."""
    if len(cores) < ranks:
        return [tuple(chain(*cores))] * ranks
    cuts = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [tuple(chain(*cores[cuts[rank] : cuts[rank + 1]])) for rank in range(ranks)]


def fetch_cores(
    root: Path = threads.ROOT, allowed: Optional[FrozenSet[int]] = None
) -> List[Tuple[int, ...]]:
    """Return the cores this process may use, each as the CPUs (SMT siblings) that it has.

    Tests use ``root`` and ``allowed`` to replace the machine.
    """
    cpus = threads.allowed_cpus() if allowed is None else allowed
    cores: Dict[int, List[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault(min(threads.siblings(root, cpu) or {cpu}), []).append(cpu)
    return [tuple(cores[first]) for first in sorted(cores)]


def pin(cpus: Sequence[int]) -> bool:
    """Restrict this process to these CPUs. Return False if the system cannot do so (macOS)."""
    setter = getattr(os, "sched_setaffinity", None)
    if setter is None:
        return False
    setter(0, cpus)
    return True
