"""Judge the logs of Kubernetes Jobs that the user saved beside their manifests.

docs/guides/kubernetes.md has the Job. A log is a file that anybody may have saved or changed. Node,
pod and run are those that it names, nothing attests them, and no outcome is better than `unproven`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import isolation
from envbuilder.core import decoding, files, text, types
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.text import printable
from envbuilder.fleet import judge
from envbuilder.fleet.model import (
    LONGEST_REASON,
    PROVEN,
    Entry,
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
from envbuilder.payload.report import UNREPEATED
from envbuilder.verify.report import consistency, model, speed
from envbuilder.verify.run import as_stored, pod_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from envbuilder.payload.training.dataset import Dataset
    from envbuilder.profiles.profile import Profile

RESULTS = "results"
"""The folder for the logs, in that of the manifests."""
_MANIFESTS = "job-*.yaml"
_DATA = "/data"
"""Where pods find the four files of MNIST."""
_RUN = "envbuilder/run"
_NODE = "envbuilder/node"
_PROFILE = "envbuilder/profile"
_IMAGES = "envbuilder/images"
"""Keys of annotations: what a pod's report is to name, and whether all of MNIST is used."""
_WHY = "its Job's annotation"
_LARGEST_LOG = 16 << 20
"""Bytes. Kubelets keep 10 MiB of a log; a verification writes 0.1 to 0.3 MB."""
_EVENT = '{"event":'


class PodJob(Struct, frozen=True, kw_only=True):
    """The Job that verifies a node."""

    run: RunId
    name: JobId
    node: NodeName
    profile: types.Name
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


def has_jobs(folder: Path) -> bool:
    """Return whether a folder holds manifests of Jobs."""
    return next(folder.glob(_MANIFESTS), None) is not None


def read_jobs(folder: Path) -> tuple[PodJob, ...]:
    """Return the Jobs of a folder.

    Raises `InvalidError` if one is malformed, or if they are of several runs.
    """
    jobs = tuple(_read_job(path) for path in sorted(folder.glob(_MANIFESTS)))
    runs = sorted({job.run for job in jobs})
    if len(runs) != 1:
        raise InvalidError(
            f"{folder}: expected the Jobs of one run, it has {', '.join(runs) or 'none'}",
            f"Keep those with one value of {_RUN} in a folder.",
        )
    return jobs


def _read_job(path: Path) -> PodJob:
    where = str(path)
    manifest = decoding.parse_yaml(files.read_text(path), where)
    try:
        metadata = manifest["metadata"]
        notes = metadata["annotations"]
        facts = {
            "run": notes[_RUN],
            "name": metadata["name"],
            "node": notes[_NODE],
            "profile": notes[_PROFILE],
            "subset": notes[_IMAGES] == "subset",
            "seconds": manifest["spec"]["template"]["spec"]["activeDeadlineSeconds"],
        }
        return decoding.convert(facts, PodJob)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(
            f"{where}: not a Job that verifies a node: {problem}",
            "Write it as docs/guides/kubernetes.md shows.",
        ) from error


def judge_run(
    folder: Path,
    jobs: Sequence[PodJob],
    profile_of: Callable[[str], Profile],
    data: Dataset,
) -> Summary:
    """Return the summary of a run from the logs in its folder.

    `data` are the images that pods were to train on.
    """
    entries = [
        _judge_node(job, _read_log(folder, job), profile_of(job.profile), data) for job in jobs
    ]
    run = jobs[0].run
    subset = jobs[0].subset
    return Summary(
        run=run,
        scheduler="kubernetes",
        started=started(run),
        finished=text.stamp_now(),
        quick=subset,
        epochs=epochs(quick=subset),
        entries=tuple(sorted(entries, key=lambda entry: natural(entry.node))),
        attested=False,
    )


def _read_log(folder: Path, job: PodJob) -> Log | Ended:
    path = folder / RESULTS / f"{job.name}.json"
    try:
        content = files.read(path, _LARGEST_LOG)
    except FileNotFoundError:
        return "lost", f"there is no {RESULTS}/{path.name}: save its log there"
    except OSError as error:
        return "lost", f"{RESULTS}/{path.name}: cannot be read: {error.strerror or error}"
    log = parse_log(content.decode(errors="replace"))
    if isinstance(log, Log):
        named = log.run_id.split("/")[:2]
        if not log.pod or named != [job.run, job.node]:
            which = printable(log.run_id, LONGEST_REASON)
            return "mixed-up", f"the report in its log is of {which}"
    return log


def parse_log(text: str) -> Log | Ended:
    """Parse a log, where stdout and stderr are mixed; the last report counts."""
    log = None
    error = ""
    last = "it is empty"
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
    """Return an event; empty if the line is damaged."""
    with contextlib.suppress(ValueError):
        event = decoding.strict_json(line.encode())
        if isinstance(event, dict):
            return event
    return {}


def _judge_node(job: PodJob, log: Log | Ended, profile: Profile, data: Dataset) -> Entry:
    promise = Promise(node=job.node, profile=job.profile, why=_WHY)
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


def _checked(job: PodJob, sent: dict[str, Any], profile: Profile, data: Dataset) -> dict[str, Any]:
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
        pod = pod_job(profile, _DATA, job.subset)
        request = consistency.request_for(pod.expects, data, epochs=pod.epochs, quick=pod.quick)
        problems = consistency.contradictions(request, measured, job.seconds)
        problems += filter(None, [isolation.differences(sent, artifact, as_found=False)])
        if problems:
            raise VerifyError(f"the report is not to be trusted: {'; '.join(problems)}")
    return speed.with_speed(model.assemble(sent, facts))
