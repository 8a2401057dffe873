"""A report with all that a page shows, and what a page consists of."""

from __future__ import annotations

import html.parser
from typing import Any

from envbuilder.verify import show
from envbuilder.verify.report import model

VOID = {"meta", "link", "br", "img", "input", "hr"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Seen(html.parser.HTMLParser):
    """What a page consists of: its tags must nest, start no script, and load nothing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert not [name for name, _ in attrs if name.startswith("on")], tag
        links = [value or "#" for name, value in attrs if name in {"href", "src"}]
        assert all(link.startswith(("#", "data:")) for link in links), attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"style", "script"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\N{NO-BREAK SPACE}", " ").split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(data: Any) -> Seen:
    """The page of a report."""
    return Seen(show.render(data))


def epoch(seconds: float, accuracy: float = 0.984) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "data_seconds": seconds / 10,
        "compute_seconds": seconds * 0.9,
        "samples_per_second": 60000 / seconds,
        "loss": 0.2,
        "accuracy": accuracy,
    }


def whole() -> dict[str, Any]:
    """A report with every key that a page knows."""
    return {
        "schema": 2,
        "profile": "cuda",
        "backend": "venv",
        "artifact": {"kind": "venv", "ref": "/somewhere/cuda-py3.12", "digest": None},
        "fingerprint": "52a7ad1d9ed3",
        "envbuilder": "0.1.0",
        "time": "20261120T095103Z",
        "host": {
            "os": "linux",
            "os_version": "Debian GNU/Linux 12 (bookworm)",
            "machine": "x86_64",
            "cpu": {"model_name": "A CPU", "physical": 2, "flags": ["avx2", "fma"], "quota": None},
            "memory": {"total_bytes": 2**34, "limit_bytes": None, "shm_bytes": 2**26},
        },
        "device": {
            "requested": "cuda",
            "used": "cuda",
            "name": "A GPU",
            "memory_bytes": 2**35,
            "driver": "580.1",
        },
        "framework": {
            "name": "torch",
            "version": "2.14.1+cu130",
            "runtime": "13.0",
            "extensions": {"ipex": None},
        },
        "precision": {"dtype": "float32", "matmul": "highest", "autocast": False}
        | {"cuda_tf32": False, "environment": {}},
        "threads": {"framework": 2, "allocator": "/lib/libtcmalloc.so.4"},
        "dataset": {"name": "MNIST", "train": 60000, "test": 10000, "subset": False},
        "quick": False,
        "origins": {"as_found": False},
        "checks": [
            {"name": name, "status": "passed", "seconds": 0.25, "detail": f"{name} is right"}
            for name in ("import", "accuracy", "blind test", "arithmetic", "step")
        ],
        "training": {
            "epochs": [epoch(2.0), epoch(1.0, 0.987), epoch(1.5, 0.989)],
            "cold_start_seconds": 6.5,
            "min_accuracy": 0.975,
            "optimizer": "Adadelta",
            "batch": 64,
            "losses": [[n * 14 + 1, 2.3 / (1 + n)] for n in range(200)],
        },
        "baseline": {"device": "cpu", **epoch(20.0)},
        "speedup": 10.0,
        "measurements": {
            "matmul": [
                {"dtype": "float32", "size": 4096, "flops_per_second": 5e13},
                {"dtype": "bfloat16", "size": 4096, "flops_per_second": 4e14},
            ],
            "bandwidth": {"device": 2e12, "host_to_device": 1.2e10, "device_to_device": None},
            "launch_seconds": 4.1e-6,
            "inference": {"batch": 1000, "samples_per_second": 250000.0},
            "peak_memory_bytes": 2**30,
            "epoch_flops": 4.3e12,
            "matmul_share": 0.25,
        },
        "kernels": {"training": ["aten::mm"]},
        "compile": [
            {
                "backend": "inductor",
                "gradients": {"passed": False},
                "inference": {"counts": True, "speedup_over_eager": 1.1},
                "training": {"counts": False, "speedup_over_eager": 1.3},
            }
        ],
        "status": "passed",
        "reasons": [],
        "warnings": [],
    }


def changed(**values_: Any) -> dict[str, Any]:
    return {**whole(), **values_}


def checked(**values_: Any) -> model.Report:
    return model.check({**whole(), "status": "failed", **values_})


def failing(name: str, detail: str = "it is broken", **more: Any) -> dict[str, Any]:
    check = {"name": name, "status": "failed", "seconds": 1.0, "detail": detail}
    reasons = [f"{name}: {detail}"]
    return {**whole(), "checks": [check], "status": "failed", "reasons": reasons, **more}
