"""Make a base image from locked Debian packages. The same packages always give the same bytes.

mmdebstrap installs (or only unpacks) exactly the locked packages, without network access, from a
folder that contains nothing else. The result is converted to an OCI layout with a single layer,
which contains nothing that depends on the machine or the time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from envbuilder.builds.image.base import DEFAULT_PATH, MAKER, created, write_image
from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci.layer import Layer, Member, write
from envbuilder.containers.oci.layout import (
    Layout,
    place,
)
from envbuilder.core import decoding, process, types
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.packages.debian import deb
from envbuilder.packages.debian.suite import ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from envbuilder.builds.plan import MakeBase
    from envbuilder.packages.store import Store

_MAKERS = {MAKER: MAKER, "apt": "apt-get", "dpkg": "dpkg"}
"""Tools that make a base. The keys are their names in the provenance, and the values are their
programs. mmdebstrap delegates much of the work to the machine's apt and dpkg."""
_MADE_BY = "made-by.json"
"""Name of the file that contains the tools' versions. The file is next to the image rather than in
it, because the image must not depend on the versions."""
_MOST = 12
"""Maximum number of lines of mmdebstrap's output that an error message quotes."""
# Folders to merge into /usr. Debian 12 and later require this before the first package is unpacked;
# debootstrap does it itself, mmdebstrap leaves it to a hook.
_MERGED = {"amd64": "bin sbin lib lib64", "arm64": "bin sbin lib"}
_LEFT_EMPTY = (
    "dev/",
    "proc/",
    "run/",
    "sys/",
    "tmp/",
    "var/cache/apt/",
    "var/cache/ldconfig/",
    "var/lib/apt/lists/",
    "var/log/",
    "var/tmp/",
)
_LEFT_OUT = frozenset(
    {"etc/apt/sources.list", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "etc/hostname", "etc/machine-id",
     "etc/resolv.conf", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old",
     "var/lib/dpkg/diversions-old", "var/lib/dpkg/status-old"}
)  # fmt: skip
# Documentation and translations, which Debian's slim images omit as well; licences stay. Removed
# here because mmdebstrap's own filter takes a second per package.
_DOCUMENTS = tuple(f"usr/share/{name}/" for name in ("doc", "info", "locale", "man"))
_LICENCES = re.compile(r"usr/share/doc/[^/]+(/copyright)?")
# apt gives these folders to the build machine's `_apt` user, if that user can reach them. Here they
# are as in the package; apt in the image gives them to the image's own user.
_APTS = frozenset({"var/cache/apt/archives/partial", "var/lib/apt/lists/partial"})
_MASTERS = {f"usr/share/base-passwd/{n}.master": f"etc/{n}" for n in ("group", "passwd")}


