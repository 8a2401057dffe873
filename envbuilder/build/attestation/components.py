"""List the components of an environment, from a lock's target or from what is installed.

Each component is identified by a package URL, which other tools understand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from envbuilder.build.attestation.licences import METADATA_LIMIT, stated
from envbuilder.core.errors import InvalidError
from envbuilder.profiles import lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from envbuilder.profiles.lock import File

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
Kind = Literal["library", "application", "container"]


class Component(Struct, frozen=True, kw_only=True):
    """A component that an environment contains or is built with."""

    kind: Kind
    name: str
    version: str
    purl: str
    sha256: str = ""
    """sha256 of the file that it came in, if known."""
    licences: tuple[str, ...] = ()
    """Licences as declared by its author."""
    installed: bool = True
    """False for a build-time tool."""
    facts: tuple[tuple[str, str], ...] = ()
    """Further properties: name and value."""


def locked(
    files: Iterable[File], licences: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Component, ...]:
    """Return locked files as components; `licences` by a file's sha256."""
    known = licences or {}
    return tuple(_of_file(f, known.get(f.sha256, ())) for f in files)


def of_base(ref: str, digest: str, platform: str) -> Component:
    """Return a base image as a component; a digest in `ref` takes precedence over `digest`.

    `digest` is the image's id on this machine. It is left out if it is not a sha256 digest: an
    engine's own id may be of another kind.
    """
    name, _, named = ref.partition("@")
    digest = next((d for d in (named, digest) if _DIGEST.fullmatch(d)), "")
    return Component(
        kind="container",
        name=name,
        version=digest,
        purl=image_purl(name, digest, platform, published=digest == named),
        sha256=digest.removeprefix("sha256:"),
    )


def _of_file(file: File, licences: tuple[str, ...]) -> Component:
    return Component(
        kind="application" if file.kind == "tool" else "library",
        name=file.name,
        version=file.version,
        purl=file_purl(file),
        sha256=file.sha256,
        licences=licences,
        installed=file.kind != "tool",
        facts=(
            ("file", file.basename),
            ("source", file.source),
            ("hash", file.provenance),
            ("hash-by", file.by),
        ),
    )


def file_purl(file: File) -> str:
    """Return the package URL of a locked file."""
    from packageurl import PackageURL

    if file.kind in {"wheel", "tool"}:
        return pypi_purl(file.name, file.version)
    if file.kind == "deb":
        architecture = file.basename.removesuffix(".deb").rpartition("_")[2]
        return debian_purl(file, architecture)
    if file.kind == "conda":
        return _conda_purl(file)
    return PackageURL("generic", None, file.name, file.version).to_string()


def _conda_purl(file: File) -> str:
    from packageurl import PackageURL

    kind = "conda" if file.basename.endswith(".conda") else "tar.bz2"
    build = file.basename.removesuffix(f".{kind}").rpartition("-")[2]
    where = {"channel": file.source, "subdir": file.file.partition("/")[0]}
    qualifiers = {"build": build, **where, "type": kind}
    return PackageURL("conda", None, file.name, file.version, qualifiers).to_string()


def pypi_purl(name: str, version: str) -> str:
    """Return the package URL of a Python distribution."""
    from packageurl import PackageURL

    return PackageURL("pypi", None, name, version).to_string()


def debian_purl(file: File, architecture: str) -> str:
    """Return the package URL of a locked .deb; its vendor is Debian, or else its source's name."""
    vendor = "debian" if file.source in {lock.MAIN, lock.SECURITY} else file.source
    return _deb_purl(vendor, file.name, file.version, architecture, suite(file))


def suite(file: File) -> str:
    """Return the suite that lists a .deb, without `-updates` or `-security`; empty if unknown."""
    seen = re.match(r"([a-z]+)(-[a-z]+)? Release of ", file.by)
    return seen[1] if seen else ""


def _deb_purl(vendor: str, name: str, version: str, architecture: str, distro: str) -> str:
    from packageurl import PackageURL

    qualifiers = {k: v for k, v in (("arch", architecture), ("distro", distro)) if v}
    return PackageURL("deb", vendor, name, version, qualifiers).to_string()


def image_purl(ref: str, digest: str, platform: str, *, published: bool) -> str:
    """Return the package URL of an image: `pkg:oci` if its digest is known, else `pkg:docker`.

    `ref` has no digest; it may be a folder or an archive. `published`: its registry knows it by
    this digest; otherwise the URL does not name the registry.
    """
    from packageurl import PackageURL

    from envbuilder.containers.oci import reference

    architecture = platform.rpartition("/")[2]
    try:
        parsed = reference.parse(ref)
    except InvalidError:  # a folder or an archive
        name = ref.rstrip("/").rpartition("/")[2]
        return PackageURL("oci", None, name, digest, {"arch": architecture}).to_string()
    folder, _, name = parsed.repository.rpartition("/")
    if not digest:
        return PackageURL("docker", folder, name, parsed.tag).to_string()
    qualifiers = {
        "arch": architecture,
        **({"repository_url": parsed.name} if published else {}),
        **({"tag": parsed.tag} if parsed.tag else {}),
    }
    return PackageURL("oci", None, name, digest, qualifiers).to_string()


def installed(prefix: Path) -> tuple[Component, ...]:
    """Return the Python distributions in a prefix, read from `dist-info`; sorted by package URL."""
    components = []
    for path in prefix.glob("lib/python3.*/site-packages/*.dist-info/METADATA"):
        with path.open("rb") as stream:
            component = of_metadata(stream.read(METADATA_LIMIT))
        if component is not None:
            components.append(component)
    return tuple(sorted(components, key=lambda c: c.purl))


def of_metadata(metadata: bytes) -> Component | None:
    """Return the distribution that a METADATA file describes; None if it has no name or version."""
    from packaging.metadata import parse_email

    raw, _ = parse_email(metadata)
    name, version = raw.get("name", ""), raw.get("version", "")
    if not (name and version and name.isprintable() and version.isprintable()):
        return None
    return Component(
        kind="library",
        name=name,
        version=version,
        purl=pypi_purl(name, version),
        licences=stated(metadata),
    )


def of_packages(packages: Mapping[str, str], distro: str) -> tuple[Component, ...]:
    """Return a Debian system's packages (name → version) as components, sorted by package URL."""
    components = (
        Component(
            kind="library",
            name=name,
            version=version,
            purl=_deb_purl("debian", name, version, "", distro),
        )
        for name, version in packages.items()
    )
    return tuple(sorted(components, key=lambda c: c.purl))
