"""What a rendered Job states of its node, read back from its file or from the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import schema, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.resources import MARK
from envbuilder.core.text import printable
from envbuilder.fleet.kubernetes.manifests import IMAGES, WHY
from envbuilder.fleet.kubernetes.names import NODE, PROFILE, RUN
from envbuilder.fleet.model import LONGEST_REASON, JobId, NodeName, Promise, RunId

if TYPE_CHECKING:
    from pathlib import Path

FILES = "job-*.yaml"


class _Labels(Struct, frozen=True):
    run: RunId = msgspec.field(name=RUN)


class _Annotations(Struct, frozen=True):
    node: NodeName = msgspec.field(name=NODE)
    profile: types.Name = msgspec.field(name=PROFILE)
    images: Literal["all", "subset"] = msgspec.field(name=IMAGES)
    why: str = msgspec.field(name=WHY, default="")


class _Metadata(Struct, frozen=True):
    name: JobId
    labels: _Labels
    annotations: _Annotations
    namespace: str | None = None


class _Container(Struct, frozen=True):
    image: str


class _PodSpec(Struct, frozen=True):
    containers: Annotated[tuple[_Container, ...], Meta(min_length=1)]


class _Template(Struct, frozen=True):
    spec: _PodSpec


class _Spec(Struct, frozen=True):
    template: _Template


class JobManifest(Struct, frozen=True):
    """A Job that envbuilder rendered."""

    metadata: _Metadata
    spec: _Spec


class JobManifests(Struct, frozen=True):
    """What `kubectl get jobs -o json` prints of such jobs."""

    items: tuple[JobManifest, ...]


class Stated(Struct, frozen=True, kw_only=True):
    """A node's job as it was rendered."""

    run: str
    job: str
    promise: Promise
    profile: str
    image: str
    subset: bool
    """Whether it trains on the small subset of MNIST."""
    namespace: str | None


def of(manifest: JobManifest) -> Stated:
    """Return what a Job states."""
    metadata, notes = manifest.metadata, manifest.metadata.annotations
    return Stated(
        run=metadata.labels.run,
        job=metadata.name,
        promise=Promise(
            node=notes.node, profile=notes.profile, why=printable(notes.why, LONGEST_REASON)
        ),
        profile=notes.profile,
        image=manifest.spec.template.spec.containers[0].image,
        subset=notes.images == "subset",
        namespace=metadata.namespace,
    )


def read(folder: Path) -> tuple[Stated, ...]:
    """Return the jobs of a folder that `fleet render` wrote.

    Raises `InvalidError` if there are none, if one is malformed, or if they are of several runs.
    """
    jobs = tuple(_read(path) for path in sorted(folder.glob(FILES)))
    if not jobs:
        raise InvalidError(
            f"{folder}: no {FILES} of a run",
            "Name the folder that `envbuilder fleet render` wrote.",
        )
    runs = sorted({job.run for job in jobs})
    if len(runs) > 1:
        raise InvalidError(
            f"{folder}: it has the jobs of several runs: {', '.join(runs)}",
            "Keep those of one of them.",
        )
    return jobs


def _read(path: Path) -> Stated:
    text = schema.read_text(path)
    where = str(path)
    if MARK not in text.partition("\n")[0]:
        raise InvalidError(f"{where}: not made by envbuilder", "Move it away.")
    data = schema.parse_yaml(text, where)
    return of(schema.decode(data, JobManifest, where, text))
