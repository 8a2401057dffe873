"""Whole epochs of the same training in ways that prove something else, beside the eager one.

    python benchmarks/ways.py [ROUNDS] --python EXE --data DIR --device cuda [--json FILE]

`eager` is the way in which `verify` trains: float32 without TF32, one kernel after the other.
`captured` replays the whole step as a CUDA graph (`measurements.captured` of a report).
`compiled` is `torch.compile` with its defaults. `bfloat16` is autocast, `tf32` lowers float32
products: they change the arithmetic, so their accuracy is given, and neither proves what `eager`
proves. Two epochs of each in one process, the first with everything that happens once; the way that
begins changes every round. Ratios are those of a round, to `eager`; medians. A way that fails says
why.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("eager", "captured", "compiled", "bfloat16", "tf32")
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from envbuilder.payload.machine import device
from envbuilder.payload.machine.accelerators import device_of
from envbuilder.payload.numerics import precision
from envbuilder.payload import captured
from envbuilder.payload.training import dataset, eager, model, train

way, device_name, folder = sys.argv[1:]
data = dataset.load(Path(folder))
precision.prepare(torch, "float32")
held = eager.tensors(torch, data.train, device_name)
test = eager.tensors(torch, data.test, device_name)

def trained(prepare):
    job = eager.prepare(torch, device_name, model.fastest(device_name), 1)
    prepare(job)
    epochs = [train.epoch(job, held, lambda *_: None)["seconds"] for _ in range(2)]
    return {"first": epochs[0], "second": epochs[1], "accuracy": train.accuracy(job, test)}

def bfloat16(job):
    autocast = torch.autocast(device_of(device_name), dtype=torch.bfloat16)
    job.model.forward = autocast(job.model.forward)

def compiled(job):
    job.model = torch.compile(job.model, dynamic=False)

def tf32(job):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

if way == "captured":
    if not captured.offered(torch, device_name):
        raise SystemExit(f"torch captures no graphs on {device_name}")
    measured = captured.measure(torch, device_name, held, 1)
    result = {"first": measured["first_seconds"], "second": measured["seconds"], **measured}
else:
    result = trained({"eager": lambda job: None, "bfloat16": bfloat16, "compiled": compiled, "tf32": tf32}[way])
print(json.dumps(result))
"""  # noqa: E501


def run(way: str, given: argparse.Namespace) -> dict[str, Any]:
    """Two epochs in one way: their seconds, or the reason why there are none."""
    words = [str(given.python), "-c", PROGRAM, way, given.device, str(given.data)]
    # What makes cuBLAS repeat its sums; it costs nothing here.
    variables = {"PYTHONPATH": str(ROOT), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        done = subprocess.run(
            words, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
            timeout=given.limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {given.limit:g} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines() or ["no message"]
        return {"error": last[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def summed_up(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return per way the median seconds of both epochs and the median ratio of the second."""
    result = {}
    for way in WAYS:
        done = [each for each in rounds if "error" not in each.get(way, {"error": ""})]
        if not done:
            continue
        ratios = [
            each[way]["second"] / each["eager"]["second"]
            for each in done
            if "error" not in each.get("eager", {"error": ""})
        ]
        result[way] = {
            "first": statistics.median(each[way]["first"] for each in done),
            "second": statistics.median(each[way]["second"] for each in done),
            "ratio": statistics.median(ratios) if ratios else None,
            "accuracy": [each[way].get("accuracy") for each in done],
            "counts": all(each[way].get("counts", True) for each in done),
        }
    return result


def main(words: list[str]) -> None:
    """Measure and print a table; `--json` is written after each way."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("rounds", nargs="?", type=int, default=3)
    options.add_argument("--python", type=Path, default=Path(sys.executable))
    options.add_argument("--data", type=Path, required=True, help="folder with MNIST's IDX files")
    options.add_argument("--device", default="cuda")
    options.add_argument("--json", type=Path, help="also write all of it here")
    options.add_argument("--limit", type=float, default=150.0, help="seconds for one way")
    given = options.parse_args(words)
    rounds: list[dict[str, Any]] = []
    for number in range(given.rounds):
        rounds.append({})
        for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
            rounds[-1][way] = run(way, given)
            if given.json:
                known = {"schema": 1, "device": given.device, "ways": summed_up(rounds)}
                text = json.dumps({**known, "rounds": rounds}, indent=1)
                given.json.write_text(text + "\n")
    for way, each in summed_up(rounds).items():
        ratio = "" if each["ratio"] is None else f"{each['ratio']:.2f}×"
        doubt = "" if each["counts"] else " (its losses differ)"
        print(f"| {way} | {each['first']:.2f} s | {each['second']:.2f} s | {ratio}{doubt} |")
    for way in WAYS:
        reasons = {each[way]["error"] for each in rounds if "error" in each[way]}
        for reason in reasons:
            print(f"{way}: {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
