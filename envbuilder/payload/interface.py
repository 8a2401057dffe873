"""What the judgement requires of a framework; each framework is one module that provides it.

``verify`` and ``checks`` call nothing else, so that another framework is a row in the table and a
module. An *array* is the framework's own, on the device unless stated otherwise; a *loss* is a
number that may still be on its way there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

from .machine import hardware

PROFILED_STEPS = 3
TOP = 15
"""Maximum number of kernels that the report names."""


@dataclass(frozen=True)
class Kernel:
    """One operator or device kernel: its name, self time in microseconds, and which side ran it."""

    name: str
    microseconds: float
    on_device: bool


@dataclass(frozen=True)
class Observation:
    """The kernels that the profiler saw, or why that is not judged in this release."""

    kernels: Tuple[Kernel, ...]
    unjudged: str = ""

    @classmethod
    def of(cls, events: Iterable[Tuple[str, bool, float]]) -> Observation:
        """Add up the microseconds of each name, on the device and not."""
        spent: Dict[Tuple[str, bool], float] = {}
        for name, on_device, microseconds in events:
            spent[name, on_device] = spent.get((name, on_device), 0.0) + microseconds
        return cls(tuple(Kernel(name, time, place) for (name, place), time in spent.items()))

    def on_device(self) -> List[Kernel]:
        """Return the kernels that a device other than the CPU ran."""
        return [kernel for kernel in self.kernels if kernel.on_device]

    def timed(self) -> List[Kernel]:
        """Return those that took time there: a name without a time is no kernel that ran."""
        return [kernel for kernel in self.on_device() if kernel.microseconds > 0]

    def matching(self, prefix: str) -> List[str]:
        """Return the names of kernels that begin with ``prefix``."""
        return sorted({k.name for k in self.kernels if k.name.startswith(prefix)})

    def top(self) -> List[str]:
        """Return the names of the most expensive kernels: the device's own if there are any."""
        chosen = self.on_device() or list(self.kernels)
        names = [k.name for k in sorted(chosen, key=lambda k: -k.microseconds)]
        return list(dict.fromkeys(names))[:TOP]


Scores = List[List[float]]
"""Log-probabilities of the ten classes, image by image."""

Split = Any
"""Of ``training.dataset``: images as unsigned bytes, their labels, and how many are used."""

Traffic = Tuple[int, Callable[[], Any]]
"""A number of bytes, and the work that moves them once."""


@dataclass
class Curve:
    """The loss curve: the loss of every ``every``-th step, from the first one on."""

    every: int
    steps: int = 0
    points: List[Tuple[int, float]] = field(default_factory=list)

    def add(self, losses: List[float]) -> None:
        """Add the losses of an epoch's steps."""
        numbered = enumerate(losses, self.steps)
        self.points += [(1 + step, loss) for step, loss in numbered if step % self.every == 0]
        self.steps += len(losses)


@dataclass(frozen=True)
class Tensors:
    """One split on a device: images as unsigned bytes and labels as integers, in its order."""

    images: Any
    labels: Any


@dataclass(frozen=True)
class Step:
    """What one more training step showed.

    ``devices`` and ``dtypes`` are those of parameters, gradients and activations, as far as the
    framework lets them be seen; ``observation`` is what it says has run.
    """

    devices: Tuple[str, ...]
    dtypes: Tuple[str, ...]
    observation: Observation

    @classmethod
    def of(cls, arrays: Iterable[Tuple[str, str]], observation: Observation) -> Step:
        """Return a step by the device type and dtype of each of its arrays."""
        devices, dtypes = (tuple(sorted(set(kind))) for kind in zip(*arrays))  # noqa: B905
        return cls(devices, dtypes, observation)


