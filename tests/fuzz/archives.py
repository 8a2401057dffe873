"""Hostile wheels, .debs and their lists, packages of conda, images, registries, bundles."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from envbuilder.builds import execute, plan, sbom
from envbuilder.builds.image import system, wheels
from envbuilder.containers.oci import archive, rootfs
from envbuilder.containers.oci.layer import Member
from envbuilder.containers.oci.layout import INDEX, Layout
from envbuilder.packages.conda import lock as conda_lock, prefixes
from envbuilder.packages.debian import deb, suite
from envbuilder.packages.python import wheel_conflicts
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.fuzz.inputs import private_settings, written
from tests.fuzz.mutations import PACKERS, mutated, packed, tar, zipped
from tests.support import device_code
from tests.support.images import BASE, STATUS, image


def _file(path: Path, kind: str, **more: Any) -> File:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return File(
        kind=kind, name="left", version="1.0", file=f"pool/{path.name}", sha256=digest, size=None,
        source="default", provenance="read", by="test", **more,
    )  # fmt: skip


def _stored(path: Path, work: Path, kind: str) -> tuple[File, Store]:
    file = _file(path, kind)
    store = Store(work / "store")
    place = store.path(file.sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.hardlink_to(path)
    return file, store


# ---- wheels


def make_wheel(random: Random, work: Path) -> Path:
    info = "left-1.0.dist-info"
    code = b"print(1)\n" * random.choice((1, 500))
    rows = f"left.py,sha256=x,{len(code)}\n{info}/METADATA,,\n{info}/RECORD,,\n".encode()
    metadata = b"Metadata-Version: 2.1\nName: left\nVersion: 1.0\nLicense: MIT\n\ntext\n"
    scripts = b"[console_scripts]\ntool = left:main\n"
    files = {
        "left.py": code,
        "left-1.0.data/scripts/uv": b"#!python\n",
        "left.so": mutated(random, device_code.SAMPLE * random.choice((1, 1, 2000))),
        f"{info}/METADATA": mutated(random, metadata * random.choice((1, 1, 400))),
        f"{info}/entry_points.txt": mutated(random, scripts * random.choice((1, 1, 2000))),
        f"{info}/RECORD": mutated(random, rows * random.choice((1, 1, 3000))),
    }
    return written(work / "left-1.0-py3-none-any.whl", zipped(random, files))


def read_conflicts(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "wheel")
    wheel_conflicts.require_compatible([file], "3.12", store)


def read_wheel_files(path: Path, work: Path) -> None:
    with wheels.Wheel(path, "left") as wheel:
        wheel.write_others(work / "others.whl")
        for packed_file in wheel.files.values():
            for _ in packed_file.pieces():
                pass
        wheels.completed("left.py,,\n", wheel.rows)


def read_licences(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "wheel")
    sbom.wheel_licences([file], store)
    sbom.of_metadata(sbom.read_metadata(path))


def read_tool(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "wheel")
    paths = {"path": str(work / "uv"), "unpacked": str(work / "unpacked")}
    step = plan.UnpackTool(what="unpack", file=file, name="uv", **paths)
    execute._unpack_tool(step, store)


# ---- .debs


def make_deb(random: Random, work: Path) -> Path:
    control = b"Package: left\nVersion: 1.0\nArchitecture: amd64\nDescription: x\n more\n"
    inside = {"./control": mutated(random, control, 1), "./md5sums": b"x"}
    own = {"./usr/lib/libz.so.1": b"elf", "./usr/share/doc/left/copyright": b"c"}
    out = b"!<arch>\n"
    for name, files in (("debian-binary", {}), ("control.tar", inside), ("data.tar", own)):
        suffix = random.choice([*PACKERS]) if files else ""
        data = packed(random, tar(random, files), suffix) if files else b"2.0\n"
        size = len(data) if random.random() < 0.97 else random.choice((-60, 10**9, 0))
        out += f"{name + suffix:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return written(work / "left_1.0_amd64.deb", mutated(random, out, random.choice((0, 0, 1))))


@cache
def base() -> rootfs.RootFs:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        made = image(Path(folder), (BASE, ()))
        return rootfs.read(made, made.manifest("linux/amd64"))


def read_clean(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "deb")
    deb.require_clean([file], store)


def read_deb_files(path: Path, work: Path) -> None:
    system.unpacked_members([(_file(path, "deb"), path)], base())


def read_libraries(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "deb")
    step = plan.UnpackLibraries(
        what="l", files=(file,), libraries=("libz.so.1",), folder=str(work / "libraries")
    )
    execute._unpack_libraries(step, store)


# ---- package lists


def make_lists(random: Random, work: Path) -> Path:
    stanza = (
        "Package: tool\nVersion: 1.0\nDepends: libc6 (>= 2), other | more (= 1:2~x)\nPriority:"
        " required\nProvides: x (= 1)\nFilename: pool/t.deb\nSize: 9\nSHA256: " + "0" * 64 + "\n\n"
    )
    text = stanza.encode() + stanza.replace("tool", "libc6").encode()
    text = mutated(random, text * random.choice((1, 1, 500)))
    suffix = random.choice((".xz", ".xz", ".gz", ".bz2", ""))
    raw = packed(random, text, suffix)
    if random.random() < 0.1:
        raw = mutated(random, raw)
    release = (
        f"Suite: x\nVersion: 1\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n {{}} {len(raw)}"
    )
    release = mutated(random, release.encode(), random.choice((0, 1))).decode(errors="replace")
    listed = f"main/binary-amd64/Packages.xz\n {hashlib.sha256(raw).hexdigest()} 1 "
    text = (
        release.replace("{}", hashlib.sha256(raw).hexdigest()) + " main/binary-amd64/Packages.xz\n"
    )
    written(work / "Release", f"{text} {listed}".encode())
    return written(work / "Packages", raw)


def read_suite(path: Path, work: Path) -> None:
    def read(url: str) -> bytes:
        return (work / url.rpartition("/")[2].removesuffix(".xz")).read_bytes()

    listed = suite.load("bookworm", "linux/amd64", private_settings(work), read=read)
    suite.closure(["tool"], listed)


# ---- conda


def make_conda(random: Random, work: Path) -> Path:
    paths = {"paths": [{"_path": "share/x", "path_type": "hardlink", "size_in_bytes": 1}],
             "paths_version": 1}  # fmt: skip
    index = {"name": "left", "version": "1.0", "build": "0", "build_number": 0, "depends": []}
    info = {
        "info/paths.json": mutated(random, json.dumps(paths).encode(), 1),
        "info/index.json": json.dumps(index).encode(),
    }
    own = {"share/x": b"x"}
    if random.random() < 0.4:
        data = packed(random, tar(random, {**info, **own}), ".bz2")
        return written(work / "left-1.0-0.tar.bz2", mutated(random, data, 1))
    parts = {
        "metadata.json": b'{"conda_pkg_format_version": 2}',
        "pkg-left-1.0-0.tar.zst": packed(random, tar(random, own), ".zst"),
        "info-left-1.0-0.tar.zst": packed(random, tar(random, info), ".zst"),
    }
    return written(work / "left-1.0-0.conda", zipped(random, parts, 1))


def read_conda(path: Path, work: Path) -> None:
    found = conda_lock.Package(
        name="left", version="1.0", build="0", build_number=0, subdir="noarch", file=path.name,
        channel="conda-forge", sha256="0" * 64, size=None,
    )  # fmt: skip
    prefixes._require_contained(found, path, "/prefix")


# ---- images


def make_layer(random: Random, work: Path) -> Path:
    files = {"etc/passwd": b"root:x:0:0::/:/bin/sh\n", "usr/bin/python3.11": b"\x003.11.2\x00",
             "var/lib/dpkg/status": mutated(random, STATUS.encode(), 1)}  # fmt: skip
    suffix = random.choice([*PACKERS])
    data = packed(random, tar(random, files), suffix)
    return written(work / "layer", mutated(random, data, random.choice((0, 0, 1))))


def read_layer(path: Path, work: Path) -> None:
    root = rootfs.over(base(), path)
    root.resolve("usr/bin/python3.11")
    from envbuilder.packages.debian import deb

    deb.installed_in(root.contents, "linux/amd64", "it")


@cache
def _image_files() -> dict[str, bytes]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        made = image(Path(folder), ((Member(path="x", content=b"x"),), ()))
        root = made.folder
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _resealed(random: Random) -> dict[str, bytes]:
    """The files of a layout, changed; a changed blob is listed under its new digest."""
    files = dict(_image_files())
    for name in sorted(files, key=lambda n: n == "index.json"):
        if random.random() < 0.5:
            continue
        old = files[name]
        data = mutated(random, files[name], 2)
        if name.startswith("blobs"):
            digests = [hashlib.sha256(d).hexdigest().encode() for d in (old, data)]
            files = {other: content.replace(*digests) for other, content in files.items()}
            del files[name]
            files[f"blobs/sha256/{digests[1].decode()}"] = data
        else:
            files[name] = data
    return files


def make_layout(random: Random, work: Path) -> Path:
    folder = work / "layout"
    (folder / "blobs/sha256").mkdir(parents=True)
    for name, data in _resealed(random).items():
        written(folder / name, data)
    if random.random() < 0.05:
        index = {"schemaVersion": 2, "manifests": []}
        for _ in range(4):  # each lists the last a thousand times
            data = json.dumps(index).encode()
            digest = hashlib.sha256(data).hexdigest()
            written(folder / "blobs/sha256" / digest, data)
            one = {"mediaType": INDEX, "digest": f"sha256:{digest}", "size": len(data)}
            index = {"schemaVersion": 2, "manifests": [one] * 1000}
        written(folder / "index.json", json.dumps(index).encode())
    return folder


def make_archive(random: Random, work: Path) -> Path:
    data = tar(random, _resealed(random))
    suffix = random.choice(("", "", ".gz", ".xz", ".bz2", ".zst"))
    return written(work / "image.tar", packed(random, data, suffix))


def read_layout(path: Path, work: Path) -> None:
    found = Layout.open(path) if path.is_dir() else archive.unpack(path, work / "unpacked")
    list(found.images())
    manifest = found.manifest("linux/amd64")
    found.read_config(manifest)
    rootfs.read(found, manifest)


def read_held(path: Path, work: Path) -> None:
    list(archive.held(path))


# ---- bundles
