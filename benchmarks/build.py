"""The image of `cpu` from nothing to usable in the engine: our builders against hand-written ones.

    ENVBUILDER_BASE_IMAGE=REF python benchmarks/build.py [ROUNDS]

All start from the same base image and the same wheels (bind-mounted, not copied) and use no cache;
each round of ours has another date in its lock, so that no layer of it was ever made or loaded.
`naive` is pip in a Dockerfile as most people write it, `uv` is what careful people write: uv, no
bytecode, rewritten timestamps. Then, on top of `layers`: the same again, and one small package
more. Seconds are wall time, medians of alternating rounds, of which the first is not counted (with
0 ROUNDS it is the only one); archives are `docker save`. Needs an
engine with the base image, and the files of `cpu` in the store.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder import lockfile, profiles, resources, settings
from envbuilder.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

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


def run(*argv: str, cwd: Path | None = None) -> str:
    """A command's output; its errors end the benchmark."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{argv[:4]}: {done.stderr[-2000:]}")
    return done.stdout


def build(text: str, wheels: Path, folder: Path, *options: str) -> None:
    """Build a hand-written Dockerfile without a cache."""
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(text)
    run(
        *("docker", "buildx", "build", "--no-cache", "--provenance=false"),
        *("--build-arg", f"BASE_IMAGE={BASE}", "--build-context", f"wheels={wheels}"),
        *(*options, str(folder)),
    )


def naive(wheels: Path, folder: Path) -> str:
    """pip, and whatever the builder does by default."""
    tag = "envbuilder-benchmark/naive:1"
    build(NAIVE, wheels, folder, "--load", "--tag", tag)
    return tag


def careful(wheels: Path, folder: Path) -> str:
    """uv, and bits that are the same every time."""
    tag = "envbuilder-benchmark/uv:1"
    archive = folder / "image.tar"
    output = f"type=oci,dest={archive},name=docker.io/{tag},rewrite-timestamp=true"
    build(
        CAREFUL, wheels, folder, "--output", output, "--build-arg", "SOURCE_DATE_EPOCH=1700000000"
    )
    run("docker", "load", "--input", str(archive))
    return tag


def ours(project: Path, profile: str, builder: str, *options: str) -> str:
    """Build through the command line; returns the image's tag."""
    out = run(
        *(sys.executable, "-m", "envbuilder", "build", "--profile", profile, "--backend", "docker"),
        *("--builder", builder, "--base-image", BASE, "--json", *options),
        cwd=project,
    )
    ref: str = json.loads(out)["artifact"]["ref"]
    return ref


def lay(project: Path, number: int, store: Store) -> None:
    """A project whose lock of `cpu` has another date, and `more`: `cpu` and one small package."""
    (project / "profiles" / "locks").mkdir(parents=True)
    (project / "envbuilder.yaml").write_text("")
    lock = lockfile.load(resources.profiles_dir() / "locks" / "cpu.json")
    date = datetime.date(2000, 1, 1) + datetime.timedelta(days=number)
    dated = replace(
        lock,
        targets=tuple(
            replace(t, base=t.base and replace(t.base, date=date.isoformat())) for t in lock.targets
        ),
    )
    small = wheel(store)
    (project / "profiles" / "more.yaml").write_text(
        "extends: cpu\ndescription: One small package more\n"
        f"requirements: [torch==2.13.0+cpu, {EXTRA}==1.0]\n"
    )
    more = profiles.load("more", (project / "profiles", resources.profiles_dir()))
    added = replace(
        dated,
        profile="more",
        inputs=lockfile.inputs_digest(more),
        targets=tuple(replace(t, files=(*t.files, small)) for t in dated.targets),
    )
    for name, made in (("cpu", dated), ("more", added)):
        (project / "profiles" / "locks" / f"{name}.json").write_text(lockfile.dump(made))


def wheel(store: Store) -> lockfile.File:
    """A wheel of a few bytes, in the store."""
    name = EXTRA.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    members = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {EXTRA}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{n},,\n" for n in [*members, f"{info}/RECORD"])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    content = data.getvalue()
    made = lockfile.File(
        kind="wheel",
        name=EXTRA,
        version="1.0",
        file=f"{name}-1.0-py3-none-any.whl",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        source="default",
        provenance="read",
        by="this benchmark",
    )
    with store.receiving(made) as part:
        if not store.has(made.sha256):
            part.write_bytes(content)
            store.accept(part, made, "this benchmark")
    return made


def archive_bytes(tag: str) -> int:
    """Size of `docker save`."""
    with subprocess.Popen(["docker", "save", tag], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        size = 0
        while chunk := saving.stdout.read(1 << 20):
            size += len(chunk)
    return size


def main(rounds: int) -> None:
    """Alternate them all and print medians and ratios."""
    if not BASE:
        sys.exit("set ENVBUILDER_BASE_IMAGE to a base image with Python 3.11")
    store = Store(settings.load().store_dir)
    lock = lockfile.load(resources.profiles_dir() / "locks" / "cpu.json")
    target = lockfile.select(lock, "linux/amd64", "3.11")
    taken: dict[str, list[float]] = {}
    tags: dict[str, str] = {}
    loads = []
    first = int(time.time()) % 20_000
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        wheels = here / "wheels"
        wheels.mkdir()
        for file in (*target.of_kind("wheel"), *target.of_kind("tool")):
            store.link(file, wheels)

        def timed(name: str, make: Callable[[], str]) -> None:
            started = time.perf_counter()
            tags[name] = make()
            taken.setdefault(name, []).append(time.perf_counter() - started)
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
            if number == 0 and rounds:  # fills the page cache, exports the base image
                taken.clear()
            if number == rounds:
                sizes = {n: archive_bytes(t) for n, t in tags.items() if "," not in n}
            run("docker", "rmi", "--force", *sorted(set(tags.values())))
    middle = {name: statistics.median(values) for name, values in taken.items()}
    for name, values in taken.items():
        size = sizes.get(name)
        archive = f"{size / 1e6:.0f} MB ({size / sizes['naive']:.2f}×)" if size else ""
        print(
            f"{name:<25}{middle[name]:7.2f} s ({middle[name] / middle['naive']:5.3f}×)"
            f"   {archive:<17}   rounds: {', '.join(f'{v:.2f}' for v in values)}"
        )
    print(f"load of the machine meanwhile: {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
