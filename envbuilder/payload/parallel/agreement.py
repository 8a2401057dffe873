"""Checks that all ranks did their work, on separate devices and with equal results.

All functions are pure.
"""

from __future__ import annotations

import re
import signal
from array import array
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..report import PASSED, WARNING, CheckError

SAME = 1e-6
"""Relative difference of two ranks' gradients or weights up to which they count as equal."""


@dataclass
class Ended:
    """How one run of ranks ended, and the contents of the files that the ranks left.

    ``returncode`` is None if the run was stopped after ``limit`` seconds. The files contain each
    rank's result, its last state, and its gradients and weights as float32.
    """

    returncode: Optional[int]
    output: str
    results: List[Dict[str, Any]]
    states: List[Dict[str, Any]]
    gradients: List[bytes]
    weights: List[bytes]
    limit: float


def check_ended(ended: Ended) -> Tuple[str, str]:
    """Require that every rank finished all of its work and exited."""
    lost = [n for n, result in enumerate(ended.results) if "block_seconds" not in result]
    if ended.returncode is None and lost:
        phases = "; ".join(
            f"rank {n}: {s.get('phase', 'start')}" for n, s in enumerate(ended.states)
        )
        raise CheckError(
            f"hung: not finished after {ended.limit:g} s, and was stopped. Last seen: {phases}"
        )
    if lost:
        raise CheckError(_why(ended, lost))
    for number, result in enumerate(ended.results):
        if result["loss"] is None:
            raise CheckError(f"rank {number}: the loss is not a finite number")
    if ended.returncode != 0:
        # All results are there and are judged by themselves; a failed exit is only a warning.
        how = "hung" if ended.returncode is None else f"exit code {ended.returncode}"
        return WARNING, f"all work was done, but the exit failed ({how})"
    threads = ended.results[0]["threads"]
    return PASSED, f"{len(ended.results)} done, {threads} threads each"


def _why(ended: Ended, lost: Sequence[int]) -> str:
    """Return a phrase that says which rank failed first, and why."""
    errors = [(n, ended.results[n]) for n in lost if "error" in ended.results[n]]
    errors.sort(key=lambda pair: pair[1].get("time", 0))
    # A rank that ended without an error message comes first, whatever torchrun calls the root
    # cause: torchrun counts whole seconds, and the loss of that rank causes the others' errors.
    silent = _exit_codes(ended, [n for n in lost if "error" not in ended.results[n]])
    # A rank that torchrun itself ended is not the cause if there is another one.
    if errors or set(silent.values()) != {-signal.SIGTERM}:
        silent = {n: code for n, code in silent.items() if code != -signal.SIGTERM}
    first = []
    for number, code in sorted(silent.items()):
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        phase = ended.states[number].get("phase", "start")
        first.append(f"rank {number} {how} (last seen: {phase})")
    first += [f"rank {n}: {result['error']}" for n, result in errors]
    last = ended.output.strip().splitlines()[-1:] or ["no output"]
    return "; ".join(first) or f"exit code {ended.returncode} before it was done: {last[0]}"


def _exit_codes(ended: Ended, numbers: Sequence[int]) -> Dict[int, int]:
    """Map the numbers of ranks to their exit codes.

    Ranks that are missing from torchrun's summary of failures are left out.
    """
    pattern = r"^\s*rank\s*:\s*(\d+)\b.*\n\s*exitcode\s*:\s*(-?\d+)"
    pairs = re.findall(pattern, ended.output, re.MULTILINE)
    codes = {int(rank): int(code) for rank, code in pairs}
    return {number: codes[number] for number in numbers if number in codes}


def check_distinct(results: Sequence[Dict[str, Any]]) -> Tuple[str, str]:
    """Require that no two ranks worked on the same device."""
    places = [str(result["device"]) for result in results]
    if len({result["pid"] for result in results}) < len(results):
        raise CheckError("two ranks are one process")
    if "" in places:
        return WARNING, "this system cannot pin processes to cores: they may have shared some"
    if len(set(places)) == len(places):
        return PASSED, "; ".join(f"rank {n}: {place}" for n, place in enumerate(places))
    if places[0].startswith("CPUs"):
        return (
            WARNING,
            f"fewer cores than ranks: all share {places[0]}, so none can gain anything",
        )
    raise CheckError(f"two ranks worked on the same device: {'; '.join(places)}")


def check_single(result: Dict[str, Any]) -> Tuple[str, str]:
    """Require that the gradients equal those of one process over the joined batch.

    They may differ by a tolerance for rounding.
    """
    error = result["gradient_error"]
    tolerance = result["gradient_tolerance"]
    phrase = f"{result['gradient']} differs by {'?' if error is None else format(error, '.1e')}"
    if error is None or not error <= tolerance:
        raise CheckError(
            f"not those of one float64 process over the joined batch: {phrase}, at most"
            f" {tolerance:g} is rounding"
        )
    return PASSED, f"as one float64 process over the joined batch: {phrase}"


def check_same(kind: str, contents: Sequence[bytes]) -> Tuple[str, str]:
    """Require that all ranks have the same numbers, within a tolerance.

    ``kind`` says what the numbers are, such as "gradients". ``contents`` are their bytes on each
    rank.
    """
    if not contents[0]:
        raise CheckError(f"there are no {kind}")
    differences = [difference(contents[0], other) for other in contents[1:]]
    worst = max(differences)
    if not worst <= SAME:
        rank = 1 + differences.index(worst)
        raise CheckError(f"the {kind} of rank {rank} differ from rank 0's by {worst:.1e}")
    same = "bit for bit" if worst == 0 else f"within {worst:.1e}"
    return PASSED, f"{kind} equal on {len(contents)} ranks, {same}"


def difference(ours: bytes, theirs: bytes) -> float:
    """Return |ours - theirs| / |ours|, using the norms of float32 arrays.

    Return infinity if the arrays cannot be compared.
    """
    if ours == theirs:
        return 0.0
    if len(ours) != len(theirs) or len(ours) % 4:
        return float("inf")
    first = array("f", ours)
    second = array("f", theirs)
    apart = sum((a - second[n]) ** 2 for n, a in enumerate(first))
    norm = sum(a * a for a in first)
    relative = (apart / norm) ** 0.5 if norm else float("inf")
    # NaN if one of them contains NaN, which a check for "too large" would let pass.
    return relative if relative == relative else float("inf")  # noqa: PLR0124
