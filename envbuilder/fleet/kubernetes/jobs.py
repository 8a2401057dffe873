"""What is to run on which node, before it is written as manifests. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.build import conventions, isolation
from envbuilder.core.errors import InvalidError
from envbuilder.fleet.kubernetes.names import job_name
from envbuilder.fleet.model import Promise
from envbuilder.packages.mnist import Dataset
from envbuilder.verify.run import Job, payload_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envbuilder.core import types
    from envbuilder.fleet.kubernetes.settings import KubernetesSettings
    from envbuilder.fleet.model import Node
    from envbuilder.profiles.profile import Expected, Profile

DATA = "/data"
"""Where pods find the four files of MNIST."""
ALL, SUBSET = "MNIST", "MNIST subset (shipped)"
"""What the data are called in reports."""
NODE_NAME, POD_NAME = "ENVBUILDER_NODE", "ENVBUILDER_POD"
"""Variables that the kubelet fills in."""
PLUGINS: dict[types.Accelerator, tuple[str, ...]] = {
    "cuda": ("nvidia.com/gpu",),
    "rocm": ("amd.com/gpu",),
    # By kernel driver: README of Intel's GPU plugin, intel/intel-device-plugins-for-kubernetes.
    "xpu": ("gpu.intel.com/xe", "gpu.intel.com/i915"),
}
"""The resources of the vendors' device plugins, one unit a device."""


class NodeJob(Struct, frozen=True, kw_only=True):
    """The verification of one node."""

    name: str
    promise: Promise
    profile: str
    image: str
    resources: dict[str, int]
    arguments: tuple[str, ...]


def run_id(run: str, node: str, pod: str) -> str:
    """Return what ties a report to the pod that sent it."""
    return f"{run}/{node}/{pod}"


def _expected(profile: Profile) -> Expected:
    """Return what an image must prove. Any version will do if it depends on the image's Python."""
    return profile.expected(None if profile.expects.versions else profile.image_python)


def planned(
    run: str,
    promises: Iterable[Promise],
    profiles: dict[str, Profile],
    nodes: dict[str, Node],
    settings: KubernetesSettings,
) -> tuple[NodeJob, ...]:
    """Return one job for each promise, which names a profile.

    `profiles` holds these profiles, `nodes` what is known of the nodes. Raises `InvalidError` if a
    profile has no image, or if nothing says which resource to request.
    """
    return tuple(
        NodeJob(
            name=job_name(run, promise.node),
            promise=promise,
            profile=profile.name,
            image=_image(profile, settings),
            resources=_resources(profile, nodes.get(promise.node), settings),
            arguments=_arguments(run, profile, subset=settings.data is None),
        )
        for promise in promises
        for profile in (profiles[promise.profile or ""],)
    )


def _image(profile: Profile, settings: KubernetesSettings) -> str:
    if not profile.makes_images:
        raise InvalidError(
            f"{profile.name}: there are no images of this profile",
            "Leave its nodes out.",
        )
    image = settings.images.get(profile.name)
    if image is None:
        raise InvalidError(
            f"kubernetes.images: no image for the profile {profile.name}",
            "Build and push one: envbuilder build --backend docker --push REF --profile"
            f" {profile.name}",
        )
    return image


def _resources(profile: Profile, node: Node | None, settings: KubernetesSettings) -> dict[str, int]:
    accelerator = profile.accelerator
    if accelerator in settings.resources:
        return dict(settings.resources[accelerator])
    names = PLUGINS.get(accelerator, ())
    offered = {resource.name for resource in node.resources} if node else set()
    usual = [name for name in names if name in offered] or list(names)
    if len(usual) > 1:
        raise InvalidError(
            f"kubernetes.resources: is it {' or '.join(names)}? That depends on the nodes' kernel"
            " driver",
            f"Write {accelerator}: {{{names[0]}: 1}}, or give the nodes with --nodes.",
        )
    return dict.fromkeys(usual, 1)


def pod_job(profile: Profile, *, subset: bool) -> Job:
    """Return what a pod is to verify."""
    data = Dataset(folder=Path(DATA), name=SUBSET if subset else ALL, subset=subset)
    return Job(expects=_expected(profile), dataset=data, epochs=None, quick=subset)


def program(profile: Profile) -> tuple[str, ...]:
    """Return the command of the payload in an image, isolated as the docker backend starts it."""
    python = f"{conventions.PREFIX}/bin/python"
    return (
        *isolation.python(python, isolation.CONTAINER_BYTECODE),
        conventions.PAYLOAD,
        *("--promise", isolation.container_start(conventions.variables(profile)).text()),
    )


def _arguments(run: str, profile: Profile, *, subset: bool) -> tuple[str, ...]:
    return (
        *program(profile),
        *payload_arguments(pod_job(profile, subset=subset), {"data": DATA}),
        # Kubernetes replaces $(NAME) by the value of that variable.
        *("--run-id", run_id(run, f"$({NODE_NAME})", f"$({POD_NAME})")),
    )
