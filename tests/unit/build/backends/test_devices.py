"""The variables that choose the GPUs of an environment."""

from __future__ import annotations

import pytest

from envbuilder.build.backends import devices

CUDA = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("variables", "environ", "expected", "note"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, {}, ""),
        (CUDA, {}, CUDA, "CUDA_VISIBLE_DEVICES=1 hides those that do not work"),
        (CUDA, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, CUDA, "CUDA_VISIBLE_DEVICES=1 hides"),
        (
            CUDA,
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            "CUDA_VISIBLE_DEVICES=0,1 is set",
        ),
        (
            {"ZE_AFFINITY_MASK": "1"},
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"},
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"},
            "ONEAPI_DEVICE_SELECTOR=level_zero:0 is set",
        ),
    ],
)
def test_what_the_user_set_takes_precedence(
    variables: dict[str, str], environ: dict[str, str], expected: dict[str, str], note: str
) -> None:
    chosen, said = devices.visible(variables, environ)
    assert chosen == expected
    assert note in said
