"""What is measured of PyTorch alone is refused for other frameworks."""

from __future__ import annotations

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.profiles.profile import Expected
from envbuilder.verify import start


def test_pytorch_is_measured() -> None:
    start.require_torch("`tune`", "cpu", Expected(device="cpu", version=""))


def test_another_framework_is_refused_in_a_sentence() -> None:
    expected = Expected(device="cpu", version="", framework="jax")
    with pytest.raises(InvalidError) as raised:
        start.require_torch("`tune`", "jax-cpu", expected)
    assert raised.value.message == ("`tune` measures PyTorch alone, and profile 'jax-cpu' has JAX")
    assert raised.value.exit_code == 2
