"""Profiles to resolve, and a uv that answers from a function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from envbuilder.core.process import Completed
from envbuilder.core.settings import Definition, Settings
from envbuilder.locks import resolve
from envbuilder.packages.python.uv import Offer
from envbuilder.profiles.lock import File, Lock
from envbuilder.profiles.profile import Profile, Python
from tests.support.shipped import shipped_profile
from tests.support.tools import tools

CPU = shipped_profile("cpu")

TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def profile(**changes: Any) -> Profile:
    plain = msgspec.structs.replace(
        CPU,
        platforms=("linux/amd64",),
        python=Python(default="3.11", supported=("3.11",)),
        system_packages=(),
        preload=(),
    )
    return msgspec.structs.replace(plain, **changes)


def offer(**changes: Any) -> Offer:
    fields: dict[str, Any] = {
        "distribution": "torch", "version": "2.13.0+cpu", "file": TORCH, "sha256": "a" * 64,
        "source": "pytorch-cpu", "provenance": "claim", "by": "a lock", "requires_dist": (),
    }  # fmt: skip
    return Offer(**{**fields, **changes})


def package(name: str, version: str, *urls: str, sha256: str | None = "b" * 64) -> str:
    hashes = f', hashes = {{ sha256 = "{sha256}" }}' if sha256 else ""
    wheels = ", ".join(f'{{ url = "{url}"{hashes} }}' for url in urls)
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{wheels}]\n'


UVS = tuple(f"https://i/{f.file}" for f in tools().values())


DEB = File(
    kind="deb", name="tool", version="1", file="pool/tool_1.deb", sha256="d" * 64, size=1,
    source="debian", provenance="read", by="x",
)  # fmt: skip


class FakeUv:
    """Answers `uv pip compile` from a function of its requirements; notes how it was called."""

    FILES = ("--excludes", "--overrides")

    def __init__(self, answer: Callable[[str, str], str | Completed] | None = None) -> None:
        self.answer = answer or (self.usual)
        self.calls: list[dict[str, Any]] = []

    @staticmethod
    def usual(requirements: str, url: str) -> str:
        if requirements.startswith("uv=="):
            return package("uv", "0.13.8", *UVS)
        root = url.removesuffix("simple")
        return package("torch", "2.13.0+cpu", f"{root}files/{TORCH.replace('+', '%2B')}") + package(
            "Jinja2", "3.1", "https://i/p/Jinja2-3.1-py3-none-any.whl"
        )

    def __call__(self, argv: Sequence[str], **options: Any) -> Completed:
        argv = list(argv)
        requirements = Path(argv[3]).read_text()
        output = Path(argv[argv.index("--output-file") + 1])
        constraints = Path(argv[argv.index("--constraints") + 1]).read_text()
        before = output.read_text() if output.exists() else ""
        pairs = dict(itertools.pairwise(argv))
        named = {key: Path(pairs[key]).read_text() for key in self.FILES if key in pairs}
        self.calls.append(
            {"argv": argv, "env": options["env"], "before": before, "constraints": constraints,
             "requirements": requirements, **named}
        )  # fmt: skip
        result = self.answer(requirements, options["env"]["UV_INDEX"].split()[0])
        if isinstance(result, Completed):
            return result
        if output.suffix == ".txt":
            output.write_text(
                "jinja2==3.1   # via -r requirements.in, torch\ntorch==2   # via -r x\n"
                "left==1.0   # via right\n"
            )
            return done(0)
        output.write_text('lock-version = "1.0"\n' + result)
        return done(0)


def done(code: int, stderr: str = "") -> Completed:
    return Completed(argv=("uv",), returncode=code, stdout="", stderr=stderr, seconds=0.0)


ENVIRON = {"PIP_CONFIG_FILE": "/dev/null"}


def made(found: Settings, uv: FakeUv, asked: Profile | None = None, **options: Any) -> Lock:
    options.setdefault("measure", lambda _: {})
    options.setdefault("contents", lambda wheels, _: {w.file.sha256: {} for w in wheels})
    return resolve.resolve(asked or profile(), found, run=uv, environ=ENVIRON, **options)


def in_project(found: Settings) -> Settings:
    """Settings in a project, whose locks are made otherwise than those of profiles."""
    return msgspec.structs.replace(found, definition=Definition())


JINJA = "https://i/p/Jinja2-3.1-py3-none-any.whl"

UV = "https://i/uv-0.13.8-py3-none-any.whl"


def answer(requirements: str, url: str) -> str:
    """As usual, but every file has its own hash."""
    if requirements.startswith("uv=="):
        return package("uv", "0.13.8", UV, sha256="c" * 64)
    return FakeUv.usual(requirements, url)
