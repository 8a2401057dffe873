"""Hostile wheels, .debs and their lists, packages of conda, images, registries, bundles."""

from __future__ import annotations

import hashlib
import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from requests import Request, Response
from urllib3.response import HTTPResponse

from envbuilder.builds import execute, plan, sbom
from envbuilder.builds.image import system, wheels
from envbuilder.bundle import contents, format as bundle_format
from envbuilder.containers.oci import archive, reference, rootfs
from envbuilder.containers.oci.layer import Member
from envbuilder.containers.oci.layout import INDEX, Layout
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.packages.conda import lock as conda_lock, prefixes
from envbuilder.packages.debian import deb, suite
from envbuilder.packages.python import wheel_conflicts
from envbuilder.packages.store import Store
from envbuilder.profiles import profile
from envbuilder.profiles.lock import File
from tests.fuzz.inputs import QUIET, ROOT, private_settings, written
from tests.fuzz.mutations import NAMES, PACKERS, mutated, packed, tar, zipped
from tests.support import device_code
from tests.support.folders import read_json
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
        wheel.record("left.py,,\n")


def read_licences(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "wheel")
    sbom.wheel_licences([file], store)
    sbom.of_metadata(sbom.read_metadata(path))


def read_tool(path: Path, work: Path) -> None:
    file, store = _stored(path, work, "wheel")
    step = plan.UnpackTool(what="unpack", file=file, name="uv", path=str(work / "uv"))
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
    suite.closure(["tool"], listed.packages, rolling=listed.rolling)


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


def make_answers(random: Random, work: Path) -> Path:
    for number in range(8):
        data = random.choice([*_image_files().values(), b"{}", b'{"errors":[{"code":"x"}]}'])
        headers = {
            "Content-Type": random.choice((INDEX, "text/html", "")),
            "WWW-Authenticate": 'Bearer realm="https://t.invalid/x",service="s",scope="y"',
            "Location": random.choice(("https://r.invalid/v2/a/x", "/x", "http://evil", "//[")),
            "Retry-After": random.choice(("1", "x", "9" * 50)),
            "Docker-Content-Digest": random.choice(("sha256:" + "0" * 64, "x")),
        }
        text = mutated(random, json.dumps(headers).encode(), 1)
        written(work / f"{number}.headers", text)
        written(work / f"{number}.body", mutated(random, data, 2))
    statuses = [random.choice((200, 200, 200, 401, 404, 302, 500, 206, 429)) for _ in range(8)]
    return written(work / "statuses", json.dumps(statuses).encode())


def read_answers(path: Path, work: Path) -> None:
    statuses = read_json(path)
    asked = 0

    def send(self: object, method: str, url: str, *more: Any) -> Response:
        nonlocal asked
        number = asked % 8
        asked = asked + 1
        answer = Response()
        answer.status_code = statuses[number]
        answer.url = url
        answer.request = Request(method, url).prepare()
        try:
            headers = read_json(work / f"{number}.headers")
            answer.headers.update({str(k): str(v) for k, v in dict(headers).items()})
        except (ValueError, TypeError, RecursionError):
            pass
        for header in answer.headers.values():
            connection.parse_challenges(header)
        body = io.BytesIO((work / f"{number}.body").read_bytes())
        answer.raw = HTTPResponse(body, preload_content=False)
        connection.parse_token((work / f"{number}.body").read_bytes())
        return answer

    from envbuilder.core.errors import EnvbuilderError

    with mock.patch.object(Connection, "_send", send):
        connection = Connection(reference.parse("r.invalid/a"), pause=lambda seconds: None)
        for act in (
            lambda: transfer.pull(connection, "t", Layout.create(work / "l"), "linux/amd64", QUIET),
            lambda: transfer._index(connection, "referrers/sha256:" + "0" * 64, (404,)),
        ):
            try:
                act()
            except EnvbuilderError:
                continue


# ---- bundles


@cache
def _bundle_texts() -> dict[str, bytes]:
    folder = ROOT / "profiles"
    texts = {f"profiles/{p.name}": p.read_bytes() for p in profile.chain("cpu", [folder])}
    return texts | {"locks/cpu.json": (folder / "locks/cpu.json").read_bytes()}


@cache
def _project_texts() -> dict[str, bytes]:
    names = ("envbuilder.yaml", "requirements.txt", "envbuilder.lock/default.cpu.json")
    return {f"project/{n}": (ROOT / "examples/script" / n).read_bytes() for n in names}


def make_bundle(random: Random, work: Path) -> Path:
    of_project = random.random() < 0.5
    plain = _bundle_texts() | (_project_texts() if of_project else {})
    texts = {k: mutated(random, v, random.choice((0, 0, 1))) for k, v in plain.items()}
    texts["wheels/left-1.0-py3-none-any.whl"] = b"wheel"
    texts["files/" + hashlib.sha256(b"f").hexdigest()] = b"f"
    kinds = {
        "profiles": "profile", "locks": "lock", "project": "project", "wheels": "wheel",
        "files": "file",
    }  # fmt: skip
    listed = bundle_format.order(
        bundle_format.Member(
            path=random.choice((path, path, path, path, path, path, random.choice(NAMES))),
            size=len(data), sha256=hashlib.sha256(data).hexdigest(),
            kind=kinds[path.partition("/")[0]], what="a part",  # type: ignore[arg-type]
        )
        for path, data in texts.items()
    )  # fmt: skip
    manifest = bundle_format.Manifest(
        schema=3 if of_project else 2, made_by="a test", profiles=("cpu",),
        platforms=("linux/amd64",), pythons=("3.12",), lacks=(), members=listed,
        environment="default" if of_project else None,
    )  # fmt: skip
    text = bundle_format.encode(manifest) if _encodable(manifest) else b"{}"
    text = mutated(random, text, random.choice((0, 0, 1, 3)))
    by_hash = {hashlib.sha256(d).hexdigest(): d for d in texts.values()}
    name = bundle_format.manifest_name(hashlib.sha256(text).hexdigest())
    out = bundle_format.header(name, len(text)) + text + bundle_format.padding(len(text))
    for member in listed:
        data = by_hash[member.sha256]
        path = member.path.encode("ascii", "replace").decode()
        out += bundle_format.header(path, len(data)) + data + bundle_format.padding(len(data))
    out += bundle_format.END
    return written(work / "b.tar", mutated(random, out, random.choice((0, 0, 1))))


def _encodable(manifest: bundle_format.Manifest) -> bool:
    try:
        bundle_format.encode(manifest)
    except UnicodeEncodeError:
        return False
    return True


def read_bundle(path: Path, work: Path) -> None:
    contents.unpack(path, private_settings(work), QUIET, force=False)
