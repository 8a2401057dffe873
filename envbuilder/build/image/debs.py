"""Debian packages without dpkg: the files and the records that installing them would leave.

Only packages that are nothing but files: no maintainer script, no configuration file; a trigger may
ask for ldconfig, whose cache the dynamic loader does not need for libraries in its own folders. The
result is compared with dpkg's in the tests; whatever else a package wants is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build import conventions as facts
from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError
from envbuilder.packages.debian import members as deb_members

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.containers.oci.rootfs import RootFs
    from envbuilder.profiles.locked_file import File

STATUS = "var/lib/dpkg/status"
_INFO = "var/lib/dpkg/info"
_OLD = re.compile(r"var/(lib/dpkg|cache/debconf)/[^/]+-old")
"""Earlier states, which the Dockerfile empties after dpkg."""
_LOCKS = frozenset(f"var/lib/dpkg/{n}" for n in ("lock", "lock-frontend", "triggers/Lock"))
"""Empty files whose time dpkg changes."""
_LEFT_OUT = ("usr/share/doc/", "usr/share/man/")
"""As the Dockerfile's dpkg leaves them out."""
_RECORDS = ("md5sums", "shlibs", "symbols", "triggers")
"""What dpkg keeps of a package besides its list of files."""
_OURS = tuple(
    f"{folder.strip('/')}/"
    for folder in (
        *(facts.PREFIX, facts.PAYLOAD.rpartition("/")[0], facts.HOME, facts.WORK),
        "var/lib/dpkg",
    )
)
"""What no package may bring files into."""
_TRIGGER = "activate-noawait ldconfig"
# The order in which dpkg writes the fields it knows; the others follow in the package's own.
_FIELDS = (
    *("Package", "Essential", "Protected", "Status", "Priority", "Section", "Installed-Size"),
    *("Origin", "Maintainer", "Bugs", "Architecture", "Multi-Arch", "Source", "Version"),
    *("Config-Version", "Replaces", "Provides", "Depends", "Pre-Depends", "Recommends"),
    *("Suggests", "Breaks", "Conflicts", "Enhances", "Conffiles", "Description"),
)
_INSTALLED = "install ok installed"


def members(files: Sequence[tuple[File, Path]], root: RootFs) -> tuple[Member, ...]:
    """What installing .deb files changes in an image; a package that is there already stays.

    `BuildError` where installing takes more than files.
    """
    status = root.contents.get(STATUS)
    if status is None:
        raise BuildError(
            "the base image has no dpkg status, so packages cannot be recorded in it",
            "Name a Debian base image (--base-image REF), or use --builder buildkit.",
        )
    stanzas = {_key(s): s for s in _stanzas(status.decode())}
    found: dict[str, Member] = {}
    for file, path in files:
        for member in _package(file, path, root, stanzas):
            before = found.get(member.path)
            if before is not None and (before.kind, member.kind) != ("folder", "folder"):
                raise _refused(file, f"another package has /{member.path}, too")
            found[member.path] = member
    if not found:
        return ()
    text = "".join(stanzas[k] + "\n\n" for k in sorted(stanzas))
    found[STATUS] = Member(path=STATUS, content=text.encode())
    found[f"{STATUS}-old"] = Member(path=f"{STATUS}-old")
    for there, entry in root.entries.items():
        if _OLD.fullmatch(there) or there in _LOCKS:
            found[there] = Member(path=there, mode=entry.mode, uid=entry.uid, gid=entry.gid)
    return tuple(found.values())


