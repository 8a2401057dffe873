"""What became of a node's job, from what the cluster says of it and of its pod. Pure.

Reasons are Kubernetes' own: of pods in pkg/kubelet/eviction, pkg/kubelet/nodeshutdown and
pkg/kubelet/lifecycle, of containers in pkg/kubelet/container and pkg/kubelet/images.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.fleet.kubernetes.manifests import CONTAINER
from envbuilder.fleet.model import Outcome

if TYPE_CHECKING:
    from envbuilder.fleet.kubernetes.objects import (
        ContainerStatus,
        JobObject,
        PodObject,
        Terminated,
    )

_CANNOT_START = frozenset(
    (
        *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"),
        *("ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    )
)
"""Why a container waits that will not start by waiting longer."""
_TAKEN_AWAY = frozenset(
    ("Evicted", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "Preempted", "NodeLost")
)
"""Why a pod failed that something else than its container ended."""
_NOT_ADMITTED = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeName", "AppArmor")
"""Beginnings of why a kubelet did not accept a pod."""
_NOT_STARTED = frozenset(("ContainerCannotRun", "StartError", "ContainerStatusUnknown"))
_TOO_LONG = "DeadlineExceeded"
_SIGNALS = {137: "signal 9", 143: "signal 15"}


class NoResult(Struct, frozen=True, kw_only=True):
    """A job without a result, or not yet with one."""

    outcome: Outcome
    detail: str


class Ended(Struct, frozen=True, kw_only=True):
    """A container that ended by itself or was stopped for taking too long: its log says more."""

    pod: str
    node: str
    """Where it ran."""
    exit_code: int | None
    """None if it took too long."""
    seconds: float
    """Upper bound of how long it ran."""
    image: str = ""
    """The digest of the image that ran; empty if that is not known."""


State = NoResult | Ended


def state(job: JobObject | None, pod: PodObject | None) -> State:
    """Return what became of a job, of which `pod` is the newest pod."""
    if pod is None:
        return _without_pod(job)
    status = next((s for s in pod.status.containerStatuses if s.name == CONTAINER), None)
    if pod.status.phase in {"Succeeded", "Failed"}:
        return _finished(pod, status)
    if pod.metadata.deletionTimestamp:
        return NoResult(outcome="lost", detail="its pod is being deleted")
    if pod.status.phase == "Running":
        return NoResult(outcome="pending", detail="it is still running: collect again later")
    if pod.status.phase != "Pending":
        detail = f"the cluster does not know how its pod is: {pod.status.phase or 'no phase'}"
        return NoResult(outcome="lost", detail=_because(detail, pod.status.message))
    return _pending(pod, status)


def _without_pod(job: JobObject | None) -> NoResult:
    if job is None:
        detail = "the cluster has no such job: it was not created, or is deleted already"
        return NoResult(outcome="lost", detail=detail)
    failed = next(
        (c for c in job.status.conditions if c.type == "Failed" and c.status == "True"), None
    )
    if failed is not None and failed.reason == _TOO_LONG:
        # A pod that started would have come to its own deadline first, and would be kept.
        return NoResult(outcome="pending", detail="its node had no place for it in time")
    if failed is not None:
        detail = _because(f"it failed without a pod: {failed.reason}", failed.message)
        return NoResult(outcome="lost", detail=detail)
    if job.spec.suspend:
        return NoResult(outcome="pending", detail="its job is suspended: its queue holds it back")
    name = job.metadata.name
    return NoResult(outcome="lost", detail=f"it has no pod: kubectl describe job {name}")


def _pending(pod: PodObject, status: ContainerStatus | None) -> NoResult:
    waiting = status.state.waiting if status else None
    if waiting is not None and waiting.reason in _CANNOT_START:
        return NoResult(outcome="broken", detail=_because(waiting.reason, waiting.message))
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            detail = _because(condition.reason or "not scheduled", condition.message)
            return NoResult(outcome="pending", detail=detail)
    detail = _because(waiting.reason, waiting.message) if waiting else "its pod has not started"
    return NoResult(outcome="pending", detail=detail)


def _finished(pod: PodObject, status: ContainerStatus | None) -> State:
    from_outside = _ended_from_outside(pod)
    if from_outside is not None:
        return from_outside
    ended = status.state.terminated if status else None
    if pod.status.reason == _TOO_LONG:
        if ended is None:
            return NoResult(outcome="timed-out", detail=_why_not_started(status))
        return _ended(pod, ended, None, status)
    if ended is None:
        detail = _because("its pod failed, and its container did not end", pod.status.message)
        return NoResult(outcome="lost", detail=detail)
    return _without_code(ended) or _ended(pod, ended, ended.exitCode, status)


def _ended_from_outside(pod: PodObject) -> NoResult | None:
    """Return what something else than a pod's container or deadline did to it, if anything."""
    reason, message = pod.status.reason, pod.status.message
    if reason in _TAKEN_AWAY:
        return NoResult(outcome="killed", detail=_because(reason, message))
    if reason.startswith(_NOT_ADMITTED):
        return NoResult(outcome="refused", detail=_because(reason, message))
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            detail = _because(condition.reason, condition.message)
            return NoResult(outcome="killed", detail=detail)
    return None


def _without_code(ended: Terminated) -> NoResult | None:
    """Return how a container ended, if its exit code is not its own."""
    if ended.reason == "OOMKilled":
        return NoResult(outcome="killed", detail="out of memory (OOMKilled)")
    if ended.reason in _NOT_STARTED:
        return NoResult(outcome="broken", detail=_because(ended.reason, ended.message))
    if ended.exitCode in _SIGNALS:
        detail = f"its container was ended by {_SIGNALS[ended.exitCode]}"
        return NoResult(outcome="killed", detail=detail)
    return None


def _ended(
    pod: PodObject, ended: Terminated, exit_code: int | None, status: ContainerStatus | None
) -> Ended:
    return Ended(
        pod=pod.metadata.name,
        node=pod.spec.nodeName,
        exit_code=exit_code,
        seconds=_seconds(ended),
        image=_image(status),
    )


def _why_not_started(status: ContainerStatus | None) -> str:
    waiting = status.state.waiting if status else None
    detail = "its container did not start in time"
    return _because(detail, waiting.reason if waiting else "")


def _because(detail: str, message: str) -> str:
    return f"{detail}: {message}" if message else detail


def _seconds(ended: Terminated) -> float:
    """Return at most how long a container ran; without its times, 0."""
    started, finished = _time(ended.startedAt), _time(ended.finishedAt)
    if started is None or finished is None or finished < started:
        return 0.0
    # Both are cut to whole seconds.
    return (finished - started).total_seconds() + 1.0


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "").astimezone(UTC)
    except ValueError:
        return None


def _image(status: ContainerStatus | None) -> str:
    """Return the digest at the end of what the runtime calls the image."""
    _, _, digits = (status.imageID if status else "").rpartition("sha256:")
    right = len(digits) == 64 and set(digits) <= set("0123456789abcdef")
    return f"sha256:{digits}" if right else ""
