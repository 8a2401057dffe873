"""What the payload trains by JAX is the network of the example, with its optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.exact_steps import require_exact


@pytest.mark.soak  # with the other tests, its verification repeats what it trained
def test_three_steps_are_those_of_numpy_in_float64(jax_prefix: Path) -> None:
    require_exact("jax", jax_prefix)
