"""What the payload measures of a machine besides its verdict, as typed data with its ranges."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0)]
"""A rate or a duration that was measured."""

NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class Matmul(Struct, frozen=True, kw_only=True):
    """The rate of one large square matrix product."""

    dtype: str
    size: Count
    flops_per_second: Positive


class Bandwidth(Struct, frozen=True, kw_only=True):
    """Bytes a second; null where there is no such path, or it could not be measured."""

    device: Positive | None = None
    host_to_device: Positive | None = None
    host_to_device_pinned: Positive | None = None
    device_to_host: Positive | None = None
    device_to_host_pinned: Positive | None = None
    device_to_device: Positive | None = None


class Inference(Struct, frozen=True, kw_only=True):
    """Throughput of the trained network in evaluation mode."""

    batch: Count
    samples_per_second: Positive


class Logging(Struct, frozen=True, kw_only=True):
    """Seconds of the same steps with the loss fetched after each, and with all fetched last."""

    steps: Count
    every_step_seconds: Positive
    at_end_seconds: Positive


class Measurements(Struct, frozen=True, kw_only=True):
    """What the machine reaches; null where it could not be measured.

    `matmul_share` is what the last epoch's computing reached of the float32 matmul rate.
    """

    matmul: tuple[Matmul, ...] | None = None
    bandwidth: Bandwidth | None = None
    launch_seconds: Positive | None = None
    inference: Inference | None = None
    peak_memory_bytes: Count | None = None
    epoch_flops: Positive | None = None
    matmul_share: Positive | None = None
    logging: Logging | None = None


class Determinism(Struct, frozen=True, kw_only=True):
    """Two trainings from one seed: whether their weights are equal, and by how much they differ.

    A difference that is not finite is null.
    """

    steps: Count
    equal: bool
    largest_difference: NotNegative | None = None
