"""Put what a machine with a GPU and no network lacks into one folder: wheels and MNIST.

    tools/on_gpu.sh pack [--python-version 3.12] [--folder .gpu]

The wheels are envbuilder's own dependencies for x86-64 Linux, without uv: nothing is built there.
They are for envbuilder's process alone; the interpreter that is verified does not see them.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from envbuilder.builds import mnist
from envbuilder.core import console
from envbuilder.core.settings import load as load_settings

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 64 * 2**20
"""What travels to such a machine: the checkout and this folder."""
_NOT_THERE = frozenset({"uv"})  # 25 MB, and it only resolves and installs
_PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
_OLD_PLATFORMS = ("manylinux2014", "manylinux2010", "manylinux1")


def requirements(project: str) -> list[str]:
    """Return what envbuilder needs at run time there, from the text of its pyproject.toml."""
    listed = tomllib.loads(project)["project"]["dependencies"]
    needed = [Requirement(text) for text in listed]
    return [f"{r.name}{r.specifier}" for r in needed if r.name not in _NOT_THERE]


def download(version: str, folder: Path) -> None:
    """Fetch the wheels of a Python version, in the versions that pip chooses."""
    tags = [f"manylinux_{version}_x86_64" for version in _PLATFORMS]
    tags += [f"{name}_x86_64" for name in _OLD_PLATFORMS]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--implementation",
            "cp",
            "--python-version",
            version,
            *(word for tag in tags for word in ("--platform", tag)),
            "--dest",
            str(folder),
            *requirements((ROOT / "pyproject.toml").read_text()),
        ],
        check=True,
    )


def digits(folder: Path) -> None:
    """Put MNIST's four files there, packed; their bytes were checked."""
    dataset = mnist.obtain(load_settings(), console.PlainProgress())
    if dataset.subset:
        raise SystemExit("error: MNIST cannot be fetched here")
    folder.mkdir(exist_ok=True)
    for path in sorted(dataset.folder.glob("*-ubyte")):
        with path.open("rb") as raw, gzip.open(folder / f"{path.name}.gz", "wb") as packed:
            shutil.copyfileobj(raw, packed)


def size(paths: list[Path]) -> int:
    """Bytes of these files."""
    return sum(path.lstat().st_size for path in paths if path.is_symlink() or path.is_file())


def main(arguments: list[str]) -> None:
    """Make the folder anew, and say how large all of it is."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python-version", default="3.12", help="of the machine  [3.12]")
    options.add_argument("--folder", type=Path, default=ROOT / ".gpu")
    given = options.parse_args(arguments)
    wheels = given.folder / "wheels"
    if wheels.exists():
        shutil.rmtree(wheels)
    wheels.mkdir(parents=True)
    download(given.python_version, wheels)
    digits(given.folder / "mnist")
    travels = (
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    listed = subprocess.run(travels, check=True, capture_output=True, text=True).stdout
    tree = size([ROOT / name for name in listed.split("\0") if name])
    packed = size(list(given.folder.rglob("*")))
    text = f"{given.folder}: {packed / 2**20:.1f} MiB, the checkout {tree / 2**20:.1f} MiB"
    if packed + tree > MOST_BYTES:
        raise SystemExit(f"error: {text}: more than the {MOST_BYTES >> 20} MiB that may travel")
    sys.stdout.write(f"{text}; there: tools/on_gpu.sh run OUT\n")


if __name__ == "__main__":
    main(sys.argv[1:])
