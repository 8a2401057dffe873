"""Write what a run showed for monitoring, in Prometheus' text format.

https://prometheus.io/docs/instrumenting/exposition_formats/; the same text is valid OpenMetrics.
One file, as the textfile collector of node_exporter reads it: everything is a gauge without a
timestamp of its own. When the run was is a value, so that an alert can see that none came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.core import files, stamps
from envbuilder.core.errors import VerifyError
from envbuilder.fleet.model import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from envbuilder.fleet.model import Entry, Group, Summary

    Sample = tuple[Mapping[str, str], float]

_PREFIX = "envbuilder_fleet_"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def write(path: Path, summary: Summary) -> None:
    """Write a run's metrics atomically; raise `VerifyError` if the path cannot be written.

    The collector, which is another user, must be able to read them: the mode is left to the umask.
    """
    hint = "The verification itself finished; choose another path for the metrics."
    files.save(path, text(summary).encode(), VerifyError, hint, "the metrics")


def text(summary: Summary) -> str:
    """Return a run's metrics as text."""
    entries = summary.entries
    run = {
        "run": summary.run,
        "scheduler": summary.scheduler,
        "quick": str(summary.quick).lower(),
    }
    counts = [
        ({"outcome": outcome}, sum(e.outcome == outcome for e in entries)) for outcome in OUTCOMES
    ]
    families = [
        *_family("run_info", "The last run of a fleet, always 1.", [(run, 1)]),
        *_family(
            "run_passed",
            "1 if every node and every group was proven, else 0.",
            [({}, summary.passed)],
        ),
        *_family(
            "run_started_timestamp_seconds",
            "When the run started, in seconds since 1970.",
            [({}, stamps.parse(summary.started).timestamp())],
        ),
        *_family(
            "run_finished_timestamp_seconds",
            "When the run finished, in seconds since 1970.",
            [({}, stamps.parse(summary.finished).timestamp())],
        ),
        *_family("nodes", "Nodes by outcome.", counts),
        *_family(
            "node_outcome",
            "What became of a node, always 1; the outcome is a label.",
            [({**_labels(e), "outcome": e.outcome}, 1) for e in entries],
        ),
        *_family(
            "node_epoch_seconds",
            "Seconds of a training pass over the data.",
            _values((e, e.epoch_seconds) for e in entries),
        ),
        *_family(
            "node_epoch_share_ratio",
            "Seconds of a training pass, divided by the median of the node's equals.",
            _values((e, e.share) for e in entries),
        ),
        *_family(
            "node_images_per_second",
            "Training images per second in the last training pass.",
            _values((e, e.images_per_second) for e in entries),
        ),
        *_family(
            "node_accuracy_ratio",
            "Share of the test images that were classified correctly.",
            _values((e, e.accuracy) for e in entries),
        ),
        *_family(
            "group_outcome",
            "What became of nodes that were to train together, always 1; the outcome is a label.",
            [({**_of_group(g), "outcome": g.outcome}, 1) for g in summary.groups],
        ),
        *_family(
            "group_nodes",
            "How many nodes were to train together.",
            [(_of_group(g), len(g.nodes)) for g in summary.groups],
        ),
        *_family(
            "group_images_per_second",
            "Training images per second of all nodes of a group together.",
            _of_groups((g, g.images_per_second) for g in summary.groups),
        ),
        *_family(
            "group_efficiency_ratio",
            "Speed of a group, divided by the sum of what its devices reached alone.",
            _of_groups((g, g.efficiency) for g in summary.groups),
        ),
    ]
    return "\n".join([*families, "# EOF", ""])


def _family(name: str, purpose: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of a metric; none without a sample."""
    lines = [f"{_PREFIX}{name}{_braces(labels)} {_number(value)}" for labels, value in samples]
    if lines:
        yield f"# HELP {_PREFIX}{name} {purpose}"
        yield f"# TYPE {_PREFIX}{name} gauge"
        yield from lines


def _labels(entry: Entry) -> dict[str, str]:
    profile = entry.profile or entry.promised
    return {"node": entry.node, "profile": profile, "accelerator": entry.accelerator}


def _values(pairs: Iterable[tuple[Entry, float | None]]) -> Iterator[Sample]:
    return ((_labels(entry), value) for entry, value in pairs if value is not None)


def _of_group(group: Group) -> dict[str, str]:
    return {"group": group.name, "profile": group.profile}


def _of_groups(pairs: Iterable[tuple[Group, float | None]]) -> Iterator[Sample]:
    return ((_of_group(group), value) for group, value in pairs if value is not None)


def _braces(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return repr(float(value))
