"""How many repositories `envbuilder init` and `envbuilder lock` take, beside `uv pip compile`.

    python benchmarks/corpus.py FOLDER [--only PATTERN] [--profile NAME]… [--build] [--jobs N]
        [--no-uv] [--json FILE]

FOLDER holds a folder for each repository, with the files that it publishes; FOLDER.json beside it
says of each what its README names (`primary`), its style and what it contains. Each is copied, with
the configured index in place of `index.example` and `files.example`; then `init` runs, and `lock`
for each profile. A repository counts as locked if a lock of each profile holds every requirement
that its primary file states and that is not the hardware's: read here a second time, by little code
that shares nothing with envbuilder's readers. It counts among those that can be had here unless its
style is `readme` or `script`, or something comes from git or a URL.

With `--build` the environment of each profile is then built on this machine, natively, and must
import all modules of what the primary file states; the environment is removed, downloads stay in
the cache folder (ENVBUILDER_CACHE_DIR). Locks with more than 400 MB beside the framework are not.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.packages import fetch

if TYPE_CHECKING:
    from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 600
LARGEST = 400 << 20
IMPORTS = """
import importlib, re, sys
from importlib.metadata import packages_distributions
modules = {
    re.sub("[-_.]+", "-", name).lower(): module
    for module, names in packages_distributions().items() for name in names
    if module.isidentifier() and module[0] != "_"
}
wrong = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(modules[name])
    except BaseException as error:
        wrong.append(f"{name}: {type(error).__name__}: {error}"[:200])
print("imported", len(sys.argv) - 1 - len(wrong), *wrong, sep="; ")
sys.exit(bool(wrong))
"""
"""Imports a module of each distribution that it is given, in the environment."""
# The builds of frameworks and what belongs to them, on any hardware, conda's own programs, and what
# is for Windows alone or Python has itself.
HARDWARE = re.compile(
    r"(torch|torchvision|torchaudio|torchtext|torchdata|pytorch(-gpu|-mutex|-cuda)?|triton|pytorch-triton.*|"
    r"functorch|jax|jaxlib|jax-cuda.*|tensorflow.*|tf-nightly.*|keras-nightly|nvidia-.*|cuda.*|cudatoolkit.*|cudnn|nccl|"
    r"intel-extension-for-.*|zentorch|python|pip|mkl.*|blas|intel-openmp|llvm-openmp|lib.*|-.*|openssl|"
    r"ca-certificates|certifi|ncurses|readline|sqlite|tk|xz|zlib|zstd|bzip2|ffmpeg|gcc.*|gxx.*|sysroot.*|"
    r"ld-impl.*|freetype|jpeg|lcms2|lz4-c|gmp|gnutls|lame|nettle|openh264|x264|expat|gettext|glib|icu|pcre.*|"
    r"giflib|lerc|qt.*|dbus|fontconfig|gstreamer.*|ninja-base|setuptools|wheel|pywin32|pywinpty"
    r"|dataclasses|contextvars|enum34|futures|pathlib|typing)\Z"
)
NVIDIA = re.compile(
    r"(faiss-gpu|onnxruntime-gpu|flash-attn|xformers|pycuda|(cuml|cudf|cupy|dgl|tensorrt)(-.*)?)\Z"
)
CONDA_NAMES = {"opencv": "opencv-python", "pytorch-lightning": "pytorch-lightning", "pyqt": "pyqt5"}
OPENCV = {"opencv-python", "opencv-python-headless", "opencv-contrib-python"}
STUBS = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
PLATFORMS = {
    "linux/amd64": ("linux", "Linux", "x86_64"),
    "linux/arm64": ("linux", "Linux", "aarch64"),
    "macos/arm64": ("darwin", "Darwin", "arm64"),
}


def named(line: str) -> tuple[str, Marker | None] | None:
    """Return the name and the marker of a requirement, unless the hardware decides about it."""
    line = re.sub(r"(^|\s)#.*", "", line).strip()
    line = re.split(r"\s--?[a-z]", line)[0].strip().rstrip("\\").strip()
    egg = re.search(r"#egg=([\w.-]+)", line)
    if egg:
        line = egg[1]
    if not line or line.startswith(("-", ".", "/")) or re.match(r"(git\+|https?:)", line):
        return None
    try:
        parsed = Requirement(re.sub(r"(?<=[0-9])\+\w+", "", line))
    except InvalidRequirement:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        return (canonicalize_name(name[0]), None) if name else None
    return canonicalize_name(parsed.name), parsed.marker


def text_lines(path: Path, seen: set[Path]) -> list[str]:
    """Return the lines of a requirements file and of those that it includes."""
    if path in seen or not path.is_file():
        return []
    seen.add(path)
    lines = []
    raw = path.read_bytes()
    text = raw.decode("utf-16" if raw[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8", "replace")
    for line in text.splitlines():
        included = re.match(r"\s*(?:-r|--requirement)[\s=]+(\S+)", line)
        lines += text_lines(path.parent / included[1], seen) if included else [line]
    return lines


def setup_lines(path: Path) -> list[str]:
    """Return the literal `install_requires` of a setup.py, or the constant list that it names."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:
        return []
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            value = constants.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            items = value.elts if isinstance(value, ast.List | ast.Tuple) else []
            return [str(i.value) for i in items if isinstance(i, ast.Constant)]
    return []


