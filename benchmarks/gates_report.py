"""The gates that follow from honest trainings, as Markdown tables.

An accuracy is looked at on the logit scale and a loss on the logarithm's, where they have neither
bounds nor, nearly, a skew. The gate is the mean minus (of a loss: plus) k standard deviations. k is
the factor of a one-sided tolerance bound: with a probability of `CONFIDENCE`, at most `REFUSED` of
all honest runs lie beyond it, if they are normally distributed on that scale. Where they are skewed
towards the gate, k is raised by the first term of Cornish and Fisher's expansion.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from envbuilder.payload.options import QUICK, Gates

CONFIDENCE = 0.95
REFUSED = 1e-4
"""Of all honest verifications, by all gates together (Bonferroni)."""
NORMAL = statistics.NormalDist()
STEPS = 2000
LEAST = 5
"""Fewer runs are no sample."""
ENOUGH = 30
"""Fewer runs make no gate: k would be too large for one that refuses anything."""
MARK = "<!-- benchmarks/gates.py report -->"
"""What follows in the page is generated."""

Run = dict[str, Any]


class Quantity(NamedTuple):
    """What is judged: its title, its scale there and back, and on which side it is refused."""

    title: str
    scale: Callable[[float], float]
    back: Callable[[float], float]
    side: int


def logit(share: float) -> float:
    """The logarithm of the odds."""
    return math.log(share / (1 - share))


def share(odds: float) -> float:
    """The inverse of `logit`."""
    return 1 / (1 + math.exp(-odds))


QUANTITIES = {
    "accuracy": Quantity("accuracy", logit, share, -1),
    "blind_accuracy": Quantity("blind accuracy", logit, share, -1),
    "loss": Quantity("training loss", math.log, math.exp, 1),
    "blind_loss": Quantity("blind cross-entropy", math.log, math.exp, 1),
}


@cache
def factor(runs: int, refused: float, confidence: float = CONFIDENCE) -> float:
    """k of a one-sided tolerance bound for a normal distribution whose mean and deviation are
    estimated from as many runs, within 1e-6.

    Tables agree: 2.355 for 10 runs, a tenth and 95 %; 3.981 for a hundredth (NIST/SEMATECH
    e-Handbook of Statistical Methods, 7.2.6.3).
    """
    low = 0.0
    high = 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if _held(middle, runs, refused) > confidence else (middle, high)
    return high


def _held(k: float, runs: int, refused: float) -> float:
    """The probability that mean + k deviations is above the quantile that `refused` exceed.

    It is the integral of the normal distribution of the mean over the density of the deviation
    (chi over the root of its degrees of freedom), by Simpson's rule: a noncentral t distribution.
    """
    quantile = NORMAL.inv_cdf(1 - refused)
    degrees = runs - 1
    constant = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    width = 8 / math.sqrt(2 * degrees)
    first = max(1e-9, 1 - width)
    last = 1 + width
    step = (last - first) / STEPS
    total = 0.0
    for number in range(STEPS + 1):
        deviation = first + number * step
        exponent = (degrees - 1) * math.log(deviation) - degrees * deviation**2 / 2
        weight = 1 if number in {0, STEPS} else 4 if number % 2 else 2
        above = NORMAL.cdf(math.sqrt(runs) * (k * deviation - quantile))
        total += weight * math.exp(constant + exponent) * above
    return total * step / 3


class Sample(NamedTuple):
    """One quantity after one epoch, over runs."""

    quantity: Quantity
    values: list[float]

    @property
    def scaled(self) -> list[float]:
        """The values on the quantity's scale."""
        return [self.quantity.scale(value) for value in self.values]

    @property
    def middle(self) -> float:
        """The mean, back from that scale."""
        return self.quantity.back(statistics.fmean(self.scaled))

    @property
    def deviation(self) -> float:
        """The standard deviation on that scale."""
        return statistics.stdev(self.scaled)

    @property
    def worst(self) -> float:
        """The value closest to the gate."""
        return min(self.values, key=lambda value: -self.quantity.side * value)

    @property
    def distances(self) -> list[float]:
        """How many standard deviations each value is from the mean, towards the gate; sorted."""
        mean = statistics.fmean(self.scaled)
        deviation = self.deviation
        return sorted(self.quantity.side * (value - mean) / deviation for value in self.scaled)

    @property
    def skewness(self) -> float:
        """The third moment of the distances: positive if the tail towards the gate is longer."""
        return statistics.fmean(distance**3 for distance in self.distances)

    @property
    def k(self) -> float:
        """The standard deviations from the mean to the gate, one of all that are asked at once."""
        refused = REFUSED / len(QUANTITIES)
        more = max(0.0, self.skewness) * (NORMAL.inv_cdf(1 - refused) ** 2 - 1) / 6
        return factor(len(self.values), refused) + more

    @property
    def bound(self) -> float:
        """The gate."""
        mean = statistics.fmean(self.scaled)
        return self.quantity.back(mean + self.quantity.side * self.k * self.deviation)


