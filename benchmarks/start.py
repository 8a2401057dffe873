"""Thirty repositories that were not written for envbuilder: from their clone to their start.

    python benchmarks/start.py CLONES [REPOSITORY ...]

CLONES holds a clone of each repository, as `owner+name`, at the commit of repositories.csv. Does
`init --build` in a copy, then the start command of starts.csv (README's, else what `init` names),
and writes what became of it there. Where no environment comes of that, since its own PyTorch cannot
be had, PyTorch 2.13.0 and Python 3.11 are written by hand, without companions that no code imports
and without `as_of`. A program starts if it ends well, still runs after `_SECONDS`, or complains
itself of what it lacks: arguments, data, weights, a key, the network, a device.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent / "unseen"
_RESULTS = _FOLDER / "starts.csv"
_ENVBUILDER = (sys.executable, "-m", "envbuilder")
_SECONDS = 90
_LONGEST = 300
_BY_HAND = 'python: "3.11"\nframework_version: "2.13.0"\n'
_COMPANIONS = ("torchvision", "torchaudio", "torchtext")
_IMPORTS = """\
from envbuilder.builds import import_check, pipeline
from envbuilder.builds.request import Request
from envbuilder.commands.options import load_settings
from envbuilder.core import console
import click
with click.Context(click.Command("build")):
    request = Request(profile="cpu")
    planned = pipeline.prepare(request, load_settings(), console.progress(), running=True)
    print(import_check.tried(pipeline.finish(planned)).detail)
"""
_LACKS = re.compile(
    r"usage:|FileNotFoundError|No such file|does not exist|not found|Missing mandatory|required"
    r"|ConnectionError|ConnectError|Name or service|MaxRetryError|Can't load|api[_ ]key|No API key"
    r"|NVIDIA|CUDA|GPU|HIP"
)
"""A program's own complaint of arguments, data, the network or a device."""
_SAID = re.compile(r"error: |  not for |\S+: cannot be locked\b|[\w.]*(Error|Exception)\b")
"""The beginning of what envbuilder or a program says of its failure."""
_BROKEN = re.compile(
    r"ImportError|ModuleNotFoundError|cannot open shared object|NameError|command not found"
)


def run(folder: Path, *argv: str, seconds: int = 900) -> tuple[int | None, str, str]:
    """Run a program; return its exit code (None: it still ran), and what it printed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
            env=os.environ | {"WANDB_MODE": "offline", "HYDRA_FULL_ERROR": "1"},
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 15)
            process.wait()
            code = None
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read())
    return code, texts[0], texts[1]


def last(text: str) -> str:
    """Return the last error and what follows it, else the last line, without local paths."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    errors = [n for n, line in enumerate(lines) if _SAID.match(line)]
    return plain(" ".join(lines[errors[-1] if errors else -1 :]))[:_LONGEST]


def plain(text: str) -> str:
    """Return a text without the folders of this machine."""
    return re.sub(r"/\S*/", "", text)


def by_hand(folder: Path) -> str:
    """Write PyTorch 2.13.0 into the definition, lock and build; return `init`'s line of imports."""
    path = folder / "envbuilder.yaml"
    kept = [
        line
        for line in path.read_text().splitlines(keepends=True)
        if not re.match(r"python:|framework_version:|as_of:", line)
    ]
    text = "".join(kept) + _BY_HAND
    source = "".join(p.read_text(errors="replace") for p in folder.rglob("*.py") if p.is_file())
    unused = [
        n for n in _COMPANIONS if not re.search(rf"^\s*(import|from) {n}\b", source, re.MULTILINE)
    ]
    exclude = re.search(r"^exclude: \[(.*)\]", text, re.MULTILINE)
    if exclude:
        text = text.replace(exclude[0], f"exclude: [{', '.join([exclude[1], *unused])}]")
    elif "\nexclude:\n" in text:
        text = text.replace("\nexclude:\n", "\nexclude:\n" + "".join(f"  - {n}\n" for n in unused))
    else:
        text += f"exclude: [{', '.join(unused)}]\n"
    path.write_text(text)
    code, out, errors = run(folder, *_ENVBUILDER, "lock", "--profile", "cpu")
    if code:
        raise ValueError("lock: " + last(out + errors))
    code, out, errors = run(folder, sys.executable, "-c", _IMPORTS)
    if code:
        raise ValueError("build: " + last(errors))
    return out.strip().splitlines()[-1]


def tried(clone: Path, start: str) -> dict[str, str]:
    """Return what becomes of a repository, from its clone to its start."""
    with tempfile.TemporaryDirectory(dir=clone.parent.parent) as name:
        folder = Path(name) / clone.name
        shutil.copytree(clone, folder, symlinks=True)
        (folder / "envbuilder.yaml").unlink(missing_ok=True)
        shutil.rmtree(folder / "envbuilder.lock", ignore_errors=True)
        result = {"by_hand": "", "imports": "", "of": "", "failed": "", "result": ""}
        code, out, errors = run(folder, *_ENVBUILDER, "init", "--build", "--json")
        report = json.loads(out) if out.startswith("{") else {}
        if report.get("imports"):
            detail = report["imports"]["detail"]
        else:
            why = last(errors)
            result |= {"by_hand": "yes", "failed": why}
            try:
                detail = by_hand(folder)
            except (OSError, ValueError) as error:
                return result | {"failed": f"{why}; by hand: {error}", "result": "not built"}
        count, _, failed = detail.partition("; ")
        result["imports"], result["of"] = count.split(" of ")
        result["failed"] = plain(failed)[: 4 * _LONGEST]
        if not start:
            return result | {"result": "names no program"}
        command = (*_ENVBUILDER, "run", "--", "bash", "-c", start)
        code, out, errors = run(folder, *command, seconds=_SECONDS)
        why = last(out + errors)
        if code is None or not code:
            result["result"] = "starts"
        elif not _BROKEN.search(why) and _LACKS.search(why):
            result["result"] = f"starts: {why}"
        else:
            result["result"] = f"fails: {why}"
        return result


def rows() -> list[dict[str, str]]:
    """Return the results so far."""
    with _RESULTS.open(newline="") as file:
        return [*csv.DictReader(file)]


def main() -> None:
    """Try what is asked for, and write each result at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clones", type=Path)
    parser.add_argument("repositories", nargs="*")
    asked = parser.parse_args()
    for repository in asked.repositories or [row["repository"] for row in rows()]:
        clone = asked.clones.absolute() / repository.replace("/", "+")
        start = next(row["start"] for row in rows() if row["repository"] == repository)
        result = tried(clone, start)
        print(repository, result, flush=True)
        written = [row | result if row["repository"] == repository else row for row in rows()]
        with _RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*written[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(written)


if __name__ == "__main__":
    main()
