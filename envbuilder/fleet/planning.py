"""Plan a run: which nodes are to prove what, and the script of each node's job. Pure."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core.errors import InvalidError
from envbuilder.core.text import counted, printable
from envbuilder.fleet import groups
from envbuilder.fleet.folder import Plan
from envbuilder.fleet.model import LONGEST_TOGETHER_SECONDS, SCHEMA, Entry, Promise
from envbuilder.fleet.slurm import script
from envbuilder.fleet.slurm.script import Common
from envbuilder.verify import parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.fleet.model import Node
    from envbuilder.fleet.settings import FleetSettings
    from envbuilder.profiles.library import Library

_PASSED_ON = re.compile(
    r"PATH|HOME|LANG|LC_ALL"
    r"|ENVBUILDER_(CACHE_DIR|DATA_DIR|CONFIG_DIR|SHARED_STORE|BASE_IMAGE|TRUSTED_FOLDERS)"
)
"""Variables that jobs get. Nothing else: the scripts lie in a folder that others may read."""


class Request(Struct, frozen=True, kw_only=True):
    """What is asked of a run."""

    profile: str | None
    """Promised of every node, whatever the settings say."""
    partition: str | None
    patterns: tuple[str, ...]
    """Of nodes; empty for all."""
    arguments: tuple[str, ...]
    """For `envbuilder verify` on each node."""
    together: tuple[str, ...] | None = None
    """For `envbuilder fleet join`; None if nodes are not to train together."""
    quick: bool
    epochs: int
    start_seconds: int
    limit_seconds: int


def plan(
    run: str,
    started: str,
    nodes: Sequence[Node],
    settings: FleetSettings,
    request: Request,
    library: Library,
    across: Common | None = None,
) -> Plan:
    """Return the plan for the nodes that are asked for; with `across` they train together, too.

    Raises `InvalidError` if there is none, a pattern names none, a promised profile does not exist,
    or there are images and nodes that would choose their profile themselves.
    """
    chosen = _chosen(nodes, request.patterns)
    promises, left_out = promised(chosen, settings, request.profile)
    if settings.sif and any(promise.profile is None for promise in promises):
        raise InvalidError(
            "sif: nothing says which nodes are for which profile",
            "Add profiles: to the same file, or --profile.",
        )
    if not promises and not left_out:
        raise InvalidError("the scheduler lists no node", "See: sinfo")
    return Plan(
        schema=SCHEMA,
        run=run,
        scheduler="slurm",
        started=started,
        quick=request.quick,
        epochs=request.epochs,
        partition=request.partition,
        start_seconds=request.start_seconds,
        limit_seconds=request.limit_seconds,
        promises=tuple(_counted(promise, library) for promise in promises),
        left_out=left_out,
        across=across,
    )


def _chosen(nodes: Sequence[Node], patterns: Sequence[str]) -> Iterator[Node]:
    for pattern in patterns:
        if not any(fnmatchcase(node.name, pattern) for node in nodes):
            raise InvalidError(f"--nodes: no node is called {printable(pattern, 60)}", "See: sinfo")
    for node in nodes:
        if not patterns or any(fnmatchcase(node.name, pattern) for pattern in patterns):
            yield node


def promised(
    nodes: Iterable[Node], settings: FleetSettings, profile: str | None
) -> tuple[tuple[Promise, ...], tuple[Entry, ...]]:
    """Return what nodes are to prove, and the rows of those that no job is for."""
    promises, left_out = list[Promise](), list[Entry]()
    for node in nodes:
        promise = _promise(node, settings, profile)
        if promise is None:
            text = "no rule in the settings is for it"
            left_out.append(Entry(node=node.name, outcome="unmapped", detail=text))
        elif node.usable:
            promises.append(promise)
        else:
            left_out.append(_drained(node, promise))
    return tuple(promises), tuple(left_out)


def _promise(node: Node, settings: FleetSettings, profile: str | None) -> Promise | None:
    """Return what a node is to prove; None if the settings have rules, and none is for it."""
    gpus = sum(r.count for r in node.resources if r.name == "gpu")
    if profile is not None:
        return Promise(node=node.name, profile=profile, why="--profile", gpus=gpus)
    for rule in settings.profiles:
        if rule.applies(node):
            return Promise(node=node.name, profile=rule.profile, why=rule.conditions, gpus=gpus)
    if settings.profiles:
        return None
    return Promise(node=node.name, why="what it detects", gpus=gpus)


def _counted(promise: Promise, library: Library) -> Promise:
    """Return a promise with how many GPUs its verification covers.

    Several only with PyTorch (`verify --devices`), and none for a profile of CPUs. Of a node that
    decides itself, all: a GPU that it does not see must not make it a CPU node.
    """
    framework, accelerator = library.framework[0], ""
    if promise.profile is not None:
        profile = library.profile(promise.profile)
        framework, accelerator = profile.framework, profile.accelerator
    most = 0 if accelerator == "cpu" else promise.gpus if framework == "torch" else 1
    return replace(promise, covered=min(most, promise.gpus))


def _drained(node: Node, promise: Promise) -> Entry:
    """Return the row of a node that jobs cannot start on."""
    return Entry(
        node=node.name,
        outcome="drained",
        promised=promise.profile or "",
        why=promise.why,
        detail=f"{node.state}: {node.reason or 'no reason is stated'}",
    )


def common(
    run: str,
    folder: Path,
    settings: FleetSettings,
    request: Request,
    command: Sequence[str],
    environ: Mapping[str, str],
    project: Path | None = None,
) -> Common:
    """Return what the jobs of all nodes have in common; `command` starts envbuilder there."""
    return Common(
        run=run,
        folder=str(folder),
        command=settings.command or tuple(command),
        arguments=request.arguments,
        project=str(project) if project else None,
        sif=settings.sif,
        variables={k: environ[k] for k in sorted(environ) if _PASSED_ON.fullmatch(k)},
        options=settings.sbatch,
        setup=settings.setup,
        limit_seconds=request.limit_seconds,
    )


def across(each: Common, arguments: tuple[str, ...]) -> Common:
    """Return the same for nodes that train together; `arguments` are for `fleet join`."""
    limit = min(each.limit_seconds, LONGEST_TOGETHER_SECONDS)
    return replace(each, arguments=arguments, limit_seconds=limit)


def scripts(plan: Plan, each: Common) -> dict[str, str]:
    """Return the script of each promised node."""
    return {promise.node: script.text(promise, each) for promise in plan.promises}


def promised_scripts(plan: Plan) -> dict[str, str]:
    """Return the script of each group, if all nodes were proven, and those of a profile equal.

    There is none if nodes are not to train together.
    """
    if plan.across is None:
        return {}
    members = groups.promised(plan.promises)
    return {group.name: script.group_text(group, plan.across) for group in members}


def prepared(
    started: str,
    nodes: Sequence[Node],
    settings: FleetSettings,
    request: Request,
    each: Common,
    library: Library,
) -> tuple[Plan, dict[str, str]]:
    """Return the plan of a run, and the script of each promised node. Raises as `plan` does."""
    together = across(each, request.together) if request.together is not None else None
    whole = plan(each.run, started, nodes, settings, request, library, together)
    return whole, scripts(whole, each)


def require_possible(plan: Plan, library: Library) -> None:
    """Raise `InvalidError` if nodes are to train together whose profile cannot."""
    if plan.across is None:
        return
    for name in sorted({p.profile for p in plan.promises if p.profile is not None}):
        # Whatever the Python.
        parallel.require_possible(name, library.profile(name).expected(None))


def without_group(plan: Plan) -> Iterator[str]:
    """Yield why promised nodes are in no group that can be written before they were verified.

    There is no reason if nodes are not to train together.
    """
    if plan.across is None:
        return
    grouped = {node for members in groups.promised(plan.promises) for node in members.nodes}
    undecided = sum(promise.profile is None for promise in plan.promises)
    if undecided:
        yield (
            f"with whom {counted(undecided, 'node')} without a promised profile will train"
            " is known only after they were verified"
        )
    for promise in plan.promises:
        if promise.profile is not None and promise.node not in grouped:
            yield (
                f"{promise.node} trains with nobody: no other node has the profile"
                f" {promise.profile} and as many GPUs"
            )


def arguments(
    *,
    quick: bool = False,
    backend: str | None = None,
    epochs: int | None = None,
    data: Path | None = None,
    python: Path | None = None,
) -> tuple[str, ...]:
    """Return options that all nodes get, without those that are not stated."""
    options = {"--backend": backend, "--epochs": epochs, "--python": python, "--data": data}
    words = (word for name, value in options.items() if value for word in (name, str(value)))
    return (*(("--quick",) if quick else ()), *words)
