"""A user's machine whose every setting holds a canary, and the look for canaries that got out."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

import uv

from envbuilder.packages import upstream
from tests.support import index_server, make_wheels
from tests.support.projects import lay_profile

LOGIN = "me:c4nary/of%the@index"
"""What the index wants. Its password needs escapes in a URL."""
ESCAPED = f"me:{quote('c4nary/of%the@index', safe='')}"
WRONG = f"me:{quote('c4nary/wrong@index', safe='')}"
CANARY = "c4nary"
PROFILE = {
    "description": "One wheel of the default index, one of another",
    "accelerator": "cpu",
    "backends": ["docker", "venv", "conda"],
    "platforms": ["linux/amd64"],
    "python": {"default": "3.11", "supported": ["3.11"]},
    "tools": {"uv": "0.13.8"},
    "requirements": ["top", "side"],
    "indexes": {"side": "pytorch-cpu"},
    "base": {"3.11": {"ref": "python:3.11-slim"}},
    "expects": {"device": "cpu", "version": "2.13.0"},
    "conda": {"packages": [], "channels": ["conda-forge", "lab"]},
}


def encoded(text: str) -> set[bytes]:
    """How base64 writes a text, wherever in other text it begins."""
    forms = set()
    for offset in range(3):
        whole = base64.b64encode(b"\0" * offset + text.encode())
        # The first and the last characters depend on what is around.
        forms.add(whole[(8 * offset + 5) // 6 : 8 * (offset + len(text)) // 6])
    return forms


LEAKS = {CANARY.encode(), *encoded(CANARY)}


def leaked(content: bytes) -> bool:
    return any(form in content for form in LEAKS)


class Arguments:
    """The arguments that ever held a canary, of all processes that are started on this machine."""

    def __init__(self) -> None:
        self.guilty: set[bytes] = set()
        # To read them all again every few milliseconds would take half of a core.
        self._older = set(Path("/proc").glob("[0-9]*"))
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            for process in set(Path("/proc").glob("[0-9]*")) - self._older:
                try:
                    content = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                # A command's own arguments are the test's, or the user's.
                if leaked(content) and b"\0-m\0envbuilder\0" not in content:
                    self.guilty.add(content)


def make_uv(folder: Path) -> Path:
    """The installed uv as the wheel that builds install with."""
    path = make_wheels.write(folder, "uv", {}, version="0.13.8")
    with zipfile.ZipFile(path, "a") as archive:
        archive.write(uv.find_uv_bin(), "uv-0.13.8.data/scripts/uv")
    return path


class Machine:
    """A user's machine whose every setting holds a canary, and what commands leave there."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.index = index
        self.project = folder / "project"
        for path in (self.home / ".docker", self.home / ".config/uv", self.project):
            path.mkdir(parents=True)
        lay_profile(self.project, "lab", json.dumps(PROFILE))
        host = index.partition("://")[2].partition("/")[0]
        (self.home / ".netrc").write_text(f"machine other.example login me password {CANARY}\n")
        auth = base64.b64encode(f"me:{CANARY}".encode()).decode()
        auths = {"registry.example": {"auth": auth}, "127.0.0.1:9": {"auth": auth}}
        (self.home / ".docker/config.json").write_text(json.dumps({"auths": auths}))
        (self.home / "pip.conf").write_text(f"[global]\nindex-url = {self.url(index)}\n")
        self.own = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "ENVB"))},
            "HOME": str(self.home),
            "DOCKER_CONFIG": str(self.home / ".docker"),
            "PIP_CONFIG_FILE": str(self.home / "pip.conf"),
            "XDG_CACHE_HOME": str(folder / "xdg"),
            "TMPDIR": str(folder / "tmp"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "ENVBUILDER_CACHE_DIR": str(folder / "cache"),
            "ENVBUILDER_DATA_DIR": str(folder / "data"),
            "ENVBUILDER_CONFIG_DIR": str(folder / "config"),
            "ENVBUILDER_INDEX_PYTORCH_CPU": self.url(index),
            "ENVBUILDER_INDEX_LAB": f"http://{host}/t/{CANARY}/lab",
            "https_proxy": f"http://{ESCAPED}@127.0.0.1:9",
            "DEPLOY_PASSWORD": CANARY,
            "AWS_SECRET_ACCESS_KEY": CANARY,
        }
        (folder / "tmp").mkdir()

    @staticmethod
    def url(index: str, login: str = ESCAPED) -> str:
        return index.replace("://", f"://{login}@")

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run a command with --verbose and --debug; it may fail, but it may not leak."""
        options = ("--verbose", "--debug")
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", arguments[0], *options, *arguments[1:]],
            env={**self.own, **changes},
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        for text in (done.stdout, done.stderr):
            assert not leaked(text.encode()), (arguments, text)
        return done

    def require_clean(self) -> None:
        """Raise if any file that a command left holds a canary."""
        guilty = [
            path
            for path in self.folder.rglob("*")
            if path.is_file() and not path.is_relative_to(self.home) and leaked(path.read_bytes())
        ]
        assert not guilty


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine and its index; raise if a command leaves a canary in arguments or files."""
    offered = folder / "offered"
    offered.mkdir()
    paths = [make_wheels.write(offered, n, {f"{n}.py": b""}) for n in ("top", "side")]
    paths.append(make_uv(offered))
    with index_server.serve([upstream.read_wheel(p) for p in paths], LOGIN) as index:
        made = Machine(folder / "machine", index)
        with Arguments() as arguments:
            yield made
        assert not arguments.guilty
        made.require_clean()