def conda_lines(path: Path) -> list[str]:
    """Return what a conda file lists, by names of the package index."""
    data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    lines: list[str] = []
    for item in data.get("dependencies") or ():
        if isinstance(item, dict):
            for line in item.get("pip") or ():
                included = re.match(r"\s*(?:-r|--requirement)[\s=]+(\S+)", line)
                lines += text_lines(path.parent / included[1], set()) if included else [line]
        elif name := re.match(r"[A-Za-z0-9._-]+", str(item).rpartition("::")[2]):
            plain = name[0].lower()
            if plain[0] != "_" and not HARDWARE.match(plain):
                plain = re.sub(r"^dgl-cuda[0-9.]+\Z", "dgl", plain)
                lines.append(CONDA_NAMES.get(plain, plain))
    return lines


def stated(path: Path) -> list[str]:
    """Return the requirement lines of a repository's primary file."""
    if path.name == "pyproject.toml":
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        if "dependencies" in data.get("project", {}):
            return list(data["project"]["dependencies"])
        poetry = data.get("tool", {}).get("poetry", {}).get("dependencies", {})
        return [
            name
            for name, value in poetry.items()
            if not (isinstance(value, dict) and (value.get("optional") or value.get("git")))
        ]
    if path.name == "Pipfile":
        return [*tomllib.loads(path.read_text(encoding="utf-8")).get("packages", ())]
    if path.suffix in {".yml", ".yaml"}:
        return conda_lines(path)
    if path.name == "setup.py":
        lines = setup_lines(path)
        beside = path.parent / "setup.cfg"
        if not lines and beside.is_file():
            parser = configparser.ConfigParser()
            parser.read(beside)
            listed = parser.get("options", "install_requires", fallback="")
            return listed.splitlines()
        return lines
    return text_lines(path, set())


def required(path: Path, platform: str, python: str) -> set[str]:
    """Return the packages that a lock must hold for a platform and a Python."""
    names = ("sys_platform", "platform_system", "platform_machine")
    there = dict(zip(names, PLATFORMS[platform], strict=True))
    there |= {"python_version": python, "python_full_version": f"{python}.0"}
    pairs = filter(None, map(named, stated(path)))
    return {
        STUBS.get(name, name)
        for name, marker in pairs
        if not HARDWARE.match(name) and (marker is None or marker.evaluate({**there, "extra": ""}))
    }


