"""Kubernetes' objects as `kubectl get -o json` prints them, as far as they are needed.

Unknown fields are ignored, since each release adds some; what is used has a type and a limit.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.core.text import printable

T = TypeVar("T")
LARGEST = 64 << 20
"""Maximum size of a list in bytes; a pod has about 10,000."""
_LONGEST_PROBLEM = 200

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,252}\Z")]
Texts = Annotated[dict[str, str], Meta(max_length=1000)]


class Metadata(Struct, frozen=True):
    """Whose object it is."""

    name: Name
    namespace: str = ""
    labels: Texts = {}
    annotations: Texts = {}
    deletionTimestamp: str | None = None  # noqa: N815 (the API's name, as all of these)


class Condition(Struct, frozen=True):
    """One aspect of an object's state."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


Conditions = Annotated[tuple[Condition, ...], Meta(max_length=100)]


class JobSpec(Struct, frozen=True):
    """Whether a job is to wait."""

    suspend: bool = False


class JobStatus(Struct, frozen=True):
    """How a job is."""

    conditions: Conditions = ()


class JobObject(Struct, frozen=True):
    """A Job."""

    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Waiting(Struct, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Running(Struct, frozen=True):
    """Since when a container runs."""

    startedAt: str | None = None  # noqa: N815


class Terminated(Struct, frozen=True):
    """How a container ended. Times are whole seconds in UTC."""

    exitCode: int  # noqa: N815
    reason: str = ""
    message: str = ""
    startedAt: str | None = None  # noqa: N815
    finishedAt: str | None = None  # noqa: N815


class State(Struct, frozen=True):
    """A container's state: one of these."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """How a container is, and which image it really has."""

    name: str
    state: State = State()
    imageID: str = ""  # noqa: N815


class PodSpec(Struct, frozen=True):
    """The node that a pod was bound to."""

    nodeName: str = ""  # noqa: N815


class PodStatus(Struct, frozen=True):
    """How a pod is."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: Conditions = ()
    containerStatuses: Annotated[  # noqa: N815
        tuple[ContainerStatus, ...], Meta(max_length=100)
    ] = ()


class PodObject(Struct, frozen=True):
    """A Pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class JobList(Struct, frozen=True):
    """What `kubectl get jobs -o json` prints."""

    items: tuple[JobObject, ...]


class PodList(Struct, frozen=True):
    """What `kubectl get pods -o json` prints."""

    items: tuple[PodObject, ...]


def parse(content: bytes, kind: type[T], where: str) -> T:
    """Return a list of objects; raise `InvalidError` if it is none."""
    if len(content) > LARGEST:
        raise InvalidError(f"{where}: larger than {LARGEST >> 20} MiB")
    try:
        decoding.require_few_values(content)
        return decoding.from_json(content, kind)
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), _LONGEST_PROBLEM)
        raise InvalidError(f"{where}: not a list of Kubernetes' objects: {problem}") from error
