"""Put together what became of each node: its job, its pod and the report in its log."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from envbuilder.build import isolation
from envbuilder.core.errors import VERIFY_FAILED, ToolError, VerifyError
from envbuilder.core.parallel import pool
from envbuilder.core.text import printable
from envbuilder.fleet import judge
from envbuilder.fleet import result as results
from envbuilder.fleet.judge import Judged
from envbuilder.fleet.kubernetes import log as logs
from envbuilder.fleet.kubernetes import states
from envbuilder.fleet.kubernetes.jobs import pod_job, run_id
from envbuilder.fleet.model import LONGEST_REASON, SCHEMA, Detected
from envbuilder.fleet.result import Result
from envbuilder.payload.training.dataset import Dataset
from envbuilder.profiles.profile import Profile
from envbuilder.verify.report import consistency, model, speed
from envbuilder.verify.run import as_stored, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from envbuilder.fleet.kubernetes.log import Log
    from envbuilder.fleet.kubernetes.objects import JobObject, PodObject
    from envbuilder.fleet.kubernetes.stated import Stated
    from envbuilder.fleet.kubernetes.states import Ended, State
    from envbuilder.fleet.model import Outcome
    from envbuilder.verify.run import Job

WORKERS = 8
"""Logs that are read at the same time."""
_BATCH = 32
"""Logs that are in memory at the same time."""
_LONGEST_NAME = 100
_Place = TypeVar("_Place", bound=Hashable)


class Source(Protocol):
    """What a cluster is asked; each call is bounded, and raises `ToolError` if it fails."""

    def jobs(self, run: str) -> tuple[JobObject, ...]:
        """Return the jobs of a run."""
        ...

    def pods(self, run: str) -> tuple[PodObject, ...]:
        """Return the pods of a run."""
        ...

    def log(self, pod: str) -> str:
        """Return what a pod printed."""
        ...


class Work(Struct, frozen=True, kw_only=True):
    """What all pods of a run were to train, and what it was to prove, by profile."""

    run: str
    subset: bool
    """Whether they train on the small subset of MNIST."""
    data: Dataset
    """What they train on, as loaded here."""
    profiles: Mapping[str, Profile]


class Collected(Struct, frozen=True, kw_only=True):
    """A node's row, and what it sent; None if it sent nothing."""

    judged: Judged
    content: bytes | None = None


def collect(
    work: Work, stated: Sequence[Stated], source: Source, done: Callable[[], None]
) -> list[Collected]:
    """Return what became of each stated job, in their order; `done` is called after each.

    Raises `ToolError` if the cluster does not answer; a log that cannot be read is its node's.
    """
    jobs, pods = listed(source, work.run, owner)
    collected = []
    with pool(WORKERS) as executor:
        for first in range(0, len(stated), _BATCH):
            batch = [
                (each, states.state(jobs.get(each.job), pods.get(each.job)))
                for each in stated[first : first + _BATCH]
            ]
            # Only logs are read in threads: two that first decode a struct of msgspec's (0.22.0) at
            # the same time may end the process by a segmentation fault.
            texts = executor.map(lambda pair: _log(pair[1], source), batch)
            for (each, state), text in zip(batch, texts, strict=True):
                collected.append(_of(work, each, state, text))
                done()
    return collected


def _log(state: State, source: Source) -> str | ToolError:
    """Return the log of a pod that ended, or why it cannot be read; empty for others."""
    if isinstance(state, states.NoResult):
        return ""
    try:
        return source.log(state.pod)
    except ToolError as error:
        return error


def owner(pod: PodObject) -> str:
    """Return the name of a pod's job."""
    return pod.metadata.labels.get("job-name", "")


def listed(
    source: Source, run: str, place: Callable[[PodObject], _Place]
) -> tuple[dict[str, JobObject], dict[_Place, PodObject]]:
    """Return the jobs of a run by name, and its pods by what `place` returns of them."""
    # Pods come last: one that is there has its job among those that were listed before.
    jobs = {job.metadata.name: job for job in source.jobs(run)}
    return jobs, _newest(source.pods(run), place)


def _newest(
    pods: Iterable[PodObject], place: Callable[[PodObject], _Place]
) -> dict[_Place, PodObject]:
    """Return the pod in each place. There is one, unless somebody deleted the first."""
    by_place: dict[_Place, PodObject] = {}
    for pod in pods:
        key = place(pod)
        if key not in by_place or by_place[key].metadata.deletionTimestamp:
            by_place[key] = pod
    return by_place


def _of(work: Work, stated: Stated, state: State, text: str | ToolError) -> Collected:
    if isinstance(state, states.NoResult):
        return _unexamined(stated, state.outcome, state.detail)
    if isinstance(text, ToolError):
        return _unexamined(stated, "lost", text.message)
    log = logs.read(text)
    if detail := of_another(log, work.run, state):
        return _unexamined(stated, "mixed-up", detail)
    content = results.encode(_result(work, stated, state, log))
    judged = judge.examined(stated.promise, stated.job, content, work.run, state.pod)
    return Collected(judged=judged, content=content)


def of_another(log: Log, run: str, ended: Ended) -> str:
    """Return whose report is in a pod's log if it is not that pod's own, else an empty string."""
    if log.report is None or log.run_id == run_id(run, ended.node, ended.pod):
        return ""
    return f"the report in its log is of {printable(log.run_id, _LONGEST_NAME)}"


def _unexamined(stated: Stated, outcome: Outcome, detail: str) -> Collected:
    return Collected(judged=judge.unexamined(stated.promise, outcome, detail, stated.job))


def _result(work: Work, stated: Stated, ended: Ended, log: Log) -> Result:
    """Return what the node would have sent itself, if envbuilder ran there."""
    exit_code, message, report = ended.exit_code, log.last, None
    if log.report is not None:
        job = pod_job(work.profiles[stated.profile], subset=work.subset)
        facts = {
            "profile": stated.profile,
            "backend": "docker",
            "artifact": {"kind": "image", "ref": stated.image, "digest": ended.image or None},
            "host": {"container": True},
        }
        try:
            report = _checked(work, job, log.report, ended.seconds, facts)
        except VerifyError as error:
            report = model.assemble(unfinished(job, error), facts)
            message = error.message
            exit_code = None if exit_code is None else VERIFY_FAILED
    return Result(
        schema=SCHEMA,
        run=work.run,
        job=stated.job,
        # Where it ran, which may not be where it was to run.
        node=ended.node,
        host=ended.node,
        exit_code=exit_code,
        message=message,
        seconds=ended.seconds,
        detected=Detected(),
        gpus=None,
        report=report,
    )


def _checked(
    work: Work,
    job: Job,
    sent: dict[str, Any],
    seconds: float,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Return the whole report; raise `VerifyError` if it cannot be trusted.

    As in a verification on this machine, except for the blind test and the arrival of events: a
    log is read after the end.
    """
    sent = as_stored(sent, "")
    measured = model.check(sent)
    if measured.status != "failed":
        request = consistency.request_for(
            job.expects, work.data, epochs=job.epochs, quick=job.quick
        )
        problems = consistency.contradictions(request, measured, seconds)
        if problems:
            listed = printable("; ".join(problems), LONGEST_REASON)
            raise VerifyError(f"the payload reported passed, not to be trusted: {listed}")
        isolation.require(sent, facts["artifact"], as_found=False)
    return speed.with_speed(model.assemble(sent, facts))
