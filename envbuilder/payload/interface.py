"""The interface that a framework must provide to be verified. Each framework is one module.

``verify`` and ``checks`` use only this interface, so a new framework needs only a row in the table
of frameworks and a module. An *array* is an array of the framework's own type, on the device unless
stated otherwise. A *loss* is a number that the device may still be computing.
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
    """One operator or device kernel: its name, its self time in microseconds, and where it ran."""

    name: str
    microseconds: float
    on_device: bool


@dataclass(frozen=True)
class Observation:
    """The kernels that the profiler saw, or why this version of the framework cannot show them."""

    kernels: Tuple[Kernel, ...]
    unjudged: str = ""

    @classmethod
    def of(cls, events: Iterable[Tuple[str, bool, float]]) -> Observation:
        """Sum the microseconds of the events by name, separately for the device and the CPU.

        Return an observation of the resulting kernels.
        """
        spent: Dict[Tuple[str, bool], float] = {}
        for name, on_device, microseconds in events:
            spent[name, on_device] = spent.get((name, on_device), 0.0) + microseconds
        return cls(tuple(Kernel(name, time, place) for (name, place), time in spent.items()))

    def on_device(self) -> List[Kernel]:
        """Return the kernels that a device other than the CPU ran."""
        return [kernel for kernel in self.kernels if kernel.on_device]

    def timed(self) -> List[Kernel]:
        """Return the device kernels that took time. A kernel with a time of zero did not run."""
        return [kernel for kernel in self.on_device() if kernel.microseconds > 0]

    def matching(self, prefix: str) -> List[str]:
        """Return the names of kernels that begin with ``prefix``."""
        return sorted({k.name for k in self.kernels if k.name.startswith(prefix)})

    def top(self) -> List[str]:
        """Return the names of the most expensive kernels.

        If there are device kernels, only those are considered.
        """
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
    """The loss curve: the loss of every ``every``-th step, starting with the first."""

    every: int
    steps: int = 0
    points: List[Tuple[int, float]] = field(default_factory=list)

    def add(self, losses: List[float]) -> None:
        """Add the losses of one epoch's steps, of which only every ``every``-th is kept."""
        numbered = enumerate(losses, self.steps)
        self.points += [(1 + step, loss) for step, loss in numbered if step % self.every == 0]
        self.steps += len(losses)


@dataclass(frozen=True)
class Tensors:
    """One split on a device, in its original order: images as unsigned bytes, labels as numbers."""

    images: Any
    labels: Any


@dataclass(frozen=True)
class Step:
    """Observations of an additional training step.

    ``devices`` and ``dtypes`` are those of the parameters, gradients and activations, as far as the
    framework reveals them. ``observation`` contains what ran, according to the framework.
    """

    devices: Tuple[str, ...]
    dtypes: Tuple[str, ...]
    observation: Observation

    @classmethod
    def of(cls, arrays: Iterable[Tuple[str, str]], observation: Observation) -> Step:
        """Build a step from the observation and the (device type, dtype) pair of each array."""
        devices, dtypes = (tuple(sorted(set(kind))) for kind in zip(*arrays))  # noqa: B905
        return cls(devices, dtypes, observation)


class Job(ABC):
    """A training run of the network in PyTorch's MNIST example, with Adadelta, on one device.

    Two jobs with the same seed begin with equal weights and draw equal random numbers, as far as
    the framework allows. ``order`` is an array of integers that gives the order of the images in
    the last epoch.
    """

    curve: Optional[Curve] = None
    on_first_step: Optional[Callable[[], None]] = None
    order: Any = None

    @abstractmethod
    def wait(self, result: Any = None) -> None:
        """Wait for the device, at least for the work that ``result`` depends on."""

    @abstractmethod
    def shuffle(self, data: Tensors) -> None:
        """Begin an epoch: shuffle the images, convert them to float32, and normalize them."""

    @abstractmethod
    def step(self, first: int, count: int) -> Any:
        """Train on a batch of the shuffled images, and return its mean loss before the update."""

    @abstractmethod
    def step_and_masks(self, first: int, count: int) -> Tuple[Any, List[Any]]:
        """Train as ``step`` does, and return the loss and the masks of the two dropouts.

        The masks tell which values each dropout kept.
        """

    @abstractmethod
    def snapshot(self) -> List[Any]:
        """Return copies of each parameter and its Adadelta averages.

        The parameters are in the order of ``model.NAMES``. The copies stay on the device.
        """

    @abstractmethod
    def train(self, batch: Any) -> Any:
        """Train on one of the batches returned by ``Framework.batches``, and return its loss."""

    @abstractmethod
    def decay(self) -> None:
        """Reduce the learning rate at the end of an epoch."""

    @abstractmethod
    def fetch(self, losses: Sequence[Any]) -> List[float]:
        """Fetch all losses at once, and return them as numbers. Fetching waits for the device."""

    @abstractmethod
    def taken(self) -> List[int]:
        """Return the order in which the last epoch used the images."""

    @abstractmethod
    def labels(self, data: Tensors) -> List[int]:
        """Return the labels of a split."""

    @abstractmethod
    def predict(self, images: Any) -> Iterator[Scores]:
        """Yield the log-probabilities of uint8 images (N, 28, 28) in batches of ``TEST_BATCH``.

        The network is in evaluation mode.
        """

    @abstractmethod
    def inference(self, images: Any) -> Tuple[Callable[[], Any], int]:
        """Return a function that classifies the first batch of images, and the batch's size."""

    @abstractmethod
    def summary(self) -> Dict[str, Any]:
        """Return the optimizer and how the training differs from the published example."""


