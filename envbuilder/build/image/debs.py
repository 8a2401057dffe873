"""Install Debian packages without dpkg: produce the files and records that dpkg would leave.

Only for packages that consist of files alone, without maintainer scripts or configuration files.
The one trigger allowed is ldconfig, whose cache the dynamic loader does not need for libraries in
its default folders. All other packages are refused. Tests compare the result with dpkg's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envbuilder.build import conventions
from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError
from envbuilder.core.text import escaped
from envbuilder.packages.debian import deb

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from envbuilder.containers.oci.rootfs import RootFs
    from envbuilder.profiles.lock import File

STATUS = "var/lib/dpkg/status"
_INFO = "var/lib/dpkg/info"
_OLD = re.compile(r"var/(lib/dpkg|cache/debconf)/[^/]+-old")
"""Backups of earlier states, which the Dockerfile empties after dpkg."""
_LOCKS = frozenset(f"var/lib/dpkg/{n}" for n in ("lock", "lock-frontend", "triggers/Lock"))
"""Empty files whose mtime dpkg changes."""
_LEFT_OUT = ("usr/share/doc/", "usr/share/man/")
"""Folders that dpkg in the Dockerfile excludes as well."""
_RECORDS = ("md5sums", "shlibs", "symbols", "triggers")
"""Control files that dpkg keeps in addition to a package's file list."""
_RESERVED = tuple(
    f"{folder.strip('/')}/"
    for folder in (
        *(
            conventions.PREFIX,
            conventions.PAYLOAD.rpartition("/")[0],
            conventions.HOME,
            conventions.WORK,
        ),
        "var/lib/dpkg",
    )
)
"""Folders that no package may install files into."""
_TRIGGER = "activate-noawait ldconfig"
# The order in which dpkg writes the fields it knows; others follow in the package's order.
_FIELDS = (
    *("Package", "Essential", "Protected", "Status", "Priority", "Section", "Installed-Size"),
    *("Origin", "Maintainer", "Bugs", "Architecture", "Multi-Arch", "Source", "Version"),
    *("Config-Version", "Replaces", "Provides", "Depends", "Pre-Depends", "Recommends"),
    *("Suggests", "Breaks", "Conflicts", "Enhances", "Conffiles", "Description"),
)
_INSTALLED = "install ok installed"


def members(files: Sequence[tuple[File, Path]], root: RootFs) -> tuple[Member, ...]:
    """Return what installing .deb files changes in an image; installed packages are kept.

    Raise `BuildError` if a package needs more than its files.
    """
    status = root.contents.get(STATUS)
    if status is None:
        raise BuildError(
            "the base image has no dpkg status, so packages cannot be recorded in it",
            "Name a Debian base image (--base-image REF), or use --builder buildkit.",
        )
    stanzas = {_key(s): s for s in _stanzas(status.decode(errors="replace"))}
    changed: dict[str, Member] = {}
    for file, path in files:
        for member in _package(file, path, root, stanzas):
            before = changed.get(member.path)
            if before is not None and (before.kind, member.kind) != ("folder", "folder"):
                raise _refused(file, f"another package also has /{member.path}")
            changed[member.path] = member
    if not changed:
        return ()
    text = "".join(stanzas[k] + "\n\n" for k in sorted(stanzas))
    changed[STATUS] = Member(path=STATUS, content=text.encode())
    changed[f"{STATUS}-old"] = Member(path=f"{STATUS}-old")
    for existing, entry in root.entries.items():
        if _OLD.fullmatch(existing) or existing in _LOCKS:
            changed[existing] = Member(path=existing, mode=entry.mode, uid=entry.uid, gid=entry.gid)
    return tuple(changed.values())


