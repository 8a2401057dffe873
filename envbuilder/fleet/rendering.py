"""The files of a run on Kubernetes: which nodes are to prove what, and their manifests. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build.render import RenderedFile
from envbuilder.core.errors import InvalidError
from envbuilder.core.resources import MARK, filled
from envbuilder.fleet.kubernetes import jobs, manifests, together
from envbuilder.fleet.kubernetes.results import RESULTS
from envbuilder.fleet.model import Entry, Node, Promise
from envbuilder.fleet.planning import promised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.fleet.kubernetes.settings import KubernetesSettings
    from envbuilder.fleet.kubernetes.together import Group
    from envbuilder.fleet.settings import FleetSettings
    from envbuilder.profiles.profile import Profile

DATA_FILE, README = "data.yaml", "README.md"


class Selection(Struct, frozen=True, kw_only=True):
    """The nodes of a run, and those that it leaves out."""

    promises: tuple[Promise, ...]
    left_out: tuple[Entry, ...] = ()
    nodes: dict[str, Node] = {}
    """What is known of them, by name."""


def selected(
    settings: FleetSettings, nodes: Sequence[Node] | None, profile: str | None
) -> Selection:
    """Return what nodes are to prove: `nodes`, as the cluster lists them, or else the stated ones.

    Raises `InvalidError` if no node is left, or if nothing says which profile a node is for.
    """
    stated = settings.kubernetes.nodes if settings.kubernetes else {}
    if nodes is None:
        promises = tuple(
            Promise(
                node=node,
                profile=profile or of_node,
                why="--profile" if profile else "kubernetes.nodes",
            )
            for node, of_node in stated.items()
        )
        if not promises:
            raise InvalidError(
                "kubernetes.nodes: no node is named",
                "Name nodes there with their profiles, or give those of the cluster: kubectl get"
                " nodes -o json > nodes.json, and --nodes nodes.json",
            )
        return Selection(promises=promises)
    if stated:
        raise InvalidError("kubernetes.nodes and --nodes both name nodes", "Leave out one of them.")
    return _by_rules(settings, nodes, profile)


def _by_rules(settings: FleetSettings, nodes: Sequence[Node], profile: str | None) -> Selection:
    if profile is None and not settings.profiles:
        raise InvalidError(
            "nothing says which node is for which profile",
            "Write rules, such as profiles: [{feature: nvidia.com/gpu.present=true, profile: cuda}]"
            ", or name one for all nodes with --profile.",
        )
    promises, left_out = promised(nodes, settings, profile)
    if not promises:
        raise InvalidError(
            "no node is left: "
            + ("; ".join(f"{e.node}: {e.detail}" for e in left_out[:3]) or "the cluster has none"),
            "See: kubectl get nodes --show-labels",
        )
    by_name = {node.name: node for node in nodes}
    return Selection(promises=promises, left_out=left_out, nodes=by_name)


def files(
    run: str,
    selection: Selection,
    settings: KubernetesSettings,
    profile_of: Callable[[str], Profile],
    subset: Mapping[str, bytes],
    *,
    ddp: bool = False,
) -> Iterator[RenderedFile]:
    """Yield the files of a run; `subset` are those of the small subset of MNIST, by name.

    With `ddp`, nodes that are alike train together, and none alone.
    """
    profiles = {p.profile: profile_of(p.profile) for p in selection.promises if p.profile}
    planned = jobs.planned(run, selection.promises, profiles, selection.nodes, settings)
    groups = together.groups(run, planned, profiles, settings) if ddp else ()
    if settings.data is None:
        comment = f"{MARK}: the small subset of MNIST, for the pods of the run {run}."
        content = manifests.text(manifests.data(run, subset, settings), (comment,))
        yield RenderedFile(name=DATA_FILE, content=content.encode())
    facts = {"mark": MARK, "run": run, "namespace": settings.namespace, "ddp": ddp}
    readme = filled("fleet/kubernetes.md.j2", {**facts, "results": RESULTS})
    yield RenderedFile(name=README, content=readme.encode())
    if ddp:
        for group in groups:
            yield from _together(run, group, settings)
        return
    for job in planned:
        comments = (
            (
                f"{MARK}: verifies the node {job.promise.node} with the profile {job.profile}"
                f" ({job.promise.why})."
            ),
            *manifests.USE,
        )
        content = manifests.text(manifests.job(run, job, settings), comments)
        yield RenderedFile(name=f"job-{job.promise.node}.yaml", content=content.encode())


def _together(run: str, group: Group, settings: KubernetesSettings) -> Iterator[RenderedFile]:
    name = f"ddp{group.number}-{group.profile.name}.yaml"
    job = manifests.text(together.indexed_job(run, group, settings), together.comments(group))
    yield RenderedFile(name=name, content=job.encode())
    service = manifests.text(
        together.service(run, group, settings), together.service_comments(group)
    )
    yield RenderedFile(name=f"service-{name}", content=service.encode())
