"""Write the SBOM of an environment: its components and their licenses, in CycloneDX 1.6.

Components are the files in a lock, or the installed packages. Each component is identified by a
package URL, which other tools understand. Licenses are copied from METADATA files and conda
channels without interpretation. The same components always give the same bytes.

The format is CycloneDX rather than SPDX, because CycloneDX can express a file's hash, build-time
components, base images and licenses that are not SPDX expressions. The CycloneDX library writes and
validates the format.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from envbuilder.core import archives
from envbuilder.core.errors import InvalidError
from envbuilder.profiles.lock import DIRECT, MAIN, SECURITY, File, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cyclonedx.model import ExternalReference
    from cyclonedx.model.component import Component as CycloneComponent

    from envbuilder.packages.conda.lock import Package
    from envbuilder.packages.store import Store

MEDIA_TYPE = "application/vnd.cyclonedx+json"
SUFFIX = ".sbom.cdx.json"
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:envbuilder:sbom")
"""UUID namespace of the serial numbers. Each serial number is derived from the content of its
document."""
METADATA_LIMIT = 4 << 20
"""Maximum number of bytes to read from a METADATA file, which contains a long description."""
LONGEST = 120
"""Maximum number of characters in the name of a license. Longer names are ignored, because they may
be complete license texts."""
_CLASSIFIER = "License ::"
_EMPTY = frozenset({"", "unknown", "none", "n/a"})
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Component(Struct, frozen=True, kw_only=True):
    """A component that an environment contains, or that was used to build it."""

    kind: Literal["library", "application", "container"]
    name: str
    version: str
    purl: str
    sha256: str = ""
    """The sha256 of the component's file. Empty if it is unknown."""
    licences: tuple[str, ...] = ()
    """The licenses declared by the component's author."""
    installed: bool = True
    """Whether the environment contains the component. False for a tool that was used only in the
    build."""
    facts: tuple[tuple[str, str], ...] = ()
    """Additional properties, as pairs of a name and a value."""
    recipe: Recipe | None = None
    """The source of a component that does not come from an index. None for all other components."""


def document(name: str, parts: Iterable[Component], facts: Mapping[str, str]) -> bytes:
    """Return a CycloneDX document that lists the components (`parts`) of the environment `name`.

    `facts` are additional properties of the environment. The document contains no timestamps or
    random numbers. Its serial number is derived from its content.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    # The library sorts components by comparing many fields: sorted ones need few comparisons.
    ordered = sorted(
        parts,
        key=lambda item: (item.kind, item.name, item.version, item.purl),
    )
    tool = Component(name="envbuilder", type=ComponentType.APPLICATION)
    root = Component(
        name=name, type=ComponentType.APPLICATION, bom_ref=f"urn:envbuilder:environment:{name}"
    )
    properties = [Property(name=f"envbuilder:{k}", value=v) for k, v in facts.items()]
    metadata = BomMetaData(
        tools=ToolRepository(components=[tool]), component=root, properties=properties
    )
    bom = Bom(metadata=metadata, components=list(map(_component, ordered)))
    bom.register_dependency(root, bom.components)
    data = json.loads(JsonV1Dot6(bom).output_as_string())
    del data["metadata"]["timestamp"], data["serialNumber"]
    data["serialNumber"] = uuid.uuid5(NAMESPACE, hashlib.sha256(encoded(data)).hexdigest()).urn
    return encoded(data)


def encoded(data: dict[str, Any]) -> bytes:
    """Encode a document as indented JSON with sorted keys."""
    return (json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _component(component: Component) -> CycloneComponent:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentScope, ComponentType, Pedigree
    from cyclonedx.model.license import LicenseAcknowledgement
    from packageurl import PackageURL

    factory = LicenseFactory()
    declared = LicenseAcknowledgement.DECLARED
    is_built = component.recipe is not None and component.recipe.kind != "wheel"
    if len(component.licences) == 1:
        licences = [
            factory.make_from_string(component.licences[0], license_acknowledgement=declared)
        ]
    else:
        # CycloneDX allows a single expression; several licences have to be given as names.
        licences = [factory.make_with_name(t, acknowledgement=declared) for t in component.licences]
    return Component(
        type=ComponentType(component.kind),
        name=component.name,
        version=component.version or None,
        bom_ref=component.purl,
        purl=PackageURL.from_string(component.purl),
        scope=ComponentScope.REQUIRED if component.installed else ComponentScope.EXCLUDED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=component.sha256)]
        if component.sha256
        else [],
        licenses=licences,
        properties=[Property(name=f"envbuilder:{k}", value=v) for k, v in component.facts],
        external_references=[_source(component)] if component.recipe else [],
        pedigree=Pedigree(notes="built from its source by envbuilder") if is_built else None,
    )


def _source(component: Component) -> ExternalReference:
    """Return a reference to a component's source. For a Git repository, include the commit."""
    from cyclonedx.model import (
        ExternalReference,
        ExternalReferenceType,
        HashAlgorithm,
        HashType,
        XsUri,
    )

    recipe = component.recipe
    assert recipe is not None, "no index has it"
    of_git = recipe.kind == "git"
    kinds = {"git": ExternalReferenceType.VCS, "wheel": ExternalReferenceType.DISTRIBUTION}
    return ExternalReference(
        type=kinds.get(recipe.kind, ExternalReferenceType.SOURCE_DISTRIBUTION),
        url=XsUri(f"git+{recipe.location}@{recipe.commit}" if of_git else recipe.location),
        comment=f"its folder {recipe.subdirectory}" if recipe.subdirectory else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=recipe.sha256)],
    )


