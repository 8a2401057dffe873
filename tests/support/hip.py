"""A stand-in for a ROCm build of torch: as much of it as reading a GPU and one computation take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

LISTED = "gfx900 gfx90a:sramecc+:xnack- gfx942 gfx1030 gfx1100 gfx1103 gfx1151 gfx1201"
WHEEL = "2.14.0+rocm7.2"


class Values:
    """The numbers of the one computation; `right` says whether they are."""

    def __init__(self, right: bool = True) -> None:
        self.right = right

    def __mul__(self, other: int) -> Values:
        return self

    def __add__(self, other: int) -> Values:
        return self

    def to(self, place: str) -> Values:
        return self


class HipTorch:
    """torch for AMD's GPUs, with one GPU; its calls are in `done`."""

    float32 = "float32"

    def __init__(
        self,
        gfx: str = "gfx1100",
        *,
        version: str = WHEEL,
        hip: str | None = "7.2.26015",
        cuda: str | None = None,
        listed: str = LISTED,
        available: bool = True,
        fails: str = "",
        right: bool = True,
    ) -> None:
        self.__version__ = version
        self.fails = fails
        self.right = right
        self.done: list[str] = []
        self.from_numpy = lambda array: SimpleNamespace(numpy=lambda: array)
        properties = SimpleNamespace(
            name="Radeon RX 7900 XTX", total_memory=24 << 30, gcnArchName=gfx
        )
        self.version = SimpleNamespace(cuda=cuda, hip=hip, xpu=None)
        self._C = SimpleNamespace(_cuda_getArchFlags=lambda: listed)
        self.cuda = SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: int(available),
            get_device_properties=lambda index: properties,
            synchronize=lambda: self.done.append("synchronize cuda"),
            memory_allocated=lambda: 7,
            max_memory_allocated=lambda: 8,
        )
        self.backends = SimpleNamespace(
            cudnn=SimpleNamespace(version=lambda: 3005001),
            mps=SimpleNamespace(is_built=lambda: False),
        )

    def set_num_threads(self, count: int) -> None:
        self.done.append(f"{count} threads")

    def get_num_threads(self) -> int:
        return 2

    def get_num_interop_threads(self) -> int:
        return 2

    def arange(self, size: int, dtype: str, device: str = "cpu") -> Values:
        self.done.append(f"arange {device}")
        if device != "cpu" and self.fails:
            raise RuntimeError(self.fails)
        return Values(self.right or device == "cpu")

    def zeros(self, size: int, device: str) -> Any:
        raise RuntimeError("No HIP GPUs are available\nmore")

    def equal(self, ours: Values, exact: Values) -> bool:
        return ours.right and exact.right
