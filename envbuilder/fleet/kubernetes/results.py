"""Judge the logs of rendered Jobs that the user saved.

A log is a file that anybody may have saved or changed. Node, pod and run are those that it names,
nothing attests them, and no outcome is better than `unproven`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from envbuilder.build import isolation
from envbuilder.core import decoding, files, text, types
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.resources import MARK
from envbuilder.core.text import printable
from envbuilder.fleet import groups, judge
from envbuilder.fleet.kubernetes.manifests import DATA, IMAGES, NODE, NODES, PROFILE, RUN, WHY
from envbuilder.fleet.model import (
    LONGEST_REASON,
    PROVEN,
    Entry,
    Group,
    JobId,
    NodeName,
    Outcome,
    Promise,
    RunId,
    Summary,
    epochs,
    natural,
    started,
)
from envbuilder.payload.parallel.shares import MOST_RANKS
from envbuilder.payload.report import UNREPEATED
from envbuilder.verify import parallel
from envbuilder.verify.report import consistency, model, speed
from envbuilder.verify.run import as_stored, pod_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from envbuilder.payload.training.dataset import Dataset
    from envbuilder.profiles.profile import Profile

RESULTS = "results"
"""The folder for the logs, in that of the manifests."""
_FILES = ("job-*.yaml", "ddp*.yaml")
_LARGEST_LOG = 16 << 20
"""Bytes. Kubelets keep 10 MiB of a log; a verification writes 0.1 to 0.3 MB."""
_EVENT = '{"event":'


class RenderedJob(Struct, frozen=True, kw_only=True):
    """A Job that `fleet render` wrote: for one node, or for several that train together."""

    run: RunId
    name: JobId
    nodes: Annotated[tuple[NodeName, ...], Meta(min_length=1, max_length=MOST_RANKS)]
    profile: types.Name
    why: str
    """What promises the profile of its only node."""
    subset: bool
    """Whether it trains on the small subset of MNIST."""
    seconds: int
    """How long its pod may live."""


class Log(Struct, frozen=True, kw_only=True):
    """The report in a pod's log, and the run, node and pod that it names."""

    report: dict[str, Any]
    run_id: str

    @property
    def pod(self) -> str:
        """Return the pod that the report names, safe to print."""
        return printable("".join(self.run_id.split("/", 2)[2:]), LONGEST_REASON)


Ended = tuple[Outcome, str]
"""The outcome of a Job whose log has no report of its own, and why."""


def is_rendered(folder: Path) -> bool:
    """Return whether a folder holds manifests of Jobs."""
    return any(next(folder.glob(pattern), None) for pattern in _FILES)


def read_jobs(folder: Path) -> tuple[RenderedJob, ...]:
    """Return the Jobs of a folder that `fleet render` wrote.

    Raises `InvalidError` if one is malformed, or if they are of several runs.
    """
    jobs = tuple(_read_job(path) for pattern in _FILES for path in sorted(folder.glob(pattern)))
    runs = sorted({job.run for job in jobs})
    if len(runs) != 1:
        raise InvalidError(
            f"{folder}: expected the Jobs of one run, it has {', '.join(runs) or 'none'}",
            "Keep those of one run, as `fleet render` wrote them.",
        )
    return jobs


def _read_job(path: Path) -> RenderedJob:
    where, text = str(path), files.read_text(path)
    if MARK not in text.partition("\n")[0]:
        raise InvalidError(f"{where}: not made by envbuilder", "Move it away.")
    manifest = decoding.parse_yaml(text, where)
    try:
        metadata = manifest["metadata"]
        notes = metadata["annotations"]
        facts = {
            "run": metadata["labels"][RUN],
            "name": metadata["name"],
            "nodes": [notes[NODE]] if NODE in notes else notes[NODES].split(","),
            "profile": notes[PROFILE],
            "why": printable(notes.get(WHY, ""), LONGEST_REASON),
            "subset": notes[IMAGES] == "subset",
            "seconds": manifest["spec"]["template"]["spec"]["activeDeadlineSeconds"],
        }
        job = decoding.convert(facts, RenderedJob)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{where}: not a rendered Job: {problem}", "Render it again.") from error
    if len(set(job.nodes)) < len(job.nodes):
        raise InvalidError(f"{where}: {NODES}: a node is named twice", "Render it again.")
    return job


def judge_run(
    folder: Path,
    jobs: Sequence[RenderedJob],
    profile_of: Callable[[str], Profile],
    data: Dataset | None,
) -> Summary:
    """Return the summary of a run from the logs in its folder.

    `data` are the images that pods were to train on; it is not used for nodes that train together.
    """
    entries: list[Entry] = []
    together: list[Group] = []
    for job in jobs:
        log = _read_log(folder, job)
        if len(job.nodes) > 1:
            together.append(_judge_group(job, log))
        else:
            assert data is not None
            entries.append(_judge_node(job, log, profile_of(job.profile), data))
    run, subset = jobs[0].run, jobs[0].subset
    return Summary(
        run=run,
        scheduler="kubernetes",
        started=started(run),
        finished=text.stamp_now(),
        quick=subset,
        epochs=epochs(None, quick=subset),
        entries=tuple(sorted(entries, key=lambda entry: natural(entry.node))),
        across=bool(together),
        groups=tuple(together),
        attested=False,
    )