def sample(runs: Sequence[Run], name: str, epoch: int) -> Sample:
    """One quantity after an epoch, counted from 0."""
    quantity = QUANTITIES[name]
    return Sample(quantity, [run[name][epoch] for run in runs])


def groups(runs: Sequence[Run]) -> Iterator[tuple[str, int, str, list[Run]]]:
    """Kind, epoch, framework ("all" for all of them) and the honest runs of it."""
    for kind, epochs in (("quick", 3), ("full", 1)):
        of_kind = [run for run in runs if run["kind"] == kind and "fault" not in run]
        names = list(Counter(run["framework"] for run in of_kind))
        for epoch in range(epochs):
            for name in (*names, "all"):
                chosen = [run for run in of_kind if name in {"all", run["framework"]}]
                if len(chosen) >= LEAST:
                    yield kind, epoch, name, chosen


def derived(runs: Sequence[Run]) -> dict[tuple[str, int], Gates]:
    """The gates of the payload by kind and epoch, rounded to what refuses less."""
    gates = {}
    for kind, epoch, framework, chosen in groups(runs):
        if framework == "all" and len(chosen) >= ENOUGH:
            bounds = {name: sample(chosen, name, epoch).bound for name in QUANTITIES}
            least = math.floor(1000 * min(bounds["accuracy"], bounds["blind_accuracy"])) / 1000
            losses = (math.ceil(100 * bounds[name]) / 100 for name in ("loss", "blind_loss"))
            gates[kind, epoch] = Gates(least, *losses)
    return gates


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def shown(quantity: Quantity, value: float) -> str:
    """A value as it is read: accuracies in per cent."""
    return f"{100 * value:.2f}" if quantity.side < 0 else f"{value:.3f}"


def reached(runs: Sequence[Run]) -> str:
    """What was reached, and the bounds; of each framework after a quick run."""
    rows = []
    for kind, epoch, framework, chosen in groups(runs):
        if framework != "all" and (kind, epoch) != ("quick", 2):
            continue
        cells: list[object] = [f"{kind}, {epoch + 1}", framework, len(chosen)]
        for name, quantity in QUANTITIES.items():
            measured = sample(chosen, name, epoch)
            values = (measured.middle, measured.worst, measured.bound)
            middle, worst, bound = (shown(quantity, value) for value in values)
            deviation = f"{measured.deviation:.3f} × {measured.k:.1f}"
            cells.append(f"{middle} ({deviation}) {worst} **{bound}**")
        rows.append(cells)
    titles = [quantity.title for quantity in QUANTITIES.values()]
    return table(("run, epoch", "framework", "runs", *titles), rows)


def faults(runs: Sequence[Run]) -> str:
    """How many runs with a fault the gates of the payload refuse after each epoch, and by which."""
    rows = []
    for name in dict.fromkeys(run["fault"] for run in runs if "fault" in run):
        chosen = [run for run in runs if run.get("fault") == name]
        cells: list[object] = [name, len(chosen)]
        for epoch, gates in enumerate(QUICK):
            refused = [by for run in chosen if (by := refusals(run, epoch, gates))]
            last = statistics.fmean(run["accuracy"][epoch] for run in chosen)
            names = dict.fromkeys(name for by in refused for name in by)
            by_name = f" ({', '.join(names)})" if names else ""
            cells.append(f"{last:.1%}: {len(refused)}{by_name}")
        rows.append(cells)
    return table(("fault", "runs", "after 1 epoch", "after 2", "after 3"), rows)


def refusals(run: Run, epoch: int, gates: Gates) -> list[str]:
    """The gates that a run does not pass."""
    least = min(run["accuracy"][epoch], run["blind_accuracy"][epoch])
    problems = {
        "accuracy": least < gates.accuracy,
        "loss": run["loss"][epoch] > gates.loss,
        "blind loss": run["blind_loss"][epoch] > gates.blind_loss,
    }
    return [name for name, refused in problems.items() if refused]


def counted(runs: Sequence[Run]) -> str:
    """How many honest runs there are of what."""
    counts = Counter(
        (run["kind"], run["framework"], run["version"]) for run in runs if "fault" not in run
    )
    rows = [(*names, count) for names, count in sorted(counts.items())]
    return table(("kind", "framework", "version", "runs"), rows)


def report(runs: Sequence[Run]) -> str:
    """The generated part of docs/evidence/gates.md."""
    sections = {
        "Runs": counted(runs),
        "What they reach": reached(runs),
        "What the gates refuse": faults(runs),
    }
    parts = [f"## {title}\n\n{text}" for title, text in sections.items()]
    return "\n\n".join(parts) + "\n"


def write(page: Path, runs: Sequence[Run]) -> None:
    """Replace the generated part of the page, and print the gates for `payload/options.py`."""
    written, mark, _ = page.read_text().partition(MARK)
    page.write_text(f"{written}{mark}\n\n{report(runs)}")
    for (kind, epoch), gates in derived(runs).items():
        print(f"{kind}, epoch {epoch + 1}: {gates}")
