"""Put together what became of nodes that trained together: their Job, its pods, the first's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.core.errors import ToolError, VerifyError
from envbuilder.core.text import printable
from envbuilder.fleet import groups, judge
from envbuilder.fleet.kubernetes import collect, states
from envbuilder.fleet.kubernetes import log as logs
from envbuilder.fleet.model import Group
from envbuilder.verify import parallel
from envbuilder.verify.run import as_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from envbuilder.fleet.kubernetes.collect import Source
    from envbuilder.fleet.kubernetes.log import Log
    from envbuilder.fleet.kubernetes.objects import PodObject
    from envbuilder.fleet.kubernetes.stated import StatedGroup
    from envbuilder.fleet.kubernetes.states import Ended, State
    from envbuilder.fleet.model import Outcome

_INDEX = "batch.kubernetes.io/job-completion-index"
"""Key of the annotation with the number of a pod among those of an Indexed Job."""
_LONGEST_STATUS = 100


class CollectedGroup(Struct, frozen=True, kw_only=True):
    """What became of a group, and what its first pod sent; None if it sent nothing."""

    group: Group
    content: bytes | None = None


def collect_groups(
    run: str, stated: Sequence[StatedGroup], source: Source, done: Callable[[], None]
) -> list[CollectedGroup]:
    """Return what became of each group, in their order; `done` is called after each.

    Raises `ToolError` if the cluster does not answer; a log that cannot be read is its group's.
    """
    if not stated:
        return []
    jobs, pods = collect.listed(source, run, _place)
    collected = []
    for each in stated:
        numbers = range(len(each.members.nodes))
        of_pods = [states.state(jobs.get(each.job), pods.get((each.job, str(n)))) for n in numbers]
        collected.append(_of(each, of_pods, source))
        done()
    return collected


def _place(pod: PodObject) -> tuple[str, str]:
    return collect.owner(pod), pod.metadata.annotations.get(_INDEX, "")


def _of(stated: StatedGroup, of_pods: Sequence[State], source: Source) -> CollectedGroup:
    """Return what became of a group: the first of its pods reports on all."""
    first = of_pods[0]
    if isinstance(first, states.NoResult):
        return _unexamined(stated, *_why(of_pods))
    try:
        log = logs.read(source.log(first.pod))
    except ToolError as error:
        return _unexamined(stated, "lost", error.message)
    if first.exit_code is None or (log.report is None and first.exit_code != 0):
        return _unexamined(stated, *judge.without_report(first.exit_code, first.seconds, log.last))
    try:
        content = _result(stated, first, log)
    except VerifyError as error:
        return _unexamined(stated, "mixed-up", error.message)
    group = groups.examined(stated.members, stated.run, stated.job, content)
    return CollectedGroup(group=group, content=content)


def _why(of_pods: Sequence[State]) -> tuple[Outcome, str]:
    """Return why there is no report: the first pod may only wait for one that cannot come."""
    without = [(n, s) for n, s in enumerate(of_pods) if isinstance(s, states.NoResult)]
    number, state = next((pair for pair in without if pair[1].outcome != "pending"), without[0])
    return state.outcome, f"pod {number}: {state.detail}" if number else state.detail


def _unexamined(stated: StatedGroup, outcome: Outcome, detail: str) -> CollectedGroup:
    return CollectedGroup(group=groups.unexamined(stated.members, outcome, detail, stated.job))


def _result(stated: StatedGroup, first: Ended, log: Log) -> bytes:
    """Return what the first node would have sent itself, if envbuilder ran there.

    Raises `VerifyError` if the report is missing, another pod's, or contradicts the exit code.
    Otherwise it may be anything: it is examined afterwards.
    """
    if log.report is None:
        raise VerifyError("its first pod passed, and has no report")
    if detail := collect.of_another(log, stated.run, first):
        raise VerifyError(detail)
    report = as_stored(log.report, "")
    status = report.get("status")
    if (status == "passed") != (first.exit_code == 0):
        raise VerifyError(
            f"its first pod ended with {first.exit_code}, and its report says"
            f" {printable(str(status), _LONGEST_STATUS)}"
        )
    return msgspec.json.encode(
        {
            "schema": 1,
            "attempt": parallel.attempt(stated.run, stated.job),
            "nodes": len(stated.members.nodes),
            "status": status,
            "reasons": report.get("reasons"),
            "profile": stated.members.profile,
            "backend": "docker",
            "fingerprint": None,
            "scaling": {key: value for key, value in report.items() if key != "schema"},
        }
    )