# --- components


def locked_components(
    files: Iterable[File], licences: Mapping[str, tuple[str, ...]] = {}
) -> tuple[Component, ...]:
    """Return the locked files as components.

    `licences` maps the sha256 of a file to the licenses of its package.
    """
    components = []
    for file in files:
        facts = {
            "file": file.basename,
            "source": file.source,
            "hash": file.provenance,
            "hash-by": file.by,
        }
        components.append(
            Component(
                kind="application" if file.kind in {"tool", "python"} else "library",
                name=file.name,
                version=file.version,
                purl=file_purl(file),
                sha256=file.sha256,
                licences=licences.get(file.sha256, ()),
                installed=file.kind != "tool",
                facts=tuple(facts.items()),
                recipe=file.recipe,
            )
        )
    return tuple(components)


def of_base(ref: str, digest: str, platform: str) -> Component:
    """Return a base image as a component.

    `digest` is the image's digest or its ID in the engine. A digest in `ref` takes precedence over
    `digest`. The digest is omitted from the component unless it is a sha256 digest, because engines
    may use other kinds of IDs.
    """
    name, _, digest_of_ref = ref.partition("@")
    digest = next(filter(_DIGEST.fullmatch, (digest_of_ref, digest)), "")
    return Component(
        kind="container",
        name=name,
        version=digest,
        purl=_image_purl(name, digest, platform, published=digest == digest_of_ref),
        sha256=digest.removeprefix("sha256:"),
    )


def of_metadata(metadata: bytes) -> Component | None:
    """Return the distribution that a METADATA file describes, as a component.

    Return None if the name or the version is missing or not printable.
    """
    from packaging.metadata import parse_email

    raw, _ = parse_email(metadata)
    name = raw.get("name", "")
    version = raw.get("version", "")
    if not (name and version and name.isprintable() and version.isprintable()):
        return None
    return Component(
        kind="library",
        name=name,
        version=version,
        purl=purl("pypi", None, name, version),
        licences=declared_licences(metadata),
    )


def installed(prefix: Path) -> tuple[Component, ...]:
    """Return the Python distributions in a prefix as components, sorted by package URL.

    The distributions are found by their `dist-info` folders.
    """
    components = []
    for path in prefix.glob("lib/python3.*/site-packages/*.dist-info/METADATA"):
        with path.open("rb") as stream:
            component = of_metadata(stream.read(METADATA_LIMIT))
        if component is not None:
            components.append(component)
    return tuple(sorted(components, key=lambda c: c.purl))


def of_packages(packages: Mapping[str, str], distro: str) -> tuple[Component, ...]:
    """Return Debian packages as components, sorted by package URL.

    `packages` maps names to versions, and `distro` is the Debian suite.
    """
    components = []
    for name, version in packages.items():
        components.append(
            Component(
                kind="library",
                name=name,
                version=version,
                purl=purl("deb", "debian", name, version, distro=distro),
            )
        )
    return tuple(sorted(components, key=lambda c: c.purl))


# --- package URLs


def purl(kind: str, namespace: str | None, name: str, version: str, **qualifiers: str) -> str:
    """Return a package URL. Empty qualifiers are omitted."""
    from packageurl import PackageURL

    known = {key: value for key, value in qualifiers.items() if value}
    return PackageURL(kind, namespace, name, version or None, known).to_string()


