"""Recorded and constructed hosts: `tests/data/hosts/NAME.yaml` is planted as a tree of files.

`NAME.json` beside it is what detection makes of it. Run this file to write those again, and read
the difference: it is the review.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

from envbuilder import host
from envbuilder.profiles import Expects, Profile, Python, Requires, Tools

FOLDER = Path(__file__).parents[1] / "data" / "hosts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    below = load(data["extends"]) if "extends" in data else {}
    for key in ("files", "links", "nodes"):
        data[key] = {**below.get(key, {}), **data.get(key, {})}
    for path in data.get("without", ()):
        for key in ("files", "links", "nodes"):
            data[key] = {p: v for p, v in data[key].items() if not p.startswith(path)}
    return data


def plant(root: Path, data: dict[str, Any]) -> Path:
    for path, text in data["files"].items():
        _at(root, path).write_text(text if isinstance(text, str) else json.dumps(text))
    for path, target in data["links"].items():
        _at(root, path).symlink_to(target)
    for path, readable in data["nodes"].items():
        _at(root, path).touch()
        (root / path).chmod(0o644 if readable else 0)
    return root


def _at(root: Path, path: str) -> Path:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    return root / path


def probe(root: Path, name: str) -> host.Host:
    return host.probe(plant(root, load(name)))


def profile(kind: str, **changes: Any) -> Profile:
    """A profile as the shipped ones are, without what selection does not read."""
    accelerator, platforms, backends, requires, extension = _PROFILES[kind]
    values = {
        "name": kind,
        "description": kind,
        "accelerator": accelerator,
        "python": Python(default="3.11", supported=("3.11",)),
        "platforms": platforms,
        "backends": backends,
        "tools": Tools(uv="0.13.8"),
        "requirements": ("torch==2.13.0",),
        "expects": Expects(device=accelerator, torch="2.13.0", extension=extension),
        "requires": requires,
        **changes,
    }
    return Profile(**values)


_BOTH = ("linux/amd64", "linux/arm64")
_AMD64 = ("linux/amd64",)
_ALL = ("docker", "venv", "conda")
_ZEN4 = Requires(cpu_flags=("avx512f", "avx512vl", "avx512_vnni", "avx512_bf16"))
_CUDA_13 = Requires(
    nvidia_driver="580",
    sm=("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"),
    sm_arm64=("8.0", "9.0", "10.0", "11.0", "12.0"),
    sm_ptx=True,
)
_CUDA_12 = Requires(nvidia_driver="525", sm=("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"))
_PROFILES: dict[str, Any] = {
    "cpu": ("cpu", _BOTH, _ALL, Requires(), ""),
    "zendnn": ("cpu", _AMD64, _ALL, _ZEN4, "zentorch"),
    "cuda": ("cuda", _BOTH, _ALL, _CUDA_13, ""),
    "cuda-legacy": ("cuda", _AMD64, _ALL, _CUDA_12, ""),
    "xpu": ("xpu", _AMD64, ("docker", "venv"), Requires(intel_gpu=True), ""),
    "mps": ("mps", ("macos/arm64",), ("venv",), Requires(macos="14.0"), ""),
}
PROFILES = tuple(profile(name) for name in _PROFILES)


def main() -> None:
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found = probe(Path(folder), name)
        text = msgspec.json.format(msgspec.json.encode(found)).decode()
        (FOLDER / f"{name}.json").write_text(text + "\n")
        sys.stdout.write(f"{name}.json\n")


if __name__ == "__main__":
    main()
