"""The commands of a guide in docs/guides, and what it says that they print.

A guide that is tested ends with a comment, and so does each of its parts that has a project of its
own:

    <!-- tested
    project: script
    writes: envbuilder.yaml
    needs: torch
    -->

Its `sh` blocks then run one after the other in a copy of that project of `examples/` (`without`
some of its files, and with those that the reader `writes`: the `yaml`, `python` and `cpp` blocks
whose first line is `# NAME` or `// NAME`), two folders below a checkout with `tests/data/hosts`.
A `text` block is what the commands before it print, on stdout or stderr; … stands for anything, and
lines may be wrapped elsewhere. "exit code N" at its end is not printed.

The one command below the line `<!-- serves -->` goes on until Ctrl-C, which is pressed once the
link that it prints was opened.

`channel: ffmpeg=6.1.2` puts a folder in the place of conda-forge. It offers a Python, and stand-ins
for the packages listed: a program that prints its name.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tests.support import conda_channel, conda_packages, examples
from tests.support.notebooks import ENDED

FOLDER = Path(__file__).resolve().parents[2] / "docs/guides"
_COMMENT = re.compile(r"^<!-- tested\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^(<!-- serves -->\n)?```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WRITTEN = re.compile(
    r"^```(?:yaml|python|cpp)\n(?:#|//) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"\s*exit code (\d+)\s*\Z")
_LONGEST = 600


class Step(Struct):
    """Commands, what they print and how they end."""

    commands: str
    printed: str = ""
    code: int = 0
    serves: bool = False


class Guide(Struct, frozen=True):
    """A guide that is tested, or a part of it."""

    name: str
    """The page's, and the number of the part if there are several."""
    project: str
    without: tuple[str, ...]
    written: dict[str, str]
    """The files that the reader writes, by name."""
    channel: tuple[str, ...]
    """Packages of the conda channel, as `NAME=VERSION`."""
    needs: str
    steps: tuple[Step, ...]


def read(path: Path) -> tuple[Guide, ...]:
    """The tested parts of a guide: one, unless they have projects of their own."""
    *pieces, _ = _COMMENT.split(path.read_text())
    parts = list(zip(pieces[::2], pieces[1::2], strict=True))
    if len(parts) == 1:
        return (_part(path.stem, *parts[0]),)
    return tuple(_part(f"{path.stem} {number}", *part) for number, part in enumerate(parts, 1))


def _part(name: str, text: str, comment: str) -> Guide:
    keys = dict(line.split(": ", 1) for line in comment.splitlines())
    steps: list[Step] = []
    for serves, kind, block in _BLOCK.findall(text):
        if kind == "sh":
            steps.append(Step(commands=block, serves=bool(serves)))
        else:
            code = _CODE.search(block)
            steps[-1].code = int(code[1]) if code else 0
            steps[-1].printed = _CODE.sub("", block)
    blocks = dict(_WRITTEN.findall(text))
    return Guide(
        name=name,
        project=keys.pop("project"),
        without=tuple(keys.pop("without", "").split()),
        written={file: blocks[file] for file in keys.pop("writes", "").split()},
        channel=tuple(keys.pop("channel", "").split()),
        needs=keys.pop("needs", ""),
        steps=tuple(steps),
    )


def tested() -> tuple[Guide, ...]:
    """All guides that are tested."""
    return tuple(guide for path in sorted(FOLDER.glob("*.md")) for guide in read(path))


def lay(guide: Guide, folder: Path) -> None:
    """A guide's project, as its reader has it before the first command."""
    examples.copy(guide.project, folder)
    for name in guide.without:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, text in guide.written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def lay_channel(guide: Guide, python: conda_channel.Package, folder: Path) -> None:
    """Write the channel of a guide, with a Python that works.

    That Python needs the C library of this machine, newer than the one that profiles promise: its
    package states none.
    """
    for package in (replace(python, depends=()), conda_packages.PYTHON_AARCH64):
        conda_channel.write(package, folder)
    for name, version in (item.split("=") for item in guide.channel):
        program = conda_channel.Entry(f"#!/bin/sh\necho {name}\n".encode(), 0o755)
        package = conda_channel.Package(
            name=name,
            version=version,
            subdir="noarch",
            noarch="generic",
            files={f"bin/{name}": program},
        )
        conda_channel.write(package, folder)
    conda_channel.index(folder)


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """A reader's variables: a home of their own, `envbuilder` on PATH, no engine and no display."""
    programs = home / "bin"
    programs.mkdir(parents=True)
    program = programs / "envbuilder"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m envbuilder "$@"\n')
    program.chmod(0o755)
    for name in ("pip", "uv"):  # the package index of this machine
        settings = Path.home() / ".config" / name
        if settings.is_dir():
            (home / ".config").mkdir(exist_ok=True)
            (home / ".config" / name).symlink_to(settings)
    left_out = ("ENVBUILDER_", "DISPLAY", "WAYLAND_DISPLAY")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(left_out)},
        **variables,
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_HOST": "unix:///nonexistent",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",  # threads that wait for each other take minutes on a busy machine
    }


def run(step: Step, folder: Path, variables: Mapping[str, str]) -> None:
    """Run a step; fail unless it prints what the guide says, and ends so."""
    code, printed = (
        _served(step, folder, variables) if step.serves else _ran(step, folder, variables)
    )
    assert code == step.code, f"{step.commands}ends with {code}\n\n{printed}"
    missing = first_missing(step.printed, printed)
    assert not missing, f"{step.commands}does not print: {missing}\n\n{printed}"


def _ran(step: Step, folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-eu", "-c", step.commands],
        cwd=folder, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=_LONGEST,
    )  # fmt: skip
    return done.returncode, done.stdout


def _served(step: Step, folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a step until it prints a link; open that, and press Ctrl-C as a terminal does."""
    printed = ""
    opened = False
    with subprocess.Popen(
        ["sh", "-eu", "-c", f"exec {step.commands}"],  # else the shell's own end is seen
        cwd=folder, env=dict(variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as server:  # fmt: skip
        limit = threading.Timer(_LONGEST, os.killpg, (server.pid, signal.SIGKILL))
        limit.start()
        try:
            for line in server.stdout:
                printed += line
                if line.startswith("http://") and not opened:
                    opened = _opens(line.strip())
                    os.killpg(server.pid, signal.SIGINT)
            code = server.wait()
        finally:
            limit.cancel()
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
    assert opened, f"{step.commands}prints no link that opens\n\n{printed}"
    return 0 if code in ENDED else code, printed


def _opens(link: str) -> bool:
    """Whether a link of this machine leads to a page."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(link, timeout=60) as page:
        return page.headers.get_content_type() == "text/html"


def first_missing(shown: str, printed: str) -> str:
    """The first part of a `text` block that was not printed after the parts before it."""
    rest = " ".join(printed.split())
    for part in shown.split("…"):
        words = " ".join(part.split())
        _, found, rest = rest.partition(words) if words else ("", "-", rest)
        if not found:
            return words
    return ""
