from __future__ import annotations

import pytest

from envbuilder.host import drivers
from envbuilder.host.model import Gpu, Host


@pytest.mark.parametrize(("sm", "jetson"), [("8.7", True), ("11.0", True), ("12.1", False)])
def test_the_driver_of_a_jetson_comes_with_jetpack(sm: str, *, jetson: bool) -> None:
    gpu = Gpu(vendor="nvidia", name="NVIDIA", state="present", sm=sm)
    advice = drivers.install(gpu, Host(os="linux", os_version="Ubuntu 24.04.3 LTS"), "580.65.06")
    assert ("JetPack" in advice) == jetson
    assert ("ubuntu-drivers" in advice) == (not jetson)