def file_purl(file: File) -> str:
    """Return the package URL of a locked file."""
    kind = "generic"
    vendor = None
    qualifiers: dict[str, str] = {}
    if file.recipe and file.recipe.kind == "path":
        pass  # no index knows it
    elif file.kind in {"wheel", "tool", "source"}:
        kind = "pypi"
        if file.recipe and file.recipe.kind == "git":
            qualifiers = {"vcs_url": f"git+{file.recipe.location}@{file.recipe.commit}"}
        elif file.recipe and file.source == DIRECT:
            qualifiers = {"download_url": file.recipe.location}
    elif file.kind == "deb":
        kind = "deb"
        vendor = "debian" if file.source in {MAIN, SECURITY} else file.source
        architecture = file.basename.removesuffix(".deb").rpartition("_")[2]
        qualifiers = {"arch": architecture, "distro": suite(file)}
    elif file.kind == "conda":
        kind = "conda"
        form = "conda" if file.basename.endswith(".conda") else "tar.bz2"
        build = file.basename.removesuffix(f".{form}").rpartition("-")[2]
        where = {"channel": file.source, "subdir": file.file.partition("/")[0]}
        qualifiers = {"build": build, **where, "type": form}
    return purl(kind, vendor, file.name, file.version, **qualifiers)


def suite(file: File) -> str:
    """Return the name of the Debian suite that a .deb file comes from, such as `bookworm`.

    The name does not include `-updates` or `-security`. Return an empty string if the suite is
    unknown.
    """
    seen = re.match(r"([a-z]+)(-[a-z]+)? Release of ", file.by)
    return seen[1] if seen else ""


def _image_purl(ref: str, digest: str, platform: str, *, published: bool) -> str:
    """Return the package URL of an image: `pkg:oci` if its digest is known, else `pkg:docker`.

    `ref` is a name without a digest, or the path of a folder or an archive. `published` says
    whether the registry has the image under this digest. If not, the URL omits the registry.
    """
    from envbuilder.containers.oci import reference

    architecture = platform.rpartition("/")[2]
    try:
        parsed = reference.parse(ref)
    except InvalidError:  # a folder or an archive
        return purl("oci", None, ref.rstrip("/").rpartition("/")[2], digest, arch=architecture)
    folder, _, name = parsed.repository.rpartition("/")
    if not digest:
        return purl("docker", folder, name, parsed.tag or "")
    registry = parsed.name if published else ""
    return purl(
        "oci",
        None,
        name,
        digest,
        arch=architecture,
        repository_url=registry,
        tag=parsed.tag or "",
    )


# --- licences


def declared_licences(metadata: bytes) -> tuple[str, ...]:
    """Return the licenses that a METADATA file declares.

    The licenses are taken from the field `License-Expression`. If that field is missing, they are
    taken from `License`, and if both fields are missing, from the license classifiers.
    """
    from packaging.metadata import parse_email

    raw, _ = parse_email(metadata)
    for key, limit in (("license_expression", METADATA_LIMIT), ("license", LONGEST)):
        text = str(raw.get(key, "")).strip()
        if _usable(text, limit):
            return (text,)
    leaves = set()
    for classifier in raw.get("classifiers", []):
        leaf = classifier.rpartition("::")[2].strip()
        if classifier.startswith(_CLASSIFIER) and _usable(leaf, LONGEST):
            leaves.add(leaf)
    return tuple(sorted(leaves))


def _usable(text: str, limit: int) -> bool:
    return len(text) <= limit and text.isprintable() and text.lower() not in _EMPTY


def wheel_licences(files: Iterable[File], store: Store) -> dict[str, tuple[str, ...]]:
    """Return the licenses of the wheels that are in the store, by the wheel's sha256."""
    licences = {}
    for file in files:
        if file.kind in {"wheel", "tool"} and store.has(file.sha256):
            names = store.derived(
                file.sha256,
                "licences-1",
                tuple[str, ...],
                lambda path: declared_licences(read_metadata(path)),
            )
            if names:
                licences[file.sha256] = names
    return licences


def conda_licences(packages: Iterable[Package]) -> dict[str, tuple[str, ...]]:
    """Return the licenses that the channels specify for conda packages, by the package's sha256."""
    return {p.sha256: (p.license,) for p in packages if _usable(p.license, LONGEST)}


def read_metadata(wheel: Path) -> bytes:
    """Return the content of a wheel's METADATA file, or b"" if it is missing or unreadable.

    The store hashes wheels on arrival. A wheel that was damaged later must not abort a report on
    licenses, and in any case it cannot be installed.
    """
    try:
        with archives.open_zip(wheel) as archive:
            for path in archive.namelist():
                if re.fullmatch(r"[^/]*\.dist-info/METADATA", path):
                    return archives.zip_content(archive, path, METADATA_LIMIT)
    except (OSError, *archives.BAD_ZIP):
        pass
    return b""