class Job(ABC):
    """One training of the network of PyTorch's MNIST example, with Adadelta, on one device.

    Two jobs of one seed begin with equal weights and draw equal random numbers, as far as the
    framework can. ``order`` is the order of images in the last epoch: integers, still an array.
    """

    curve: Optional[Curve] = None
    on_first_step: Optional[Callable[[], None]] = None
    order: Any = None

    @abstractmethod
    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished; at least what ``result`` depends on."""

    @abstractmethod
    def shuffle(self, data: Tensors) -> None:
        """Begin an epoch: draw an order of the images, convert and normalise all of them."""

    @abstractmethod
    def step(self, first: int, count: int) -> Any:
        """Train on a batch of the shuffled images and return its mean loss, before the step."""

    @abstractmethod
    def step_and_masks(self, first: int, count: int) -> Tuple[Any, List[Any]]:
        """Train as ``step`` does; also return which values each of the two dropouts kept."""

    @abstractmethod
    def snapshot(self) -> List[Any]:
        """Copy on the device, for each of ``model.NAMES``: the parameter, Adadelta's averages."""

    @abstractmethod
    def train(self, batch: Any) -> Any:
        """Train on one of the framework's ``batches`` and return its loss."""

    @abstractmethod
    def decay(self) -> None:
        """End an epoch: reduce the learning rate."""

    @abstractmethod
    def fetch(self, losses: Sequence[Any]) -> List[float]:
        """Return losses as numbers, all at once; this waits for the device."""

    @abstractmethod
    def taken(self) -> List[int]:
        """Return the order of the last epoch."""

    @abstractmethod
    def labels(self, data: Tensors) -> List[int]:
        """Return the labels of a split."""

    @abstractmethod
    def predict(self, images: Any) -> Iterator[Scores]:
        """Classify images as bytes (N, 28, 28) in evaluation mode, by ``TEST_BATCH``."""

    @abstractmethod
    def inference(self, images: Any) -> Tuple[Callable[[], Any], int]:
        """Return a function that classifies the first batch of images, and how many these are."""

    @abstractmethod
    def summary(self) -> Dict[str, Any]:
        """Return the ``optimizer``, and what differs from the example's published form."""


class Framework(ABC):
    """An imported framework that is to use one accelerator. Making one imports it."""

    name: str
    version: str
    accelerator: str

    def extend(self, names: Sequence[str]) -> None:  # noqa: B027 - most have none
        """Load extensions of the framework that change how it trains."""

    @abstractmethod
    def on_cpu(self) -> Framework:
        """Return the same framework for the CPU, for the baseline."""

    @abstractmethod
    def facts(self) -> Dict[str, Optional[str]]:
        """Return version, build ("cpu", "cu130") and the version of the build's runtime."""

    @abstractmethod
    def threads(self) -> Dict[str, Optional[int]]:
        """Return the threads of an operator ("framework") and across operators ("interop")."""

    @abstractmethod
    def require_build(self) -> str:
        """Return a sentence on the build; raise CheckError if it cannot drive the accelerator."""

    @abstractmethod
    def require_usable(self) -> str:
        """Compute on the device and compare; raise CheckError with the reason if this fails."""

    @abstractmethod
    def describe(self) -> Dict[str, Any]:
        """Return the device's name, memory_bytes, driver and capability; None where unknown."""

    @abstractmethod
    def device_type(self) -> str:
        """Return what the framework calls a device of this accelerator in ``Step.devices``."""

    def why_not(self, error: BaseException) -> str:
        """Return a sentence on an error that says that the build lacks a kernel; else empty."""
        return ""

    @abstractmethod
    def counted(self, what: str) -> Optional[int]:
        """Return the bytes "allocated" on an accelerator, or their "peak"; None if not counted."""

    def allocated(self) -> Optional[int]:
        """Return the bytes that the framework holds on the device; None on the CPU."""
        return None if self.accelerator == "cpu" else self.counted("allocated")

    def peak(self) -> Optional[int]:
        """Return their maximum; on the CPU, the peak size of the process."""
        return hardware.process_peak() if self.accelerator == "cpu" else self.counted("peak")

    @abstractmethod
    def wait(self, result: Any = None) -> None:
        """Wait until the device has finished; at least what ``result`` depends on."""

    @abstractmethod
    def state_precision(self, stated: str) -> None:
        """Undo a lower precision that the framework uses unless told otherwise."""

    @abstractmethod
    def precision(self) -> Dict[str, Any]:
        """Return the report's ``precision``: the settings in effect."""

    @abstractmethod
    def hold(self, split: Split) -> Tensors:
        """Copy the used images and labels of a split to the device."""

    @abstractmethod
    def images(self, content: bytes) -> Any:
        """Copy images, unsigned bytes one after the other, to the device."""

    @abstractmethod
    def content(self, array: Any) -> bytes:
        """Return an array's integers as unsigned bytes, copied back from the device."""

    @abstractmethod
    def floats(self, arrays: Sequence[Any]) -> bytes:
        """Return the numbers of arrays as float32, one after the other, copied from the device."""

    @abstractmethod
    def batches(self, data: Tensors, count: int) -> List[Any]:
        """Return the first batches, normalised, with labels; small data are repeated."""

    @abstractmethod
    def job(self, seed: int) -> Job:
        """Prepare a new network, optimizer and schedule on the device."""

    @abstractmethod
    def observe(self, job: Job, batch: Any) -> Step:
        """Train on a batch a few times more, and return what could be seen of it."""

    @abstractmethod
    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random square matrices on the device."""

    @abstractmethod
    def smallest(self) -> Callable[[], Any]:
        """Return a function that launches the smallest operation."""

    @abstractmethod
    def traffic(self, path: str) -> Optional[Traffic]:
        """Return what moves bytes along a path of memory; None if this machine has no such path."""
