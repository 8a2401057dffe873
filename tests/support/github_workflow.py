"""GitHub's workflows as data: the keys that our template uses; any other is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.support.github_expressions import UnknownWorkflowError

_INPUTS: Mapping[str, tuple[set[str], set[str]]] = {
    "actions/checkout@v5": ({"persist-credentials"}, set()),
    "actions/setup-python@v6": ({"python-version"}, set()),
    "actions/cache@v4": ({"path", "key"}, {"restore-keys"}),
    "actions/cache/restore@v4": ({"path", "key"}, {"restore-keys"}),
    "actions/cache/save@v4": ({"path", "key"}, set()),
    "actions/upload-artifact@v5": ({"name", "path", "if-no-files-found"}, set()),
    "actions/download-artifact@v5": ({"pattern", "path", "merge-multiple"}, set()),
}
"""Action → inputs that it must have, and may have."""
_FIXED = {"persist-credentials": "false", "if-no-files-found": "ignore", "merge-multiple": "true"}
"""Inputs with the one value that is understood."""


@dataclass(frozen=True)
class Step:
    """A script or an action."""

    script: str = ""
    action: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    condition: str = "success()"
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Steps, which are done once for each row of the matrix."""

    label: str
    """Of the runner; may be an expression."""
    minutes: int
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    condition: str = "success()"
    rows: tuple[Mapping[str, str], ...] = ({},)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Workflow:
    """What runs after a push to one of `branches`, and for each pull request."""

    name: str
    branches: tuple[str, ...]
    jobs: Mapping[str, Job]
    expressions: tuple[str, ...]
    """Texts of the workflow itself that hold some: its concurrency."""


def read(text: str) -> Workflow:
    """Return a workflow, or raise `UnknownWorkflowError`."""
    # BaseLoader: `on` is a key, and versions are text.
    data = _mapping(yaml.load(text, yaml.BaseLoader), "the file")
    _require_keys(data, "the file", {"name", "on", "permissions", "concurrency", "jobs"})
    if data["permissions"] != {"contents": "read"}:
        raise UnknownWorkflowError(f"permissions: {data['permissions']}")
    events = _mapping(data["on"], "on")
    _require_keys(events, "on", {"push", "pull_request"})
    push = _mapping(events["push"], "on: push")
    _require_keys(push, "on: push", {"branches"})
    if events["pull_request"]:
        raise UnknownWorkflowError(f"on: pull_request: {events['pull_request']}")
    concurrency = _mapping(data["concurrency"], "concurrency")
    _require_keys(concurrency, "concurrency", {"group", "cancel-in-progress"})
    return Workflow(
        name=data["name"],
        branches=tuple(push["branches"]),
        jobs={name: _job(job, name) for name, job in _mapping(data["jobs"], "jobs").items()},
        expressions=tuple(concurrency.values()),
    )


def _job(job: Any, name: str) -> Job:
    job = _mapping(job, name)
    may = {"needs", "if", "strategy", "name", "env"}
    _require_keys(job, name, {"runs-on", "timeout-minutes", "steps"}, may)
    needs = job.get("needs", [])
    return Job(
        label=job["runs-on"],
        minutes=int(job["timeout-minutes"]),
        steps=tuple(_step(step, f"{name}, step {n}") for n, step in enumerate(job["steps"], 1)),
        needs=(needs,) if isinstance(needs, str) else tuple(needs),
        condition=job.get("if", "success()"),
        rows=_rows(job["strategy"], name) if "strategy" in job else ({},),
        variables=_mapping(job.get("env", {}), f"{name}: env"),
    )


def _rows(strategy: Any, name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of a matrix; what one of them lacks and another has is empty, as on GitHub."""
    _require_keys(_mapping(strategy, name), f"{name}: strategy", {"fail-fast", "matrix"})
    if strategy["fail-fast"] != "false":
        raise UnknownWorkflowError(f"{name}: fail-fast: {strategy['fail-fast']}")
    _require_keys(_mapping(strategy["matrix"], name), f"{name}: matrix", {"include"})
    rows = [_mapping(row, f"{name}: matrix") for row in strategy["matrix"]["include"]]
    keys = {key for row in rows for key in row}
    return tuple({key: row.get(key, "") for key in keys} for row in rows)


def _step(step: Any, where: str) -> Step:
    step = _mapping(step, where)
    condition = step.get("if", "success()")
    if "uses" in step:
        _require_keys(step, where, {"uses", "with"}, {"if"})
        return Step(
            action=step["uses"], inputs=_inputs(step["uses"], step["with"]), condition=condition
        )
    _require_keys(step, where, {"run"}, {"name", "if", "env"})
    if "${{" in step["run"]:
        raise UnknownWorkflowError(f"{where}: a script with an expression: {step['run']}")
    variables = _mapping(step.get("env", {}), where)
    return Step(script=step["run"], condition=condition, variables=variables)


def _inputs(action: str, inputs: Any) -> Mapping[str, str]:
    if action not in _INPUTS:
        raise UnknownWorkflowError(f"uses: {action}")
    must, may = _INPUTS[action]
    _require_keys(_mapping(inputs, action), action, must, may)
    for key, only in _FIXED.items():
        if inputs.get(key, only) != only:
            raise UnknownWorkflowError(f"{action}: {key}: {inputs[key]}")
    return inputs  # type: ignore[no-any-return]


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise UnknownWorkflowError(f"{where}: no mapping: {data!r}")
    return data


def _require_keys(
    data: Mapping[str, Any], where: str, must: set[str], may: Sequence[str] | set[str] = ()
) -> None:
    if unknown := set(data) - must - set(may):
        raise UnknownWorkflowError(f"{where}: unknown: {', '.join(sorted(unknown))}")
    if absent := must - set(data):
        raise UnknownWorkflowError(f"{where}: without {', '.join(sorted(absent))}")
