"""Render a run on Kubernetes: its nodes, what each must prove, and the files for it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from envbuilder.build.render import RenderedFile
from envbuilder.core import decoding, types
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.core.resources import MARK, filled
from envbuilder.core.text import printable
from envbuilder.fleet.groups import Members, alike
from envbuilder.fleet.kubernetes import manifests
from envbuilder.fleet.kubernetes.results import RESULTS
from envbuilder.fleet.model import LONGEST_REASON, Entry, Node, NodeName, Promise, Resource
from envbuilder.fleet.settings import FleetSettings, KubernetesSettings, promised
from envbuilder.payload.parallel.shares import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envbuilder.profiles.profile import Profile

LARGEST = 64 << 20
"""Maximum size of a list of nodes in bytes."""
README = "README.md"
_USE = "How to create it and to show its result: README.md"
_LONGEST_PROBLEM = 200
_PLUGINS: dict[types.Accelerator, tuple[str, ...]] = {
    "cuda": ("nvidia.com/gpu",),
    "rocm": ("amd.com/gpu",),
    # By kernel driver: README of Intel's GPU plugin, intel/intel-device-plugins-for-kubernetes.
    "xpu": ("gpu.intel.com/xe", "gpu.intel.com/i915"),
}
"""The resources of the vendors' device plugins, one unit a device."""


class _Metadata(Struct, frozen=True):
    name: NodeName
    labels: Annotated[dict[str, str], Meta(max_length=1000)] = {}


class _Spec(Struct, frozen=True):
    unschedulable: bool = False


