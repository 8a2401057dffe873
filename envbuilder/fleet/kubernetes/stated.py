"""What a rendered Job states of its node or nodes, read back from its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding, schema, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.resources import MARK
from envbuilder.core.text import printable
from envbuilder.fleet.groups import Members
from envbuilder.fleet.kubernetes.manifests import IMAGES, WHY
from envbuilder.fleet.kubernetes.names import NODE, NODES, PROFILE, RUN
from envbuilder.fleet.model import LONGEST_REASON, JobId, NodeName, Promise, RunId
from envbuilder.payload.parallel.shares import MOST_RANKS

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("job-*.yaml", "ddp*.yaml")
"""Those of the Jobs for a node each, and of the Jobs in which nodes train together."""
_Nodes = Annotated[tuple[NodeName, ...], Meta(min_length=2, max_length=MOST_RANKS)]


class _Labels(Struct, frozen=True):
    run: RunId = msgspec.field(name=RUN)


class _Annotations(Struct, frozen=True):
    profile: types.Name = msgspec.field(name=PROFILE)
    images: Literal["all", "subset"] = msgspec.field(name=IMAGES)
    node: NodeName | None = msgspec.field(name=NODE, default=None)
    nodes: str = msgspec.field(name=NODES, default="")
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


class StatedGroup(Struct, frozen=True, kw_only=True):
    """The Job of nodes that train together as it was rendered."""

    run: str
    job: str
    members: Members
    subset: bool
    """Whether they train on the small subset of MNIST."""
    namespace: str | None


def of(manifest: JobManifest, where: str) -> Stated | StatedGroup:
    """Return what a Job states; raise `InvalidError` if it names no node, or odd ones."""
    metadata, notes = manifest.metadata, manifest.metadata.annotations
    if notes.node is None:
        return StatedGroup(
            run=metadata.labels.run,
            job=metadata.name,
            members=Members(nodes=_nodes(metadata, where), profile=notes.profile),
            subset=notes.images == "subset",
            namespace=metadata.namespace,
        )
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


def _nodes(metadata: _Metadata, where: str) -> tuple[str, ...]:
    text = metadata.annotations.nodes
    try:
        nodes = decoding.convert(text.split(","), _Nodes)
    except msgspec.ValidationError:
        nodes = ()
    if not nodes or len(set(nodes)) < len(nodes):
        raise InvalidError(
            f"{where}: the Job {metadata.name}: {NODES}: expected 2 to {MOST_RANKS} nodes,"
            f" separated by commas; it is {text[:60]!r}",
            "Render the run again.",
        )
    return nodes


def read(folder: Path) -> tuple[Stated | StatedGroup, ...]:
    """Return the jobs of a folder that `fleet render` wrote.

    Raises `InvalidError` if there are none, if one is malformed, or if they are of several runs.
    """
    jobs = tuple(_read(path) for pattern in FILES for path in sorted(folder.glob(pattern)))
    if not jobs:
        raise InvalidError(
            f"{folder}: no {' or '.join(FILES)} of a run",
            "Name the folder that `envbuilder fleet render` wrote.",
        )
    runs = sorted({job.run for job in jobs})
    if len(runs) > 1:
        raise InvalidError(
            f"{folder}: it has the jobs of several runs: {', '.join(runs)}",
            "Keep those of one of them.",
        )
    return jobs


def _read(path: Path) -> Stated | StatedGroup:
    text = schema.read_text(path)
    where = str(path)
    if MARK not in text.partition("\n")[0]:
        raise InvalidError(f"{where}: not made by envbuilder", "Move it away.")
    data = schema.parse_yaml(text, where)
    return of(schema.decode(data, JobManifest, where, text), where)
