"""Compute the page's section on several devices: each alone, and all together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.verify.page.values import (
    amount,
    count,
    items,
    mapping,
    percent,
    significant,
    text,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_DEVICES = 64


class Devices(Struct, frozen=True, kw_only=True):
    """Rows of (device, images per second alone, share of the sum); sentences on the joint run."""

    rows: tuple[tuple[str, str, str], ...]
    sentences: tuple[str, ...]
    wrong: tuple[str, ...]


def devices(report: Mapping[str, Any]) -> Devices | None:
    """Return the section on several devices; None if none were requested."""
    scaling = mapping(report.get("scaling"))
    if not scaling:
        return None
    each = [mapping(entry) for entry in items(scaling.get("devices"), MOST_DEVICES)]
    rates = [amount(entry.get("samples_per_second")) for entry in each]
    whole = sum(rate for rate in rates if rate) or None
    rows = []
    for place, (entry, rate) in enumerate(zip(each, rates, strict=True)):
        index, name = count(entry.get("index")), text(entry.get("name"), 120)
        label = f"{place if index is None else index}" + (f": {name}" if name else "")
        alone = significant(rate) if rate else "–"
        rows.append((label, alone, percent(rate / whole, 0) if rate and whole else "–"))
    failed = scaling.get("status") != "passed"
    return Devices(
        rows=tuple(rows),
        sentences=tuple(_sentences(scaling)),
        wrong=tuple(texts(scaling.get("reasons")) or ["They did not pass."]) if failed else (),
    )


def _sentences(scaling: Mapping[Any, Any]) -> Iterator[str]:
    ranks, rate = count(scaling.get("ranks")), amount(scaling.get("samples_per_second"))
    efficiency, backend = amount(scaling.get("efficiency")), text(scaling.get("backend"), 20)
    if ranks and rate:
        through = f" through {backend}" if backend else ""
        said = f"All {ranks} together{through}: {significant(rate)} images a second"
        share = f", {percent(efficiency, 0)} of the sum of each alone" if efficiency else ""
        yield f"{said}{share}."
    if scaling.get("gradients_equal") is True:
        yield (
            "Gradients were equal on all ranks, and those of one process over the joined batch."
            " Each rank adds 64 images to a step."
        )