def lacking(folder: Path, primary: str, profile: str) -> str:
    """Return what keeps a written lock from being one of the whole repository; empty if nothing."""
    definition = yaml.safe_load((folder / "envbuilder.yaml").read_text(encoding="utf-8")) or {}
    if not definition.get("requirements") and not definition.get("requirements_from"):
        return "silently empty"
    written = [*folder.rglob(f"default.{profile}.json"), *folder.rglob(f"default.*-{profile}.json")]
    # JAX and TensorFlow have no build for a Mac's GPU.
    written += folder.rglob("default.*-cpu.json") if profile == "mps" else ()
    path = next(iter(written), None)
    if path is None:
        return "no lock was written"
    lock = json.loads(path.read_text(encoding="utf-8"))
    if lock["state"] == "unlocked":
        return f"unlocked: {lock['reason'][:200]}"
    for target in lock["targets"]:
        have = {file["name"] for file in target["files"]}
        # One OpenCV takes the place of the others.
        have |= OPENCV if have & OPENCV else set()
        try:
            stated_here = required(folder / primary, target["platform"], target["python"])
            have |= {"decord"} if "eva-decord" in have else set()  # the same modules, for Macs
            # What only an NVIDIA GPU runs is the hardware's, too.
            missing = sorted(
                name for name in stated_here - have if profile == "cuda" or not NVIDIA.match(name)
            )
        except (OSError, ValueError, yaml.YAMLError) as error:
            return f"the benchmark cannot read {primary}: {error}"
        if missing:
            return f"left out: {', '.join(missing)}"
    return ""


def built(
    program: str, folder: Path, primary: str, profile: str, environment: dict[str, str]
) -> str:
    """Build an environment and import what a repository requires; return what came of it."""
    lock = json.loads(next(folder.rglob(f"default.{profile}.json")).read_text(encoding="utf-8"))
    target = lock["targets"][0]
    size = sum(file["size"] or 0 for file in target["files"] if not HARDWARE.match(file["name"]))
    if size > LARGEST:
        return f"not built: {size >> 20} MB"
    names = required(folder / primary, target["platform"], target["python"])
    have = {file["name"] for file in target["files"]}
    command = (program, "run", "--profile", profile, "--backend", "venv", "--", "python", "-c")
    code, printed, seconds = ran([*command, IMPORTS, *sorted(names & have)], folder, environment)
    found = re.search(r"^imported.*", printed, re.MULTILINE)
    return f"exit code {code}, {seconds:.0f} s, {found[0] if found else printed.strip()[-600:]}"