def _read_log(folder: Path, job: RenderedJob) -> Log | Ended:
    path = folder / RESULTS / f"{job.name}.json"
    try:
        content = files.read(path, _LARGEST_LOG)
    except FileNotFoundError:
        return "lost", f"there is no {RESULTS}/{path.name}: save its log, as README.md says"
    except OSError as error:
        return "lost", f"{RESULTS}/{path.name}: cannot be read: {error.strerror or error}"
    log = parse_log(content.decode(errors="replace"))
    if isinstance(log, Log):
        named = log.run_id.split("/")[:2]
        if not log.pod or named not in [[job.run, node] for node in job.nodes]:
            which = printable(log.run_id, LONGEST_REASON)
            return "mixed-up", f"the report in its log is of {which}"
    return log


def parse_log(text: str) -> Log | Ended:
    """Parse a log, where stdout and stderr are mixed; the last report counts."""
    log, error, last = None, "", "it is empty"
    for line in text.splitlines():
        if not line.startswith(_EVENT):
            last = line if line.strip() else last
            continue
        event = _event(line)
        if event.get("event") == "report" and isinstance(event.get("report"), dict):
            log = Log(report=event["report"], run_id=str(event.get("run_id")))
        elif event.get("event") == "error":
            error = str(event.get("message"))
    if log is not None:
        return log
    if error:
        return "broken", error
    return "lost", f"the log holds no report; save it again when the pod has ended: {last}"


def _event(line: str) -> dict[str, Any]:
    """Return an event that may matter; progress and phases are most of the lines."""
    kind = line[: len(_EVENT) + 12]
    if '"report"' in kind or '"error"' in kind:
        with contextlib.suppress(ValueError):
            event = decoding.strict_json(line.encode())
            return event if isinstance(event, dict) else {}
    return {}


def _judge_node(job: RenderedJob, log: Log | Ended, profile: Profile, data: Dataset) -> Entry:
    promise = Promise(node=job.nodes[0], profile=job.profile, why=job.why)
    if not isinstance(log, Log):
        return judge.unexamined(promise, *log, job.name).entry
    try:
        report = model.check(_checked(job, log.report, profile, data))
    except VerifyError as error:
        entry = judge.unexamined(promise, "failed", error.message, job.name).entry
    else:
        entry = judge.of_report(promise, job.name, report).entry
    if entry.outcome in {*PROVEN, "slow"}:
        entry = replace(entry, outcome="unproven", detail=UNREPEATED)
    return replace(entry, pod=log.pod)


def _checked(
    job: RenderedJob, sent: dict[str, Any], profile: Profile, data: Dataset
) -> dict[str, Any]:
    """Return the whole report; raise `VerifyError` if it contradicts the request or itself.

    As in a verification on this machine, except for the blind test, the arrival of events and the
    repeated steps: a log is read after the end.
    """
    artifact = {"kind": "image"}
    facts = {
        "profile": profile.name,
        "backend": "docker",
        "artifact": artifact,
        "host": {"container": True},
    }
    sent = as_stored(sent, "")
    measured = model.check(sent)
    if measured.status != "failed":
        pod = pod_job(profile, DATA, job.subset)
        request = consistency.request_for(pod.expects, data, epochs=pod.epochs, quick=pod.quick)
        problems = consistency.contradictions(request, measured, job.seconds)
        problems += filter(None, [isolation.differences(sent, artifact, as_found=False)])
        if problems:
            raise VerifyError(f"the report is not to be trusted: {'; '.join(problems)}")
    return speed.with_speed(model.assemble(sent, facts))


def _judge_group(job: RenderedJob, log: Log | Ended) -> Group:
    members = groups.Members(nodes=job.nodes, profile=job.profile)
    if not isinstance(log, Log):
        return groups.unexamined(members, *log, job.name)
    attempt = parallel.attempt(job.run, job.name)
    try:
        report = as_stored(log.report, "")
    except VerifyError as error:
        return groups.unexamined(members, "mixed-up", error.message, job.name)
    sent = {
        "schema": 1,
        "attempt": attempt,
        "nodes": len(job.nodes),
        "status": report.get("status"),
        "reasons": report.get("reasons"),
        "profile": job.profile,
        "backend": "docker",
        "fingerprint": None,
        "scaling": {key: value for key, value in report.items() if key != "schema"},
    }
    group = groups.of_result(members, attempt, job.name, sent)
    if group.outcome in PROVEN:
        group = replace(group, outcome="unproven")
    return replace(group, pod=log.pod)
