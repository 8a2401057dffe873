"""Train by the payload's own code, and print what each training reached: one JSON line a run.

Runs in the interpreter of an environment, started by `gates.py`, which sends the runs as JSON.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from envbuilder.payload import frameworks
from envbuilder.payload.training import dataset, eager, model, train
from envbuilder.payload.training.dataset import SIDE
from faulty_steps import FAULTS

PIXELS = SIDE * SIDE
LOWEST_BITS = int.from_bytes(bytes([3]) * PIXELS, "big")
FORMS = {
    "cpu": model.fastest("cpu"),
    "gpu": model.fastest("cuda"),
    "published": model.PUBLISHED,
}


def altered(split: dataset.Split, seed: int) -> bytes:
    """The used images as the blind test sends them: the lowest two bits of each pixel are random.

    Their order is left as it is: it has no effect on a score.
    """
    draw = random.Random(seed)
    return b"".join(
        (
            int.from_bytes(split.images[first : first + PIXELS], "big")
            ^ (draw.getrandbits(8 * PIXELS) & LOWEST_BITS)
        ).to_bytes(PIXELS, "big")
        for first in range(0, split.count * PIXELS, PIXELS)
    )


def score(framework: Any, job: Any, images: bytes, labels: bytes) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of the blind test's images."""
    rows = [row for scores in job.predict(framework.images(images)) for row in scores]
    pairs = list(zip(labels[: len(rows)], rows, strict=True))
    right = sum(row.index(max(row)) == label for label, row in pairs)
    return right / len(rows), -math.fsum(row[label] for label, row in pairs) / len(rows)


def prepared(framework: Any, form: str, seed: int) -> Any:
    """A job as `verify` makes it; for torch in the form that is asked for."""
    if framework.name != "torch":
        return framework.job(seed)
    return eager.prepare(framework.torch, "cpu", FORMS[form], seed)


def trained(framework: Any, data: dataset.Dataset, run: dict[str, Any], epochs: int) -> Any:
    """What one training reached after each epoch."""
    job = prepared(framework, run["form"], run["seed"])
    if run.get("fault"):
        FAULTS[run["fault"]](job)
    held = framework.hold(data.train)
    tested = framework.hold(data.test)
    images = altered(data.test, run["seed"])
    result: dict[str, list[float]] = {
        key: [] for key in ("accuracy", "loss", "blind_accuracy", "blind_loss")
    }
    for _ in range(epochs):
        loss = train.epoch(job, held, lambda *_: None)["loss"]
        blind = score(framework, job, images, data.test.labels)
        values = (train.accuracy(job, tested), loss, *blind)
        for key, value in zip(result, values, strict=True):
            result[key].append(round(value, 4))
    return result


def main() -> None:
    """Read what to do from standard input."""
    asked = json.load(sys.stdin)
    framework = frameworks.load(asked["framework"], "cpu", asked["threads"])
    framework.state_precision("float32")
    for run in asked["runs"]:
        data = dataset.load(Path(asked["folders"][run["data"]]))
        full = run["kind"] == "full"
        result = trained(framework, data if full else data.quick(), run, 1 if full else 3)
        print(json.dumps({**run, "version": framework.version, **result}), flush=True)


if __name__ == "__main__":
    main()