def _package(
    file: File, path: Path, root: RootFs, stanzas: dict[tuple[str, str], str]
) -> Iterator[Member]:
    with deb.opened(file, path) as package:
        control = package.control()
        parts = {name: content for name, (content, _) in control.items()}
        stanza = _text(file, parts.pop("control")).strip("\n")
        fields = _fields(stanza)
        deb.require_named(file, fields)
        _require_files_only(file, parts)
        key = (fields["Package"], fields["Architecture"])
        if key in stanzas:
            if _fields(stanzas[key]).get("Version") == fields["Version"]:
                return
            raise _refused(file, "the base image has another version of it")
        stanzas[key] = _installed(fields)
        data = package.data()
        contents: dict[str, bytes] = {}
        for name, member in deb.members(file, data):
            if member.isreg():
                contents[name] = b"".join(data.pieces(member))
            elif member.islnk():
                contents[name] = contents[deb.member_path(file, member.linkname)]
            else:
                contents[name] = b""
            if not name.startswith(_LEFT_OUT):
                yield from _placed(file, member, name, contents[name], root)
    same = fields.get("Multi-Arch") == "same"
    record = f"{_INFO}/{fields['Package']}" + (f":{fields['Architecture']}" if same else "")
    listed = "".join(f"/{name}\n" for name in (".", *contents))
    yield Member(path=f"{record}.list", content=listed.encode())
    for kind, content in parts.items():
        time = int(control[kind][1])
        yield Member(path=f"{record}.{kind}", content=content, time=time)


def _require_files_only(file: File, parts: Mapping[str, bytes]) -> None:
    more = sorted(set(parts) - set(_RECORDS))
    if more:
        raise _refused(file, f"it has control files that only dpkg handles: {', '.join(more)}")
    lines = [
        s for line in _text(file, parts.get("triggers", b"")).splitlines() if (s := line.strip())
    ]
    if any(line != _TRIGGER and not line.startswith("#") for line in lines):
        raise _refused(file, "it activates triggers other than ldconfig")


def _refused(file: File, reason: str) -> BuildError:
    return BuildError(
        f"{file.basename}: cannot be unpacked into an image: {escaped(reason, deb.LONGEST_REASON)}",
        "Use --builder buildkit.",
    )


def _placed(
    file: File, member: tarfile.TarInfo, name: str, content: bytes, root: RootFs
) -> Iterator[Member]:
    """Yield a package's file at the path the base's links resolve to, such as /lib if merged."""
    folder, _, base = name.rpartition("/")
    path = f"{_folder(file, folder, root)}/{base}".lstrip("/")
    if path.startswith(_RESERVED) and not member.isdir():
        raise _refused(file, f"/{path} is in a folder reserved for envbuilder or dpkg")
    existing = root.entries.get(path)
    time = int(member.mtime)
    placed = Member(path=path, mode=member.mode, uid=member.uid, gid=member.gid, time=time)
    if member.isdir():
        if existing is None:
            yield replace(placed, kind="folder")
        return
    if existing is not None:
        raise _refused(file, f"/{path} is in the base image already")
    if member.issym():
        yield replace(placed, kind="link", mode=0o777, target=member.linkname)
    else:
        yield replace(placed, content=content)


def _folder(file: File, folder: str, root: RootFs) -> str:
    """Resolve a folder through the base's links; missing parts go below the existing ones."""
    parts = folder.split("/") if folder else []
    for depth in range(len(parts), -1, -1):
        parent = "/".join(parts[:depth])
        resolved = root.resolve(parent) if parent else ""
        if resolved is None and parent not in root.entries:
            continue
        if resolved is None or (resolved and root.entries[resolved].kind != "folder"):
            raise _refused(file, f"/{parent} of the base image is not a folder")
        return "/".join(filter(None, [resolved, *parts[depth:]]))
    raise AssertionError("the root is there")


def _text(file: File, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _refused(file, "a control file is not UTF-8 text") from error


# --- dpkg's text format


def _stanzas(text: str) -> Iterator[str]:
    return (s.strip("\n") for s in text.split("\n\n") if s.strip())


def _fields(stanza: str) -> dict[str, str]:
    """Return field → value, continuation lines unchanged."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in {" ", "\t"} and name:
            fields[name] += f"\n{line}"
            continue
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    return fields


def _key(stanza: str) -> tuple[str, str]:
    """Return dpkg's sort key."""
    fields = _fields(stanza)
    return fields.get("Package", ""), fields.get("Architecture", "")


def _installed(fields: Mapping[str, str]) -> str:
    values = {**fields, "Status": _INSTALLED}
    order = [*(f for f in _FIELDS if f in values), *(f for f in values if f not in _FIELDS)]
    return "\n".join(f"{name}: {values[name]}" for name in order)
