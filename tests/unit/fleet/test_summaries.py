"""A summary is read as it was written, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core import decoding
from envbuilder.core.errors import InvalidError
from envbuilder.fleet import summaries
from envbuilder.fleet.model import Group
from tests.support.fleet_runs import entry, summary, unreported

if TYPE_CHECKING:
    from pathlib import Path

PAIR = Group(name="ddp-cuda-1f", nodes=("a", "b"), outcome="verified", efficiency=0.9)
RUN = summary(
    entry("a"),
    entry("b", outcome="slow", share=1.6),
    unreported("c", "lost"),
    across=True,
    groups=(PAIR,),
)


def test_what_was_written_is_read_from_the_file_and_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_bytes(summaries.encode(RUN))
    assert summaries.read(file) == summaries.read(tmp_path) == RUN
    assert json.loads(file.read_text())["schema"] == 1


def changed(**values: Any) -> dict[str, Any]:
    return {**json.loads(summaries.encode(RUN)), **values}


def with_entry(**values: Any) -> dict[str, Any]:
    first, *others = changed()["entries"]
    return changed(entries=[{**first, **values}, *others])


def with_group(**values: Any) -> dict[str, Any]:
    return changed(groups=[{**changed()["groups"][0], **values}])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "Expected `object`"),
        ({}, "missing required field"),
        (changed(schema=2), "it has schema 2, expected 1"),
        (changed(schema="1"), "schema"),
        (changed(run="../../etc"), "run"),
        (changed(scheduler="cron"), "scheduler"),
        (changed(started="yesterday"), "yesterday"),
        (changed(finished=""), "does not match"),
        (changed(quick=1), "quick"),
        (with_entry(outcome="excellent"), "outcome"),
        (with_entry(node="b"), "the node b is in it twice"),
        (with_entry(node="<b>"), "node"),
        (with_entry(epoch_seconds="1"), "epoch_seconds"),
        (with_entry(job="a b"), "job"),
        (with_entry(gpus=-1), "gpus"),
        (with_entry(gpus="8"), "gpus"),
        (changed(epochs=-1), "epochs"),
        (changed(groups=2 * changed()["groups"]), "a group is in it twice"),
        (changed(across=False), "it has groups, although"),
        (with_group(nodes=["a", "x"]), "the node x is in a group, and not among the nodes"),
        (with_group(nodes=["a"]), "nodes"),
        (with_group(name="a/b"), "name"),
        (with_group(efficiency="all"), "efficiency"),
    ],
)
def test_what_is_no_summary_is_refused(data: Any, problem: str, tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_text(json.dumps(data))
    with pytest.raises(InvalidError) as caught:
        summaries.read(tmp_path)
    assert str(file) in caught.value.message
    assert problem in caught.value.message


def test_a_number_that_json_makes_infinite_is_refused(tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_text(json.dumps(with_entry(share=7e77)).replace("7e+77", "1e999"))
    with pytest.raises(InvalidError, match="share of the node a is not finite"):
        summaries.read(file)


@pytest.mark.parametrize("content", [b"", b"\xff", b"{", b'{"a": 1, "a": 2}', b"[" * 200_000])
def test_bytes_that_are_no_json_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_bytes(content)
    with pytest.raises(InvalidError, match="not a summary of a fleet"):
        summaries.read(file)


def test_a_file_that_is_missing_or_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="cannot be read") as caught:
        summaries.read(tmp_path)
    assert "folder of a finished run" in caught.value.hint
    file = tmp_path / summaries.NAME
    with file.open("wb") as stream:
        stream.truncate(decoding.LARGEST + 1)
    with pytest.raises(InvalidError, match="larger than"):
        summaries.read(file)


def test_nodes_may_only_have_trained_together(tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_text(json.dumps({**changed(), "entries": []}))
    assert summaries.read(file).groups
    assert not summaries.read(file).entries


def test_groups_are_as_safe(tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_text(json.dumps(with_group(detail="\x1b[31mred", device="x" * 5000)))
    (group,) = summaries.read(file).groups
    assert (group.detail, len(group.device)) == ("?[31mred", 300)
    file.write_text(json.dumps(with_group(efficiency=7e77)).replace("7e+77", "1e999"))
    with pytest.raises(InvalidError, match="efficiency of the group ddp-cuda-1f is not finite"):
        summaries.read(file)


def test_texts_are_safe_whoever_wrote_them(tmp_path: Path) -> None:
    file = tmp_path / summaries.NAME
    file.write_text(json.dumps(with_entry(detail="\x1b[31mred\u202e", device="x" * 5000)))
    first = summaries.read(file).entries[0]
    assert first.detail == "?[31mred?"
    assert len(first.device) == 300


def test_what_an_earlier_envbuilder_did_not_write_is_unknown(tmp_path: Path) -> None:
    data = changed()
    del data["epochs"]
    for each in data["entries"]:
        del each["gpus"], each["gpus_given"]
    (tmp_path / summaries.NAME).write_text(json.dumps(data))
    read = summaries.read(tmp_path)
    assert read.epochs == 0
    assert {(e.gpus, e.gpus_given) for e in read.entries} == {(None, None)}
