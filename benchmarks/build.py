"""The image of `cpu` from nothing to usable in the engine: our builders against hand-written ones.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/build.py [ROUNDS]

All start from the same base image and the same wheels (bind-mounted, not copied) and use no cache;
each round of ours has another date in its lock, so that no layer of it was ever made or loaded.
`naive` is pip in a Dockerfile as most people write it, `uv` is what careful people write: uv, no
bytecode, rewritten timestamps. Then, on top of `layers`: the same again, one small package more,
`zendnn`, and `cpu` without bytecode, whose import of torch is compared (CPU time in a container).
Seconds are wall time, medians of alternating rounds, of which the first is not counted (with 0
ROUNDS it is the only one); archives are `docker save`; "wrote" is what a row added to the cache of
layers in the last round. Needs an engine with the base image, and the files of
`cpu` and `zendnn` in the store. Its images are removed, and so are the names `latest` that they
took.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile, profile as profiles

BASE = os.environ.get("ENVBUILDER_BASE_IMAGE", "")
NAIVE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN --mount=type=bind,from=wheels,target=/wheels \\
    python3 -m venv /opt/env && /opt/env/bin/pip install --no-index --find-links /wheels torch
ENV PATH=/opt/env/bin:$PATH
"""
CAREFUL = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=tmpfs,target=/tmp \\
    python3 -m zipfile --extract /wheels/uv-*.whl /tmp/uv \\
 && chmod +x /tmp/uv/*.data/scripts/uv \\
 && /tmp/uv/*.data/scripts/uv venv /opt/env \\
 && UV_CACHE_DIR=/opt/.cache /tmp/uv/*.data/scripts/uv pip install --python /opt/env/bin/python \\
      --no-index --find-links /wheels torch \\
 && rm -rf /opt/.cache
ENV PATH=/opt/env/bin:$PATH
"""
EXTRA = "envbuilder-benchmark"
IMPORT = "import os, torch; print(sum(os.times()[:2]))"


def run(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What a command printed; its errors end the benchmark."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{argv[:4]}: {done.stderr[-2000:]}")
    return done


def build(text: str, folder: Path, *options: str) -> None:
    """Build a hand-written Dockerfile without a cache."""
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(text)
    command = ("docker", "buildx", "build", "--no-cache", "--provenance=false", "--progress=plain")
    run(*command, "--build-arg", f"BASE_IMAGE={BASE}", *options, str(folder))


def naive(wheels: Path, folder: Path) -> str:
    """pip, and whatever the builder does by default."""
    tag = "envbuilder-benchmark/naive:1"
    context = ("--build-context", f"wheels={wheels}")
    build(NAIVE, folder, "--network", "none", *context, "--load", "--tag", tag)
    return tag


def careful(wheels: Path, folder: Path) -> str:
    """uv, and bits that are the same every time."""
    tag = "envbuilder-benchmark/uv:1"
    archive = folder / "image.tar"
    output = f"type=oci,dest={archive},name=docker.io/{tag},rewrite-timestamp=true"
    options = ("--network", "none", "--build-context", f"wheels={wheels}", "--output", output)
    build(CAREFUL, folder, *options, "--build-arg", "SOURCE_DATE_EPOCH=1700000000")
    run("docker", "load", "--input", str(archive))
    return tag


def forget(text: str) -> None:
    """Remove what BuildKit keeps of steps whose command has this text."""
    kept = run("docker", "buildx", "du", "--verbose").stdout
    for record in kept.split("\n\n"):
        name = re.search(r"^ID:\s+(\w+)", record, re.MULTILINE)
        if name and text in record:
            run("docker", "buildx", "prune", "--all", "--force", "--filter", f"id={name[1]}")


def ours(project: Path, profile: str, builder: str, *options: str) -> str:
    """Build through the command line; returns the image's tag."""
    words = ("build", "--profile", profile, "--backend", "docker", "--builder", builder, "--json")
    command = (sys.executable, "-m", "envbuilder", *words, "--base-image", BASE, *options)
    out = run(*command, cwd=project).stdout
    ref: str = json.loads(out)["artifact"]["ref"]
    return ref


def lay(project: Path, number: int, store: Store) -> None:
    """A project whose locks have another date, and `more`: `cpu` and one small package."""
    (project / "profiles" / "locks").mkdir(parents=True)
    (project / "envbuilder.yaml").write_text("")
    date = (datetime.date(2000, 1, 1) + datetime.timedelta(days=number)).isoformat()
    dated = {name: redate(name, date) for name in ("cpu", "zendnn")}
    small = wheel(store)
    (project / "profiles" / "plain.yaml").write_text(
        "extends: cpu\ndescription: Without bytecode\nbytecode: false\n"
    )
    dated["plain"] = replace(dated["cpu"], profile="plain")
    (project / "profiles" / "more.yaml").write_text(
        "extends: cpu\ndescription: One small package more\n"
        f"requirements: [torch==2.13.0+cpu, {EXTRA}==1.0]\n"
    )
    more = profiles.load("more", (project / "profiles", resources.profiles_dir()))
    dated["more"] = replace(
        dated["cpu"],
        profile="more",
        inputs=lockfile.inputs_digest(more),
        targets=tuple(replace(t, files=(*t.files, small)) for t in dated["cpu"].targets),
    )
    for name, made in dated.items():
        (project / "profiles" / "locks" / f"{name}.json").write_text(lockfile.dump(made))


def redate(name: str, date: str) -> lockfile.Lock:
    """A shipped lock with another date."""
    lock = lockfile.load(resources.profiles_dir() / "locks" / f"{name}.json")
    targets = (replace(t, base=t.base and replace(t.base, date=date)) for t in lock.targets)
    return replace(lock, targets=tuple(targets))


def packed_wheel(name: str, version: str) -> tuple[str, bytes]:
    """A wheel of a few bytes with one module: its file's name and content."""
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": f"version = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{n},,\n" for n in [*members, f"{info}/RECORD"])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{name}-{version}-py3-none-any.whl", data.getvalue()


def wheel(store: Store) -> lockfile.File:
    """A small wheel in the store."""
    file, content = packed_wheel(EXTRA.replace("-", "_"), "1.0")
    made = lockfile.File(
        kind="wheel",
        name=EXTRA,
        version="1.0",
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        source="default",
        provenance="read",
        by="this benchmark",
    )
    store.take(made.sha256, [content])
    return made


def names(tags: Iterable[str]) -> list[str]:
    """All names of the images that were built; ours are called `latest` as well."""
    latest = {f"{t.rpartition(':')[0]}:latest" for t in tags if t.startswith("envbuilder/")}
    return sorted({*tags, *latest})


def layers(ref: str) -> list[str]:
    """The unpacked layers of an image in the engine, bottom first."""
    shown = run("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", ref).stdout
    listed: list[str] = json.loads(shown)
    return listed


def archive_bytes(tag: str) -> int:
    """Size of `docker save`."""
    with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        size = 0
        while chunk := saving.stdout.read(1 << 20):
            size += len(chunk)
    if saving.returncode != 0:
        sys.exit(f"docker save {tag}: exit code {saving.returncode}")
    return size


def cached(folder: Path) -> int:
    """Bytes of all layers in the cache."""
    return sum(p.stat().st_size for p in (folder / "blobs").rglob("*") if p.is_file())


def main(rounds: int) -> None:
    """Alternate them all and print medians and ratios."""
    if not BASE:
        sys.exit("set ENVBUILDER_BASE_IMAGE to a base image with Python 3.11")
    found = load_settings()
    store = Store(found.store_dir)
    layer_cache = found.cache_dir / "layers"
    lock = lockfile.load(resources.profiles_dir() / "locks" / "cpu.json")
    target = lockfile.select(lock, "linux/amd64", "3.11")
    taken: dict[str, list[float]] = {}
    tags: dict[str, str] = {}
    written: dict[str, int] = {}
    imports: dict[str, list[float]] = {}
    loads = []
    first = int(time.time()) % 20_000
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        wheels = here / "wheels"
        wheels.mkdir()
        for file in (*target.of_kind("wheel"), lock.tool(target.platform)):
            store.link(file, wheels)

        def timed(name: str, make: Callable[[], str]) -> None:
            before = cached(layer_cache)
            os.sync()  # a row does not pay for what the one before it has left to write
            started = time.perf_counter()
            tags[name] = make()
            taken.setdefault(name, []).append(time.perf_counter() - started)
            written[name] = cached(layer_cache) - before
            loads.append(os.getloadavg()[0])

        for number in range(rounds + 1):
            project = here / f"project{number}"
            lay(project, first + number, store)
            timed("naive", lambda: naive(wheels, here / "naive"))
            timed("uv", lambda: careful(wheels, here / "uv"))
            timed("buildkit", lambda p=project: ours(p, "cpu", "buildkit", "--rebuild"))
            timed("layers", lambda p=project: ours(p, "cpu", "layers"))
            timed("layers, the same again", lambda p=project: ours(p, "cpu", "layers"))
            timed("layers, one package more", lambda p=project: ours(p, "more", "layers"))
            timed("layers, zendnn after cpu", lambda p=project: ours(p, "zendnn", "layers"))
            timed("layers, no bytecode", lambda p=project: ours(p, "plain", "layers"))
            for name in ("layers", "layers, no bytecode") * 3:
                done = run("docker", "run", "--rm", tags[name], "python", "-c", IMPORT)
                imports.setdefault(name, []).append(float(done.stdout))
            if number == 0 and rounds:  # fills the page cache, exports the base image
                taken.clear()
                imports.clear()
            if number == rounds:
                sizes = {n: archive_bytes(t) for n, t in tags.items() if "," not in n}
            run("docker", "rmi", "--force", "--no-prune", *names(tags.values()))
        forget("--find-links /wheels torch")
    middle = {name: statistics.median(values) for name, values in taken.items()}
    for name, values in taken.items():
        size = sizes.get(name)
        archive = f"{size / 1e6:.0f} MB ({size / sizes['naive']:.2f}×)" if size else ""
        wrote = f"wrote {written[name] / 1e6:.1f} MB" if name.startswith("layers") else ""
        print(
            f"{name:<25}{middle[name]:7.2f} s ({middle[name] / middle['naive']:5.3f}×)"
            f"   {archive:<17}   {wrote:<15}   rounds: {', '.join(f'{v:.2f}' for v in values)}"
        )
    for name, values in imports.items():
        print(f"{name}: import torch takes {statistics.median(values):.2f} s of CPU")
    print(f"load of the machine meanwhile: {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="The image of `cpu`, built in several ways")
    arguments.add_argument("rounds", metavar="ROUNDS", type=int, nargs="?", default=3)
    main(arguments.parse_args().rounds)
