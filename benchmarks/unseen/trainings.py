"""Watch the trainings of `trainings.csv`, one at a time, and write what was found to `watched.csv`.

`--mirrors` holds Git repositories as `OWNER+NAME/repo`; `--torch` and `--jax` are Pythons with the
packages. Nothing is downloaded: each edit of `edits`, "old -> new", is made once in the script.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from envbuilder.commands import watch  # noqa: E402
from envbuilder.watch import judge, model  # noqa: E402

STANDINS = HERE / "standins"
LIMIT = 300
"""Seconds for one training, on a busy machine."""


def laid(row: dict[str, str], mirrors: Path, folder: Path, python: str) -> Path:
    """Write the sources of a row's repository with its edits; return the script."""
    git = ("git", "-C", str(mirrors / row["repository"].replace("/", "+") / "repo"))
    names = subprocess.check_output(
        [*git, "ls-tree", "-r", "--name-only", row["commit"]], text=True
    )
    own = row["repository"].partition("/")[2] + "/"  # the package itself is the released one
    sources = [n for n in names.splitlines() if n.endswith(".py")]
    if not row["script"].startswith(own):
        sources = [n for n in sources if not n.startswith(own)]
    archive = subprocess.check_output([*git, "archive", row["commit"], *sources])
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    script = folder / row["script"]
    text = script.read_text()
    for edit in (*row["edits"].splitlines(), *row["fault"].splitlines()):
        old, new = edit.replace("\\n", "\n").split(" -> ")
        if old not in text:
            raise ValueError(f"{row['name']}: {old!r} is not in the script")
        text = text.replace(old, new)
    script.write_text(text)
    prepared = [python, STANDINS / "standins.py", *(["model"] if "LoRA" in row["kind"] else [])]
    subprocess.run(prepared, cwd=script.parent, check=True, capture_output=True)
    return script


def run(
    row: dict[str, str], folder: Path, script: Path, python: str, watching: bool
) -> model.Watched:
    """Run a training, watched or not; return its report."""
    argv = [python, script.name, *row["arguments"].split()]
    if row["kind"] == "two ranks":
        argv[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    running = watch.Running(in_container=False)
    (folder / "hook").mkdir()
    with watch.Session.laid(folder / "hook") as session, running.counted():
        paths = [STANDINS, folder]
        paths += [STANDINS / "vision"] if "torchvision" in row["data"] else []
        paths += [session.hook] if watching else []
        done = subprocess.run(
            argv,
            cwd=script.parent,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "OMP_NUM_THREADS": "1",
                "MPLBACKEND": "agg",
                "PYTHONPATH": os.pathsep.join(map(str, reversed(paths))),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        processes, _ = session.parts()
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr)
    return judge.judged(
        model.Watched(
            envbuilder="0",
            time="20260101T000000Z",
            host="here",
            command=tuple(argv),
            profile="cpu",
            backend="venv",
            fingerprint="0" * 64,
            lock="0" * 64,
            requested="cpu",
            exit_code=done.returncode,
            seconds=running.seconds,
            machine=running.machine,
            processes=processes,
        )
    )


def main() -> None:
    """Watch all trainings, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mirrors", type=Path, required=True)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--jax", required=True)
    parser.add_argument("--alone", action="store_true", help="do not watch: do the scripts run?")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=HERE, text=True)
    with (HERE / "trainings.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if not asked.names or row["name"] in asked.names
        ]
    for row in rows:
        python = asked.jax if row["kind"] in {"JAX", "Keras"} else asked.torch
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                script = laid(row, asked.mirrors, folder, python)
                report = run(row, folder, script, python, not asked.alone)
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                print(row["name"], error, file=sys.stderr)
                continue
        found = [each.kind for each in report.findings if each.kind != "load"]
        steps = max((process.steps or 0 for process in report.processes), default=0)
        is_right = row["expected"] in found if row["expected"] else not found
        shown = [row["name"], report.exit_code, round(report.seconds), steps]
        shown += [" ".join(found), "right" if is_right else "wrong", commit.strip()]
        print(*shown, sep=",", flush=True)
        for each in report.findings:
            print(" ", each.says, file=sys.stderr)
        if not asked.alone:
            with (HERE / "watched.csv").open("a") as file:
                csv.writer(file, lineterminator="\n").writerow(shown)


if __name__ == "__main__":
    main()