def ran(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str, float]:
    """Run a program; return its exit code, what it printed, and the seconds it took."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"not finished after {SECONDS} s", time.monotonic() - start
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


def copied(source: Path, folder: Path, index: str, files: str) -> None:
    """Copy a repository, with the configured index in place of the example one."""
    shutil.copytree(source, folder, symlinks=True)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            raw = path.read_bytes()
            if b"index.example" in raw or b"files.example" in raw:
                raw = raw.replace(b"https://index.example/simple", index.encode())
                path.write_bytes(raw.replace(b"https://files.example", files.encode()))


def tried(
    row: dict[str, Any], corpus: Path, options: argparse.Namespace, index: str
) -> dict[str, Any]:
    """Return what `init`, `lock` and uv make of a repository."""
    name = row["repo"].replace("/", "__")
    primary = row["primary"] or ""
    result: dict[str, Any] = {"repo": row["repo"], "style": row["style"], "primary": primary}
    features = json.dumps(row["features"])
    result["reachable"] = bool(
        primary
        and row["style"] not in {"readme", "script"}
        and not re.search(r"git\+|URL|-e git", features)
    )
    program = str(Path(sys.executable).with_name("envbuilder"))
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    with tempfile.TemporaryDirectory(prefix="corpus-") as temporary:
        environment["ENVBUILDER_DATA_DIR"] = f"{temporary}/data"
        folder = Path(temporary) / row["repo"].rpartition("/")[2]  # as a clone is named
        copied(corpus / name, folder, index, index.rpartition("/simple")[0])
        (folder / "README.upstream").exists() and (folder / "README.upstream").rename(
            folder / "README.md"
        )
        code, printed, seconds = ran([program, "init"], folder, environment)
        result["init"] = {"code": code, "seconds": round(seconds, 1), "printed": printed[-6000:]}
        written = folder / "envbuilder.yaml"
        result["text"] = written.read_text(encoding="utf-8") if written.is_file() else ""
        for profile in options.profile:
            why = "init: " + printed.strip()[-300:]
            if written.is_file():
                lock = [program, "lock", "--profile"]
                code, printed, seconds = ran([*lock, profile], folder, environment)
                if code and profile == "mps" and "has PyTorch, but the project uses" in printed:
                    code, printed, seconds = ran([*lock, "cpu"], folder, environment)
                why = (
                    lacking(folder, primary, profile)
                    if code == 0
                    else f"lock: {printed.strip()[-1500:]}"
                )
                result[profile] = {
                    "code": code,
                    "seconds": round(seconds, 1),
                    "why": why,
                    "printed": printed[-6000:],
                }
                if options.build and not why:
                    result[profile]["built"] = built(program, folder, primary, profile, environment)
            else:
                result[profile] = {"code": code, "seconds": 0, "why": why, "printed": ""}
        if options.uv and primary and (folder / primary).suffix not in {".yml", ".yaml"}:
            uv = [
                sys.executable,
                "-m",
                "uv",
                "pip",
                "compile",
                "--quiet",
                "--python-version",
                "3.12",
                "--no-header",
            ]
            code, printed, seconds = ran([*uv, primary], folder, {**environment, "HOME": temporary})
            result["uv"] = {
                "code": code,
                "seconds": round(seconds, 1),
                "printed": printed[-300:] if code else "",
            }
    result["locked"] = all(not result[profile]["why"] for profile in options.profile)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="repositories whose name has this in it")
    parser.add_argument("--profile", action="append", help="by default cuda and mps")
    parser.add_argument("--build", action="store_true", help="build, and import what is stated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-uv", dest="uv", action="store_false")
    parser.add_argument("--json", type=Path, help="write all that was printed to this file")
    options = parser.parse_args()
    options.profile = options.profile or ["cuda", "mps"]
    rows = json.loads(options.folder.with_suffix(".json").read_text(encoding="utf-8"))
    rows = [row for row in rows if re.search(options.only, row["repo"], re.IGNORECASE)]
    # Of some, no file was kept.
    rows = [r for r in rows if (options.folder / r["repo"].replace("/", "__")).is_dir()]
    index = next(place.url for place in fetch.places() if not place.flat)
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(tried, row, options.folder, options, index) for row in rows]
        results = []
        for job in jobs:
            results.append(job.result())
            each = results[-1]
            first = next((each[p]["why"] for p in options.profile if each[p]["why"]), "locked")
            print(f"{each['repo']:<50} {first.splitlines()[-1][:140] if first else ''}", flush=True)
            for profile in (p for p in options.profile if "built" in each[p]):
                print(f"  {profile}: {each[profile]['built']}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    summary(results)


def summary(results: list[dict[str, Any]]) -> None:
    """Print the counts."""
    reachable = [r for r in results if r["reachable"]]
    by_uv = [r for r in results if r.get("uv", {}).get("code") == 0]
    print(f"\nof {len(results)} repositories {sum(r['locked'] for r in results)} lock")
    for label, group in (("can be had here", reachable), ("uv resolves alone", by_uv)):
        locked = sum(r["locked"] for r in group)
        share = f" ({100 * locked / len(group):.0f} %)" if group else ""
        print(f"{label}: {len(group)}, of which {locked} lock{share}")
    print(Counter(r["style"] for r in reachable if not r["locked"]))


if __name__ == "__main__":
    main()
