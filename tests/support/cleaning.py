"""What `clean` finds: folders and images that are ours, or look like it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envbuilder.builds import records
from envbuilder.builds.backends.integrity import MARKER
from envbuilder.containers.engine.interface import Image
from envbuilder.core import files, settings
from envbuilder.core.errors import BuildError, ToolError
from tests.support.engines import FakeEngine

Report = Callable[..., Any]
"""What the fixture `report` is."""
OURS = {"envbuilder/cpu:latest": "cpu", "envbuilder/xpu:latest": "xpu"}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def image(profile: str, *tags: str, content: str = "") -> Image:
    """An image with our labels: the recorded one of the profile unless its content differs."""
    labels = {"io.envbuilder.fingerprint": sha(profile), "io.envbuilder.profile": profile}
    return Image(id=f"sha256:{sha(content or profile)}", tags=tags, labels=labels)


class Labelled(FakeEngine):
    """Labelled images, two of them ours; `answers` False: there is no engine."""

    def __init__(self) -> None:
        super().__init__()
        self.images = {tag: image(profile, tag) for tag, profile in OURS.items()}
        self.answers = True
        self.configured = True
        self.removed: list[str] = []
        self.stuck: set[str] = set()
        self.sizes: dict[str, int] = {}

    def shares(self) -> dict[str, int]:
        return self.sizes

    def add(self, made: Image) -> Image:
        self.images[made.id] = made
        return made

    def connect(self) -> Labelled:
        if not self.answers:
            raise ToolError("no container engine answers: connection refused")
        return self

    def remove(self, ref: str, only: str = "") -> None:
        assert any(i.id == only and ref in {*i.tags, i.id} for i in self.images.values())
        if ref in self.stuck:
            raise BuildError(f"{ref}: cannot be removed: in use", "Stop the containers")
        self.removed.append(ref)


def folder(path: Path, marker: Any = None) -> Path:
    """A folder with a file; `marker` is what its marker says (text as it is)."""
    (path / "bin").mkdir(parents=True)
    (path / "bin/python").write_text("x")
    if marker is not None:
        text = marker if isinstance(marker, str) else json.dumps(marker)
        (path / MARKER).write_text(text)
    return path


def working(path: Path) -> Path:
    """A working folder, as a killed build leaves it."""
    folder(path)
    files.mark_folder(path)
    return path


def store(own: settings.Settings, name: str, *names: str) -> Path:
    """A folder of the cache that envbuilder made, with these files."""
    above = files.ensure_folder(own.cache_dir / name)
    for file in names:
        (above / file).parent.mkdir(parents=True, exist_ok=True)
        (above / file).write_text("x")
    return above


def ours(own: settings.Settings, profile: str = "cpu") -> Path:
    marker = {"made_by": "envbuilder", "profile": profile}
    return folder(own.envs_dir / f"{profile}-py3.11-0123456789ab", marker)


def record(own: settings.Settings, profile: str) -> Path:
    fingerprint = sha(profile)
    path = own.records_dir / fingerprint
    made = records.ImageRecord(
        profile=profile,
        fingerprint=fingerprint,
        ref=f"envbuilder/{profile}:py3.11-{fingerprint[:12]}",
        digest=f"sha256:{fingerprint}",
        ids=(f"sha256:{fingerprint}",),
        builder="buildkit",
        made_by={},
    )
    records.keep(path, made)
    return path


def leftover(own: settings.Settings) -> Path:
    return working(own.envs_dir / ".cpu-py3.11-0123456789ab.partial")


DIGEST = f"{7:064}"

DOWNLOADED = {
    "store": (f"sha256/00/{DIGEST}", f"partial/{DIGEST}", f"partial/{DIGEST}.lock"),
    "bases": (
        f"{DIGEST}-linux-amd64/oci-layout",
        f"{DIGEST}.lock",
        f".debian-{DIGEST}.ab/x",
        f"{DIGEST}.signature.json",
    ),
    "layers": ("oci-layout", "index.json", f"blobs/sha256/{DIGEST}", f"made/{DIGEST}.json"),
    "uploads": (f"{7:032}.lock", f"{7:032}.repository"),
    "datasets": ("mnist/.lock", "mnist/t10k-labels-idx1-ubyte", "mnist/.part-abc/x"),
    "uv-resolve": ("CACHEDIR.TAG", "simple-v1/x/y.msgpack"),
    "logs": (
        "cpu-0123456789ab.log",
        "20260101T000000Z-cpu-venv-payload.log",
        "20260101T000000Z-cpu-venv-devices.log",
    ),
}


def named(profile: str) -> str:
    return f"envbuilder/{profile}:py3.11-{sha(profile)[:12]}"


def sha_of(profile: str) -> str:
    return f"sha256:{sha(profile)}"
