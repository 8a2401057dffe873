"""Workflows of CI services, made from the rows of the matrix. Pure: data in, text out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.ci.matrix import Omission, Row, hint
from envbuilder.core import types
from envbuilder.core.errors import Hint, InvalidError
from envbuilder.core.resources import MARK, filled
from envbuilder.core.text import gigabytes
from envbuilder.profiles.backends import makes_image

Provider = Literal["github", "gitlab"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)


class Service(Struct, frozen=True, kw_only=True):
    """What a CI service lends; none of its free runners has an accelerator."""

    runners: Mapping[types.Platform, str]
    """Platform → label of a hosted runner."""
    disk_bytes: int
    """What each of them is sure to have."""
    has_engine: bool
    """Whether jobs on them reach a container engine without further services."""


SERVICES: Mapping[Provider, Service] = MappingProxyType(
    {
        "github": Service(
            runners={
                "linux/amd64": "ubuntu-24.04",
                "linux/arm64": "ubuntu-24.04-arm",
                "macos/arm64": "macos-15",
            },
            disk_bytes=14 * 10**9,
            has_engine=True,
        ),
        "gitlab": Service(
            runners={
                "linux/amd64": "saas-linux-small-amd64",
                "linux/arm64": "saas-linux-small-arm64",
            },
            disk_bytes=30 * 10**9,
            has_engine=False,
        ),
    }
)


_NOT_IN_EVERY_RUNNER = ("avx512", "amx")
"""Beginnings of CPU flags that only some hosted runners have."""


OLDEST_PYTHON = "3.11"
"""What envbuilder itself runs with. Jobs for older ones build them from the lock's interpreter."""


class Workflow(Struct, frozen=True, kw_only=True):
    """What a workflow is written from."""

    provider: Provider
    rows: tuple[Row, ...]
    omissions: tuple[Omission, ...]
    arguments: tuple[str, ...]
    """The command that writes it."""
    output: str
    """The path in the repository; empty if it is printed, and nothing can check it."""
    project: bool
    """Whether the repository is a project with environments."""
    from_checkout: bool
    """Whether the repository is envbuilder's, which jobs then install as it is."""
    requirements: str
    """The path in the repository of the requirements file that jobs install."""
    quick: bool
    """Whether verifications use the small subset of MNIST."""


def fitting(workflow: Workflow) -> Workflow:
    """Return the workflow without jobs that it cannot have, with the reasons.

    Raise `InvalidError` if none is left, or if a lock is not in the repository: jobs could then
    build something else than what was checked there.
    """
    of_conda = {
        row.profile for row in workflow.rows if row.backend == "conda" and not row.conda_lock
    }
    outside = sorted({row.profile for row in workflow.rows if not row.lock} | of_conda)
    if outside:
        raise InvalidError(
            f"the locks of {', '.join(outside)} are not in this repository",
            Hint("Run this in the root of a project, which has locks of its own", ("init",)),
        )
    service = SERVICES[workflow.provider]
    reasons = {row.id: _why_not(row, service) for row in workflow.rows}
    omitted = [Omission(label=key, why=why) for key, why in reasons.items() if why]
    rows = tuple(row for row in workflow.rows if not reasons[row.id])
    if not rows:
        every = (*workflow.omissions, *omitted)
        raise InvalidError(
            "there is no job for a workflow: "
            + ("; ".join(f"{each.label}: {each.why}" for each in every) or "there is no profile"),
            Hint("See what there is", ("profiles",)),
        )
    return replace(workflow, rows=rows, omissions=(*workflow.omissions, *omitted))


def _why_not(row: Row, service: Service) -> str:
    """Return why a job cannot be done, on a hosted runner if it is for one; empty if it can."""
    if row.runner not in service.runners.values():
        return ""
    if makes_image(row.backend) and not service.has_engine:
        return f"its image needs a container engine, and hosted runners lack one; {hint(row)}"
    if row.disk_bytes > service.disk_bytes:
        return (
            f"it takes {gigabytes(row.disk_bytes)}, and a hosted runner is sure to have"
            f" {gigabytes(service.disk_bytes)} only; {hint(row)}"
        )
    return ""


def text(workflow: Workflow) -> str:
    """Return the file."""
    command = shlex.join(workflow.arguments)
    service = SERVICES[workflow.provider]
    names = () if workflow.project else dict.fromkeys(row.profile for row in workflow.rows)
    checks = [shlex.join(("envbuilder", "check", *names))]
    checks += [f"{command} --check"] if workflow.output else []
    return filled(
        f"ci/{workflow.provider}.yml.j2",
        {
            "mark": MARK,
            "command": command,
            "checks": checks,
            "rows": workflow.rows,
            "omissions": workflow.omissions,
            "project": workflow.project,
            "from_checkout": workflow.from_checkout,
            "quick": workflow.quick,
            "requirements": shlex.quote(workflow.requirements),
            "hosted": service.runners["linux/amd64"],
            "verified": [row.id for row in workflow.rows if row.what == "verify"],
            "older_pythons": [
                row.id
                for row in workflow.rows
                if int(row.python.partition(".")[2]) < int(OLDEST_PYTHON.partition(".")[2])
            ],
            "has_conda": any(row.backend == "conda" for row in workflow.rows),
            # A hosted runner may lack what these profiles need.
            "demanding": [
                row.id
                for row in workflow.rows
                if row.runner in service.runners.values()
                and any(flag.startswith(_NOT_IN_EVERY_RUNNER) for flag in row.cpu_flags)
            ],
        },
    )