def make(base: MakeBase, store: Store, log: Callable[[str], None]) -> Layout:
    """Return the base as an OCI layout, making it if it is missing or damaged.

    Only one process at a time makes the base. Raise `BuildError` if mmdebstrap fails or installs
    packages other than the locked ones, `ToolError` if mmdebstrap is missing, and `OSError` if the
    disk is full.
    """
    from filelock import FileLock

    final = Path(base.layout)
    final.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{final}.lock"):
        layout = _existing(final, base.platform, log)
        if layout is not None:
            return layout
        for leftover in final.parent.glob(f".{final.name}.*"):  # left by a killed build
            shutil.rmtree(leftover, ignore_errors=True)
        # A new name each time: processes of a killed build may still be writing to the old one.
        work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        try:
            _make(base, store, work, log)
            (work / "layout").replace(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Layout(final)


def made_by(base: MakeBase) -> dict[str, str]:
    """Return the versions of the programs that made a base, by program name.

    The mapping is empty if the versions are unknown.
    """
    try:
        return decoding.from_json((Path(base.layout) / _MADE_BY).read_bytes(), dict[str, str])
    except (OSError, ValueError):
        return {}


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name, program in _MAKERS.items():
        if process.which(program):
            printed = process.run([program, "--version"]).stdout
            if match := re.search(r"\b\d[\w.+~:-]*", printed):
                versions[name] = match[0]
    return versions


def _existing(folder: Path, platform: types.Platform, log: Callable[[str], None]) -> Layout | None:
    """Return an existing base if all of its files match their hashes, else None.

    A damaged base is reported and removed.
    """
    if not folder.exists():
        return None
    try:
        layout = Layout.open(folder)
        manifest = layout.manifest(platform)
        for blob in (manifest.config, *manifest.layers):
            layout.checked(blob)
    except EnvbuilderError as error:
        log(f"warning: making the base again: {error.message}")
        shutil.rmtree(folder)
        return None
    return layout


def _make(base: MakeBase, store: Store, work: Path, log: Callable[[str], None]) -> None:
    tar = work / "root.tar"
    # Without root, mmdebstrap reads the archive as another user, which has no access to
    # envbuilder's own folders.
    reachable = work if os.geteuid() == 0 else None
    with TemporaryDirectory(prefix="envbuilder-", dir=reachable) as scratch:
        archive = Path(scratch) / "archive"
        controls = _lay_archive(base, store, archive)
        for path in (archive.parent, archive, *archive.iterdir()):
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        done = process.run(
            command(base, archive, tar),
            env={"SOURCE_DATE_EPOCH": str(base.epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
            on_stdout=log,
            on_stderr=log,
        )
    if done.returncode != 0:
        printed = (done.stdout + done.stderr).splitlines()
        # mmdebstrap ends by repeating its command line; the errors are above it.
        errors = [line for line in printed if re.match(r"dpkg: error|dpkg-deb: error|[EW]: ", line)]
        raise BuildError(
            f"{base.what}: {MAKER} failed (exit {done.returncode}):\n" + "\n".join(errors[:_MOST]),
            _advice(done.stderr, base.platform),
        )
    (work / "files").mkdir()
    members = {m.path: m for m in layer_members(tar, work / "files")}
    tar.unlink()
    if base.unpacked:
        members |= {m.path: m for m in without_scripts(members, controls)}
    else:
        require_exactly(base, members)
    layer = write(members.values(), work / "layer", base.epoch)
    _lay_image(base, layer, work / "layer", Layout.create(work / "layout"))
    (work / "layout" / _MADE_BY).write_bytes(msgspec.json.encode(_versions()))


def command(base: MakeBase, archive: Path, tar: Path) -> list[str]:
    """Return the mmdebstrap command that makes a root filesystem from a local package archive."""
    architecture = ARCHITECTURES[base.platform]
    links = _MERGED[architecture]
    merge = f'for d in {links}; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d"; done'
    return [
        MAKER,
        "--quiet",
        "--variant=extract" if base.unpacked else "--variant=essential",
        f"--architectures={architecture}",
        "--format=tar",
        "--dpkgopt=force-unsafe-io",
        f"--setup-hook={merge}",
        f"--include={','.join(f'{f.name}={f.version}' for f in base.files)}",
        base.suite,
        str(tar),
        f"deb [trusted=yes] copy://{quote(str(archive))} ./",
    ]


def _advice(printed: str, platform: types.Platform) -> str:
    if "cannot execute" in printed or "arch-test" in printed or "qemu" in printed:
        return (
            f"Programs for {platform} do not run on this machine. Add {platform} to debian_base's"
            " `unpacked:` in the profile, or build on a machine of that platform."
        )
    if "No space left on device" in printed:
        return "mmdebstrap needs about 1 GB in TMPDIR (or /tmp) to make a base."
    return f"{MAKER} requires root, or user namespaces with /etc/subuid, or fakechroot."


# --- the archive that mmdebstrap installs from


def _lay_archive(base: MakeBase, store: Store, folder: Path) -> dict[str, str]:
    """Write a Debian archive that contains the base's packages.

    Return the control stanza of each package, by the package's name.
    """
    folder.mkdir()
    stanzas = []
    controls = {}
    for file in base.files:
        control = _control(store.link(file, folder))
        controls[file.name] = control
        path = store.path(file.sha256)
        stanzas.append(
            f"{control}Filename: ./{file.basename}\nSize: {path.stat().st_size}\n"
            f"SHA256: {file.sha256}\n"
        )
    index = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(index)
    release = f"Suite: {base.suite}\nCodename: {base.suite}\nSHA256:\n"
    release += f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    (folder / "Release").write_text(release)
    return controls


def _control(path: Path) -> str:
    """Return the control stanza of a .deb file, ending in a newline."""
    with deb.open_deb(
        path, lambda reason: BuildError(f"{path.name}: not a Debian package: {reason}")
    ) as package:
        text, _ = package.control()["control"]
    return text.decode("utf-8", "replace").strip("\n") + "\n"


# --- the image


def _lay_image(base: MakeBase, layer: Layer, blob: Path, layout: Layout) -> None:
    time = created(base.epoch)
    reason = f"{len(base.files)} packages of Debian {base.suite}"
    config = {
        "created": time,
        "architecture": ARCHITECTURES[base.platform],
        "os": "linux",
        "config": {
            "Env": [f"PATH={DEFAULT_PATH}", "LANG=C.UTF-8"],
            "Cmd": ["bash"],
            # `clean` recognizes the image by this label.
            "Labels": {f"{LABEL}fingerprint": base.identity},
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created": time, "created_by": f"envbuilder: {reason}"}],
    }
    place(blob, layout.blob(layer.digest))
    write_image(layout, config, (layer.descriptor,), base.platform, (base.ref,))


# --- the root filesystem: what depends on the packages alone is kept


def layer_members(tar: Path, folder: Path) -> Iterator[Member]:
    """Yield the members of the base image's layer, writing the contents of its files to `folder`.

    Raise `BuildError` for a kind of file that a base image cannot contain.
    """
    files: dict[str, Path] = {}
    with tarfile.open(tar, "r:") as archive:
        for number, entry in enumerate(archive):
            path = _clean_path(entry.name)
            if not path or not _belongs(path, is_folder=entry.isdir()):
                continue
            member = Member(path=path, mode=entry.mode & 0o7777, uid=entry.uid, gid=entry.gid)
            if path in _APTS:
                member = Member(path=path, mode=0o755)
            if any("security.capability" in key for key in entry.pax_headers):
                raise BuildError(f"/{path}: has file capabilities, which a base cannot keep")
            if entry.isdir():
                yield replace(member, kind="folder")
            elif entry.issym():
                yield replace(member, kind="link", target=entry.linkname)
            elif entry.islnk():
                linked = files.get(_clean_path(entry.linkname))
                if linked is None:
                    raise BuildError(
                        f"/{path}: hard link to {entry.linkname}, which does not exist"
                    )
                yield replace(member, source=linked)
            elif entry.isreg():
                files[path] = folder / str(number)
                stream = archive.extractfile(entry)
                assert stream is not None, "a plain file has content"
                with files[path].open("wb") as out:
                    shutil.copyfileobj(stream, out)
                yield replace(member, source=files[path])
            else:
                raise BuildError(f"/{path}: not a file, folder or link")


def _clean_path(name: str) -> str:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise BuildError(f"mmdebstrap created a path outside the base: {name}")
    return "/".join(parts)


def _belongs(path: str, *, is_folder: bool) -> bool:
    """Return whether the base keeps a path.

    The base keeps neither documentation nor anything that depends on the machine or the time.
    """
    if "__pycache__" in path.split("/"):
        return False  # bytecode records times; the official Python images omit it as well
    if path.startswith(_DOCUMENTS) and not _LICENCES.fullmatch(path):
        return False
    return is_folder or not (path in _LEFT_OUT or path.startswith(_LEFT_EMPTY))


def require_exactly(base: MakeBase, entries: dict[str, Member]) -> None:
    """Raise `BuildError` unless precisely the locked packages are installed and configured."""
    member = entries.get(deb.STATUS)
    text = member.source.read_bytes() if member and isinstance(member.source, Path) else b""
    states = set(re.findall(rb"^Status: (.*)$", text, re.MULTILINE))
    if states != {b"install ok installed"}:
        raise BuildError(
            "mmdebstrap did not configure all packages", "Check the log for the reason."
        )
    actual = deb.installed({deb.STATUS: text}, ARCHITECTURES[base.platform]) or {}
    locked = {f.name: f.version for f in base.files}
    differ = sorted(n for n in actual.keys() | locked.keys() if actual.get(n) != locked.get(n))
    if differ:
        name = differ[0]
        raise BuildError(
            f"mmdebstrap installed packages that differ from the lock: {name}"
            f" {actual.get(name, 'is missing')}, but the lock has {locked.get(name, 'none')}",
            "Check the log, or try a newer mmdebstrap.",
        )


def without_scripts(entries: dict[str, Member], controls: dict[str, str]) -> Iterable[Member]:
    """Yield the plain data files that the packages' maintainer scripts would have created.

    These files are the lists of Debian's default users and groups, and a dpkg status file that
    lists the packages as unpacked.
    """
    for source, target in _MASTERS.items():
        if source in entries and target not in entries:
            yield replace(entries[source], path=target)
    stanzas = []
    for _, control in sorted(controls.items()):
        stanzas.append(control.replace("\n", "\nStatus: install ok unpacked\n", 1))
    yield Member(path=deb.STATUS, content="\n".join(stanzas).encode())