def _package(
    file: File, path: Path, root: RootFs, stanzas: dict[tuple[str, str], str]
) -> Iterator[Member]:
    with deb_members.opened(file, path) as package:
        control = package.control.tgz()
        times = {m.name.removeprefix("./"): int(m.mtime) for m in control.getmembers() if m.isreg()}
        parts = {n: _content(control, control.getmember(f"./{n}")) for n in times}
        stanza = parts.pop("control").decode().strip("\n")
        fields = _fields(stanza)
        deb_members.require_named(file, fields)
        _require_files_only(file, parts)
        key = (fields["Package"], fields["Architecture"])
        if key in stanzas:
            if _fields(stanzas[key])["Version"] == fields["Version"]:
                return
            raise _refused(file, "the base image has another version of it")
        stanzas[key] = _installed(fields)
        data = package.data.tgz()
        listed = ["/."]
        for name, member in deb_members.members(file, data):
            listed.append(f"/{name}")
            if not name.startswith(_LEFT_OUT):
                yield from _placed(file, data, member, name, root)
    same = fields.get("Multi-Arch") == "same"
    record = f"{_INFO}/{fields['Package']}" + (f":{fields['Architecture']}" if same else "")
    yield Member(path=f"{record}.list", content=("\n".join(listed) + "\n").encode())
    for kind, content in parts.items():
        yield Member(path=f"{record}.{kind}", content=content, time=times[kind])


def _require_files_only(file: File, parts: Mapping[str, bytes]) -> None:
    more = sorted(set(parts) - set(_RECORDS))
    if more:
        raise _refused(file, f"installing it runs or keeps {', '.join(more)}")
    lines = [s for line in parts.get("triggers", b"").decode().splitlines() if (s := line.strip())]
    if any(line != _TRIGGER and not line.startswith("#") for line in lines):
        raise _refused(file, "it triggers more than ldconfig")


def _refused(file: File, why: str) -> BuildError:
    return BuildError(
        f"{file.basename}: cannot be unpacked into an image: {why}", "Use --builder buildkit."
    )


def _placed(
    file: File, data: tarfile.TarFile, member: tarfile.TarInfo, name: str, root: RootFs
) -> Iterator[Member]:
    """A package's file where the base's links lead: /lib is one on merged systems."""
    folder, _, base = name.rpartition("/")
    place = f"{_folder(file, folder, root)}/{base}".lstrip("/")
    if place.startswith(_OURS) and not member.isdir():
        raise _refused(file, f"/{place} is in a folder of envbuilder's or dpkg's own")
    there = root.entries.get(place)
    time = int(member.mtime)
    owned = Member(path=place, mode=member.mode, uid=member.uid, gid=member.gid, time=time)
    if member.isdir():
        if there is None:
            yield replace(owned, kind="folder")
        return
    if there is not None:
        raise _refused(file, f"/{place} is in the base image already")
    if member.issym():
        yield replace(owned, kind="link", mode=0o777, target=member.linkname)
    else:
        yield replace(owned, content=_content(data, member))


def _folder(file: File, folder: str, root: RootFs) -> str:
    """A folder where the base's links lead; what is not there yet lies below what is."""
    parts = folder.split("/") if folder else []
    for known in range(len(parts), -1, -1):
        above = "/".join(parts[:known])
        resolved = root.resolve(above) if above else ""
        if resolved is None and above not in root.entries:
            continue
        if resolved is None or (resolved and root.entries[resolved].kind != "folder"):
            raise _refused(file, f"/{above} of the base image is no folder")
        return "/".join(filter(None, [resolved, *parts[known:]]))
    raise AssertionError("the root is there")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    if stream is None:
        raise BuildError(f"{member.name}: a link that leads nowhere")
    return stream.read()


# --- dpkg's text format


def _stanzas(text: str) -> Iterator[str]:
    return (s.strip("\n") for s in text.split("\n\n") if s.strip())


def _fields(stanza: str) -> dict[str, str]:
    """Field → value, continuation lines as they stand."""
    found: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in {" ", "\t"}:
            found[name] += f"\n{line}"
            continue
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found


def _key(stanza: str) -> tuple[str, str]:
    """What dpkg sorts by."""
    fields = _fields(stanza)
    return fields.get("Package", ""), fields.get("Architecture", "")


def _installed(fields: Mapping[str, str]) -> str:
    stated = {**fields, "Status": _INSTALLED}
    order = [*(f for f in _FIELDS if f in stated), *(f for f in stated if f not in _FIELDS)]
    return "\n".join(f"{name}: {stated[name]}" for name in order)
