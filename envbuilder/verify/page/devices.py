"""Compute the page's section on several devices: each alone, and all together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core.text import amount, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.verify.report.model import Scaling

MOST_DEVICES = 64


class Devices(Struct, frozen=True, kw_only=True):
    """Rows of (device, images per second alone, share of the sum); sentences on the joint run."""

    rows: tuple[tuple[str, str, str], ...]
    sentences: tuple[str, ...]
    wrong: tuple[str, ...]


def devices(scaling: Scaling | None) -> Devices | None:
    """Return the section on several devices; None if none were requested."""
    if scaling is None:
        return None
    each = scaling.devices[:MOST_DEVICES]
    total = sum(device.samples_per_second or 0 for device in each)
    rows = []
    for device in each:
        label = f"{device.index}: {device.name}" if device.name else f"{device.index}"
        speed = device.samples_per_second
        figures = (amount(speed), percent(speed / total, 0)) if speed else ("–", "–")
        rows.append((label, *figures))
    failed = scaling.status == "failed"
    return Devices(
        rows=tuple(rows),
        sentences=tuple(_sentences(scaling)),
        wrong=(scaling.reasons or ("They did not pass.",)) if failed else (),
    )


def _sentences(scaling: Scaling) -> Iterator[str]:
    if scaling.ranks and scaling.samples_per_second:
        through = f" through {scaling.backend}" if scaling.backend else ""
        speed = f"{amount(scaling.samples_per_second)} images a second"
        efficiency = scaling.efficiency
        share = f", {percent(efficiency, 0)} of the sum of each alone" if efficiency else ""
        yield f"All {scaling.ranks} together{through}: {speed}{share}."
    if scaling.gradients_equal:
        yield (
            "Gradients were equal on all ranks, and those of one process over the joined batch."
            " Each rank adds 64 images to a step."
        )
