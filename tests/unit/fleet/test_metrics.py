"""The metrics are what Prometheus' own parser, and OpenMetrics', read."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser
from prometheus_client.openmetrics import parser as strict_parser

from envbuilder.core.errors import VerifyError
from envbuilder.fleet import metrics
from envbuilder.fleet.model import OUTCOMES, Group
from tests.support.fleet_runs import RUN, entry, summary, unreported

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.fleet.model import Summary

FLEET = summary(
    entry("gpu-01"),
    entry("gpu-02", outcome="slow", epoch_seconds=2.5, share=2.0),
    unreported("gpu-03", "drained"),
    across=True,
    groups=(
        Group(
            name="ddp-cuda-1f",
            nodes=("gpu-01", "gpu-02"),
            profile="cuda",
            outcome="verified",
            images_per_second=91000.0,
            efficiency=0.9,
        ),
    ),
)


def parsed(run: Summary) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return what both parsers read: metrics, and by their labels the values."""
    text = metrics.text(run)
    both = []
    for families in (
        parser.text_string_to_metric_families(text),  # type: ignore[no-untyped-call]
        strict_parser.text_string_to_metric_families(text),  # type: ignore[no-untyped-call]
    ):
        values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in families:
            assert family.type == "gauge"
            assert family.documentation
            for sample in family.samples:
                assert sample.name == family.name
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in values.setdefault(family.name, {})
                values[family.name][labels] = sample.value
        both.append(values)
    assert both[0] == both[1]
    return both[0]


def test_every_node_and_every_count_is_there() -> None:
    values = parsed(FLEET)
    node = {"node": "gpu-01", "profile": "cuda", "accelerator": "cuda"}
    labels = tuple(sorted(node.items()))
    assert values["envbuilder_fleet_node_epoch_seconds"][labels] == 1.25
    assert values["envbuilder_fleet_node_epoch_share_ratio"][labels] == 1.0
    assert values["envbuilder_fleet_node_images_per_second"][labels] == 48000.0
    assert values["envbuilder_fleet_node_accuracy_ratio"][labels] == 0.984
    outcomes = values["envbuilder_fleet_node_outcome"]
    assert {(dict(k)["node"], dict(k)["outcome"]): v for k, v in outcomes.items()} == {
        ("gpu-01", "verified"): 1.0,
        ("gpu-02", "slow"): 1.0,
        ("gpu-03", "drained"): 1.0,
    }
    counts = {dict(k)["outcome"]: v for k, v in values["envbuilder_fleet_nodes"].items()}
    assert counts == {o: float(o in {"verified", "slow", "drained"}) for o in OUTCOMES}
    assert values["envbuilder_fleet_run_passed"] == {(): 0.0}
    assert values["envbuilder_fleet_run_started_timestamp_seconds"] == {(): 1795425300.0}
    assert values["envbuilder_fleet_run_finished_timestamp_seconds"] == {(): 1795426925.0}
    (info,) = values["envbuilder_fleet_run_info"]
    assert dict(info) == {"run": RUN, "scheduler": "slurm", "quick": "false"}


def test_groups_have_values_of_their_own() -> None:
    values = parsed(FLEET)
    labels = (("group", "ddp-cuda-1f"), ("profile", "cuda"))
    assert values["envbuilder_fleet_group_nodes"] == {labels: 2.0}
    assert values["envbuilder_fleet_group_efficiency_ratio"] == {labels: 0.9}
    assert values["envbuilder_fleet_group_images_per_second"] == {labels: 91000.0}
    (outcome,) = values["envbuilder_fleet_group_outcome"]
    assert dict(outcome)["outcome"] == "verified"
    unmeasured = Group(name="g", nodes=("a", "b"), outcome="lost")
    few = parsed(summary(entry("a"), entry("b"), across=True, groups=(unmeasured,)))
    assert "envbuilder_fleet_group_nodes" in few
    assert "envbuilder_fleet_group_efficiency_ratio" not in few


def test_a_node_without_a_report_has_no_values_that_nobody_measured() -> None:
    values = parsed(FLEET)
    for name, samples in values.items():
        nodes = {dict(labels).get("node") for labels in samples}
        assert ("gpu-03" in nodes) == (name == "envbuilder_fleet_node_outcome")
    assert "envbuilder_fleet_node_accuracy_ratio" not in parsed(summary(unreported("a", "lost")))


def test_a_run_that_passed_is_one() -> None:
    assert parsed(summary(entry("a")))["envbuilder_fleet_run_passed"] == {(): 1.0}


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False))
def test_any_label_and_any_value_come_back(text: str, value: float) -> None:
    run = summary(entry("a", accelerator=text, epoch_seconds=value))
    ((labels, number),) = parsed(run)["envbuilder_fleet_node_epoch_seconds"].items()
    assert dict(labels)["accelerator"] == text
    assert number == value


def test_the_file_is_whole_and_readable_by_the_collector(tmp_path: Path) -> None:
    path = tmp_path / "textfile" / "envbuilder.prom"
    before = os.umask(0o022)
    try:
        metrics.write(path, FLEET)
    finally:
        os.umask(before)
    assert path.read_text() == metrics.text(FLEET)
    assert [p.name for p in path.parent.iterdir()] == ["envbuilder.prom"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with pytest.raises(VerifyError, match="metrics cannot be written"):
        metrics.write(path / "below", FLEET)


def test_the_documentation_has_every_metric_and_its_labels(repository: Path) -> None:
    text = (repository / "docs" / "reference" / "fleet-metrics.md").read_text()
    rows = re.findall(r"^\| `(envbuilder_fleet_\w+)` \| ([^|]*)\|", text, re.MULTILINE)
    assert [name for name, _ in rows] == list(parsed(FLEET))
    stated = set[str]()
    for name, labels in rows:
        stated = stated if "the same" in labels else set(re.findall(r"`(\w+)`", labels))
        for sample in parsed(FLEET)[name]:
            assert set(dict(sample)) == stated, name