class Framework(ABC):
    """An imported framework for use with one accelerator.

    It is imported by the function ``load`` of its module.
    """

    name: str
    version: str
    accelerator: str

    def extend(self, names: Sequence[str]) -> None:  # noqa: B027 - most have none
        """Load extensions of the framework that change how it trains."""

    @abstractmethod
    def on_cpu(self) -> Framework:
        """Return an instance for use on the CPU, where the baseline is trained."""

    @abstractmethod
    def facts(self) -> Dict[str, Optional[str]]:
        """Return the framework's version, its build, and the version of the build's runtime.

        The build is, for example, "cpu" or "cu130".
        """

    @abstractmethod
    def threads(self) -> Dict[str, Optional[int]]:
        """Return the numbers of threads within ("framework") and across operators ("interop")."""

    @abstractmethod
    def require_build(self) -> str:
        """Return a sentence describing the build.

        Raise CheckError if the build cannot drive the accelerator.
        """

    @abstractmethod
    def require_usable(self) -> str:
        """Check that the device computes correctly, and return a sentence about the result.

        Raise CheckError if the device does not.
        """

    @abstractmethod
    def describe(self) -> Dict[str, Any]:
        """Return the device's name, memory_bytes, driver and capability; unknown ones are None."""

    @abstractmethod
    def device_type(self) -> str:
        """Return the type that ``Step.devices`` contains for a device of this accelerator."""

    def why_not(self, error: BaseException) -> str:
        """Return a sentence if the error means that the build lacks a kernel, or "" otherwise."""
        return ""

    @abstractmethod
    def counted(self, what: str) -> Optional[int]:
        """Return the bytes allocated on an accelerator, or their peak if ``what`` is "peak".

        Return None if the framework does not count allocated bytes.
        """

    def allocated(self) -> Optional[int]:
        """Return the bytes that the framework has allocated on the device, or None on the CPU."""
        return None if self.accelerator == "cpu" else self.counted("allocated")

    def peak(self) -> Optional[int]:
        """Return the peak of ``allocated`` or, on the CPU, of the process's memory, in bytes."""
        return hardware.process_peak() if self.accelerator == "cpu" else self.counted("peak")

    @abstractmethod
    def wait(self, result: Any = None) -> None:
        """Wait for the device, at least for the work that ``result`` depends on."""

    @abstractmethod
    def state_precision(self, stated: str) -> None:
        """Switch off any precision lower than ``stated`` that the framework uses by default."""

    @abstractmethod
    def precision(self) -> Dict[str, Any]:
        """Return the precision settings in effect, in the form used in the report."""

    @abstractmethod
    def hold(self, split: Split) -> Tensors:
        """Copy the first ``split.count`` images and labels of a split to the device."""

    @abstractmethod
    def images(self, content: bytes) -> Any:
        """Copy consecutive images, given as unsigned bytes, to the device."""

    @abstractmethod
    def content(self, array: Any) -> bytes:
        """Copy an array of integers back from the device, and return them as unsigned bytes."""

    @abstractmethod
    def floats(self, arrays: Sequence[Any]) -> bytes:
        """Copy arrays from the device, and return their numbers as consecutive float32 bytes."""

    @abstractmethod
    def batches(self, data: Tensors, count: int) -> List[Any]:
        """Return the first ``count`` normalized batches and their labels.

        If the data contain fewer batches, they are repeated.
        """

    @abstractmethod
    def job(self, seed: int) -> Job:
        """Prepare a new network, optimizer and schedule on the device, and return them as a job."""

    @abstractmethod
    def observe(self, job: Job, batch: Any) -> Step:
        """Train on a batch a few more times, and return the observations of these steps."""

    @abstractmethod
    def product(self, dtype: str, size: int) -> Callable[[], Any]:
        """Return a function that multiplies two random square matrices on the device."""

    @abstractmethod
    def smallest(self) -> Callable[[], Any]:
        """Return a function that launches the smallest possible operation on the device."""

    @abstractmethod
    def traffic(self, path: str) -> Optional[Traffic]:
        """Return a number of bytes and a function that moves them along a memory path.

        Return None if this machine has no such path.
        """