class _Condition(Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _Status(Struct, frozen=True):
    allocatable: Annotated[dict[str, str | int], Meta(max_length=1000)] = {}
    conditions: Annotated[tuple[_Condition, ...], Meta(max_length=100)] = ()


class _NodeObject(Struct, frozen=True):
    """A node, as far as it is needed; each release adds fields."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _NodeList(Struct, frozen=True):
    items: tuple[_NodeObject, ...]


class Selection(Struct, frozen=True, kw_only=True):
    """The nodes of a run, and those that it leaves out."""

    promises: tuple[Promise, ...]
    left_out: tuple[Entry, ...] = ()
    nodes: dict[str, Node] = {}
    """What is known of them, by name."""


def nodes(content: bytes, where: str) -> tuple[Node, ...]:
    """Return the nodes of a cluster in what `kubectl get nodes -o json` printed, in its order.

    A node has each label as two features, `key` and `key=value`: device plugins and node feature
    discovery write what it has. Raises `InvalidError` for anything else.
    """
    try:
        decoding.require_few_values(content)
        return tuple(_node(each) for each in decoding.from_json(content, _NodeList).items)
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), _LONGEST_PROBLEM)
        raise InvalidError(f"{where}: not a list of Kubernetes' objects: {problem}") from error


def _node(listed: _NodeObject) -> Node:
    ready = next((c for c in listed.status.conditions if c.type == "Ready"), None)
    is_ready = ready is not None and ready.status == "True"
    reason = ready.message if ready is not None and not is_ready else ""
    state = "Ready" if is_ready else "NotReady"
    if listed.spec.unschedulable:
        state += ",SchedulingDisabled"
        reason = reason or "cordoned"
    labels = listed.metadata.labels.items()
    return Node(
        name=listed.metadata.name,
        state=state,
        usable=is_ready and not listed.spec.unschedulable,
        features=tuple(feature for k, v in labels for feature in (k, f"{k}={v}")),
        resources=tuple(
            Resource(name=name, count=int(count))
            for name, count in listed.status.allocatable.items()
            if "/" in name and str(count).isdecimal() and len(str(count)) < 6 and int(count)
        ),
        reason=printable(reason, LONGEST_REASON),
    )


def selected(
    settings: FleetSettings, listed: Sequence[Node] | None, profile: str | None
) -> Selection:
    """Select the nodes that the cluster lists, or else those of the settings.

    Raises `InvalidError` if no node is left, or if nothing says which profile a node is for.
    """
    named = settings.kubernetes.nodes if settings.kubernetes else {}
    why = "--profile" if profile else "kubernetes.nodes"
    if listed is None and not named:
        raise InvalidError(
            "kubernetes.nodes: no node is named",
            "Name nodes there with their profiles, or give those of the cluster: kubectl get"
            " nodes -o json > nodes.json, and --nodes nodes.json",
        )
    if listed is None:
        each = (Promise(node=n, profile=profile or own, why=why) for n, own in named.items())
        return Selection(promises=tuple(each))
    if named:
        raise InvalidError("kubernetes.nodes and --nodes both name nodes", "Leave out one of them.")
    if profile is None and not settings.profiles:
        raise InvalidError(
            "nothing says which node is for which profile",
            "Write rules, such as profiles: [{feature: nvidia.com/gpu.present=true, profile: cuda}]"
            ", or name one for all nodes with --profile.",
        )
    promises, left_out = promised(listed, settings, profile)
    if not promises:
        raise InvalidError(
            "no node is left: "
            + ("; ".join(f"{e.node}: {e.detail}" for e in left_out[:3]) or "the cluster has none"),
            "See: kubectl get nodes --show-labels",
        )
    by_name = {node.name: node for node in listed}
    return Selection(promises=promises, left_out=left_out, nodes=by_name)


def node_jobs(
    selection: Selection, settings: KubernetesSettings, profile_of: Callable[[str], Profile]
) -> tuple[manifests.NodeJob, ...]:
    """Return one job for each promise, which names a profile.

    Raises `InvalidError` if a profile has no image, or if nothing says which resource to request.
    """
    jobs = []
    for promise in selection.promises:
        profile = profile_of(promise.profile or "")
        if not profile.makes_images:
            raise InvalidError(
                f"{profile.name}: there are no images of this profile", "Leave its nodes out."
            )
        image = settings.images.get(profile.name)
        if image is None:
            raise InvalidError(
                f"kubernetes.images: no image for the profile {profile.name}",
                Hint(
                    "Build and push one",
                    ("build", "--backend", "docker", "--push", "REF", "--profile", profile.name),
                ),
            )
        resources = _resources(profile.accelerator, selection.nodes.get(promise.node), settings)
        jobs.append(
            manifests.NodeJob(
                node=promise.node,
                why=promise.why,
                profile=profile,
                image=image,
                resources=resources,
            )
        )
    return tuple(jobs)


def _resources(
    accelerator: types.Accelerator, node: Node | None, settings: KubernetesSettings
) -> dict[str, int]:
    if accelerator in settings.resources:
        return dict(settings.resources[accelerator])
    names = _PLUGINS.get(accelerator, ())
    offered = {resource.name for resource in node.resources} if node else set()
    usual = [name for name in names if name in offered] or list(names)
    if len(usual) > 1:
        raise InvalidError(
            f"kubernetes.resources: is it {' or '.join(names)}? That depends on the nodes' kernel"
            " driver",
            f"Write {accelerator}: {{{names[0]}: 1}}, or give the nodes with --nodes.",
        )
    return dict.fromkeys(usual, 1)


def _groups(
    jobs: Sequence[manifests.NodeJob], settings: KubernetesSettings
) -> Iterator[tuple[manifests.NodeJob, ...]]:
    """Yield the jobs of nodes that train together, as on every scheduler.

    Raises `InvalidError` if there are none, or two of them have too many devices.
    """
    if settings.shared is None:
        raise InvalidError(
            "kubernetes.shared: nodes that train together meet in a folder that all can write",
            "Name a claim of a ReadWriteMany volume: shared: {claim: NAME}",
        )
    by_node = {job.node: job for job in jobs if job.profile.framework == "torch"}
    # All pods of a Job request the same resources: besides devices, a node may be asked for one
    # thing more, such as a network adapter.
    gpus = {node: max(job.resources.values(), default=0) for node, job in by_node.items()}
    groups = alike(
        ((n, Members(profile=job.profile.name, gpus=gpus[n])) for n, job in by_node.items()),
        {node: tuple(sorted(job.resources.items())) for node, job in by_node.items()},
    )
    if not groups:
        raise InvalidError("--ddp: no two nodes have the same profile of PyTorch and devices")
    for group in groups:
        ranks = len(group.nodes) * max(1, group.gpus)
        if ranks > MOST_RANKS:
            raise InvalidError(
                f"--ddp: {ranks} ranks with the profile {group.profile}: up to {MOST_RANKS} can"
                " train together",
                "Request fewer devices of each node: kubernetes.resources",
            )
        yield tuple(by_node[node] for node in group.nodes)


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
    jobs = node_jobs(selection, settings, profile_of)
    groups = tuple(_groups(jobs, settings)) if ddp else ()
    objects = manifests.Objects(run=run, settings=settings)
    if settings.data is None:
        comment = f"{MARK}: the small subset of MNIST, for the pods of the run {run}."
        yield _file("data.yaml", manifests.text(objects.data(subset), comment))
    facts = {"mark": MARK, "run": run, "namespace": settings.namespace, "ddp": ddp}
    yield _file(README, filled("fleet/kubernetes.md.j2", {**facts, "results": RESULTS}))
    for number, members in enumerate(groups):
        profile = members[0].profile.name
        name, file = manifests.together_name(run, number, profile), f"ddp{number}-{profile}.yaml"
        comments = (
            f"{MARK}: trains on {len(members)} nodes with the profile {profile}.",
            "The job is complete only if all of them trained in step.",
            _USE,
        )
        yield _file(file, manifests.text(objects.indexed_job(name, members), *comments))
        comment = f"{MARK}: gives the pods of the job {name} names."
        yield _file(f"service-{file}", manifests.text(objects.service(name), comment))
    for job in () if ddp else jobs:
        comment = (
            f"{MARK}: verifies the node {job.node} with the profile {job.profile.name} ({job.why})."
        )
        yield _file(f"job-{job.node}.yaml", manifests.text(objects.job(job), comment, _USE))


def _file(name: str, text: str) -> RenderedFile:
    return RenderedFile(name=name, content=text.encode())
