"""What a node sends back, in a file or in a log: written there, checked here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.text import printable
from envbuilder.fleet.model import LONGEST_REASON, SCHEMA, Detected, JobId, NodeName, RunId
from envbuilder.verify.report import model

if TYPE_CHECKING:
    from envbuilder.verify.report.model import Report

LARGEST = 4 << 20
"""Maximum size of a result in bytes; a report has 20,000 to 60,000."""


class Result(Struct, frozen=True, kw_only=True):
    """A node's result: whose it is, what was seen and done there, and the report if there is one.

    The identity guards against mistakes, such as a folder that two runs share. It is no defence
    against a node that lies on purpose.
    """

    schema: int
    run: RunId
    job: JobId
    node: NodeName
    host: Annotated[str, Meta(max_length=255)]
    """The host name that the node has itself."""
    exit_code: int | None
    """Of `envbuilder verify`; None if it was stopped because it took too long."""
    message: Annotated[str, Meta(max_length=20_000)]
    """The last lines that it printed."""
    seconds: Annotated[float, Meta(ge=0, le=1e9)]
    detected: Detected
    gpus: Annotated[int, Meta(ge=0)] | None
    """How many GPUs the scheduler says, in the job, that it gave; None if it says nothing."""
    report: dict[str, Any] | None


def encode(result: Result) -> bytes:
    """Return a result as the text that `parse` reads."""
    return msgspec.json.encode(result) + b"\n"


def parse(content: bytes, where: str, *, run: str, job: str, node: str) -> Result:
    """Return a result; raise `InvalidError` if it is malformed, or another job's."""
    if len(content) > LARGEST:
        raise InvalidError(f"{where}: not a node's result: larger than {LARGEST >> 20} MiB")
    try:
        decoding.require_few_values(content)
        result = decoding.from_json(content, Result)
    except (ValueError, RecursionError) as error:
        problem = printable(str(error), LONGEST_REASON)
        raise InvalidError(f"{where}: not a node's result: {problem}") from error
    if result.schema != SCHEMA:
        raise InvalidError(f"{where}: it has schema {result.schema}, expected {SCHEMA}")
    expected = {"run": run, "job": job, "node": node}
    stated = {"run": result.run, "job": result.job, "node": result.node}
    for key, value in expected.items():
        if stated[key] != value:
            raise InvalidError(f"{where}: it is of {key} {stated[key]}, expected {value}")
    return result


def report_of(result: Result) -> Report | None:
    """Return the checked report of a result, if it has one.

    Raises `VerifyError` if it is malformed, or contradicts itself or the exit code.
    """
    if result.report is None:
        if result.exit_code == 0:
            raise VerifyError("it passed, and has no report")
        return None
    report = model.check(result.report)
    if (report.status != "failed") != (result.exit_code == 0):
        raise VerifyError(
            f"the verification ended with {result.exit_code}, and its report says {report.status}"
        )
    return report
