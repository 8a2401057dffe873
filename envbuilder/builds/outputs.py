"""Images that a build saves to a file or folder, or pushes, instead of loading them.

If an earlier build has already pushed an image to a registry, a later build recognizes the image.
Attestations are attached to pushed images.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from envbuilder.builds import attestations, records as image_records
from envbuilder.builds.plan import Artifact, Plan, Push, Save, names_of, tool_versions
from envbuilder.builds.request import Product
from envbuilder.containers.engine.interface import LABEL
from envbuilder.containers.oci import archive, reference
from envbuilder.containers.oci.layer import compressor
from envbuilder.containers.oci.layout import Descriptor, Layout
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.containers.registry.push import require_allowed
from envbuilder.core import console
from envbuilder.core.errors import BuildError, EnvbuilderError
from envbuilder.core.signatures import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target

_Digests = tuple[str, str | None]
"""The digest of an image's configuration, and the digest of its manifest. The latter is None if
unknown."""


class Output(Product):
    """An image that a plan saves, pushes, or both. Commands cannot run in the image."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        settings: Settings,
    ) -> None:
        self.target = target
        self.plan = plan
        self._settings = settings

    def existing(self) -> Artifact | None:
        """Return the image if an earlier build has saved and pushed it as planned, else None.

        Raise `BuildError` if the image must be pushed but the registry does not allow it. Without
        this check, the build would fail only at its end.
        """
        delivered: list[_Digests | None] = []
        for step in self.plan.steps:
            if isinstance(step, Push):
                delivered.append(_pushed(step, self.plan.fingerprint, self._settings))
            elif isinstance(step, Save):
                delivered.append(_saved(step, self.plan))
        digests = delivered[0] if delivered else None
        if digests is None or None in delivered:
            return None
        return self.plan.artifact.identified(*digests)

    def made_by(self) -> dict[str, str]:
        """Return the versions of the programs that determine the image's bytes, by program name."""
        return tool_versions(self.plan) | {"zstd": str(compressor()["zstd"])}


def _saved(step: Save, plan: Plan) -> _Digests | None:
    """Return the digests of the plan's image if the target contains the image under all its names.

    The target is a file or folder. In a folder, the image may have additional names, and there may
    be other images. All bytes of the image are checked. Return None if the target does not contain
    the image or cannot be read.
    """

    def is_planned(config: dict[str, Any]) -> bool:
        labels = (config.get("config") or {}).get("Labels") or {}
        return bool(labels.get(f"{LABEL}fingerprint") == plan.fingerprint)

    names = {archive.named(name)[archive.NAME] for name in names_of(plan)}
    target = Path(step.target)
    try:
        for image in archive.held(target, is_planned):
            if image.names == names or (target.is_dir() and image.names > names):
                return image.digest, image.manifest
    except EnvbuilderError:
        return None
    return None


def _pushed(step: Push, fingerprint: str, settings: Settings) -> _Digests | None:
    """Return the digests of the image that the tag refers to, if a build on this machine pushed it.

    Otherwise, the image must be pushed: return None, or raise `BuildError` if the registry does not
    allow the push.
    """
    with console.progress().task(f"look up {step.ref}"):
        record = pushed_record(step.ref, fingerprint, settings)
        if record is None:
            require_allowed(_connect(step.ref, settings))
            return None
    return record.digest, record.manifest_digest


def pushed_record(
    ref: str, fingerprint: str, settings: Settings
) -> image_records.ImageRecord | None:
    """Return the record of the image that a tag refers to in its registry.

    Return None if that image was not made by a build on this machine with this fingerprint.
    """
    records = image_records.read(settings.records_dir / fingerprint)
    if not records:
        return None
    pushed = _tagged(_connect(ref, settings), ref)
    for record in records:
        if pushed and pushed.digest in record.ids:
            return record
    return None


def push(step: Push, progress: console.Progress) -> None:
    """Push the image in an OCI layout, print how much was transferred, and record the image."""
    target = reference.parse(step.ref)
    connection = Connection(target, plain_http=step.plain_http)
    layout = Layout(Path(step.layout))
    image = layout.index().manifests[0]
    config = layout.read_manifest(image).config.digest
    done = transfer.push(
        connection, target.tag_or_digest, layout, image, Path(step.uploads), progress
    )
    progress.note(
        f"pushed {target.name}@{done.digest}: {done.bytes / 1e6:.1f} MB in {done.sent} blobs"
        f" ({done.present} were already there, {done.mounted} came from other repositories)"
    )
    image_records.keep_built(step, step.ref, (config, done.digest))


def attach(
    ref: str,
    fingerprint: str,
    documents: Mapping[str, str],
    settings: Settings,
    progress: console.Progress,
) -> None:
    """Attach attestations to a pushed image as referrers, leaving existing referrers unchanged.

    `documents` maps the name of each attestation to its path. Raise `BuildError` if the tag now
    refers to another image.
    """
    connection = _connect(ref, settings)
    image = _tagged(connection, ref)
    records = image_records.read(settings.records_dir / fingerprint)
    if image is None or not any(image.digest in r.ids for r in records):
        raise BuildError(
            f"{ref} no longer refers to the image that was just pushed",
            "Another push replaced the tag. Run the same command again, or use another tag.",
        )
    about = Subject(name=connection.name, digest={"sha256": image.digest[7:]})
    silent = console.PlainProgress(lambda line: None)  # they are small
    with TemporaryDirectory() as scratch:
        layout = Layout.create(Path(scratch))
        for name, path in documents.items():
            content = Path(path).read_bytes()
            if name == "provenance":
                content = attestations.also_about(content, about)
            made = transfer.make_referrer(layout, image, attestations.MEDIA_TYPES[name], content)
            transfer.attach(connection, layout, made, image, settings.uploads_dir, silent)
    progress.note(f"attached to {connection.name}@{image.digest}: {', '.join(documents)}")


def _connect(ref: str, settings: Settings) -> Connection:
    return transfer.connect(reference.parse(ref), settings)


def _tagged(connection: Connection, ref: str) -> Descriptor | None:
    found = connection.find_manifest(reference.parse(ref).tag_or_digest)
    return found[0] if found else None
