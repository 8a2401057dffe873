"""Publish a built image: push it, recognize it in its registry, attach its attestations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.build.attestation import provenance, sbom
from envbuilder.build.image import records as image_records
from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import blobs, transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envbuilder.build.plan import Push
    from envbuilder.containers.oci.layout import Descriptor
    from envbuilder.core.console import Progress
    from envbuilder.core.settings import Settings

MEDIA_TYPES = {"sbom": sbom.MEDIA_TYPE, "provenance": provenance.MEDIA_TYPE}


def push(step: Push, progress: Progress) -> None:
    """Push the image of a layout, report how much was transferred, and keep a record of it."""
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
    record = image_records.ImageRecord(
        profile=step.profile,
        fingerprint=step.fingerprint,
        ref=step.ref,
        digest=config,
        ids=(config, done.digest),
        builder=step.builder,
        made_by=step.made_by,
    )
    image_records.keep(Path(step.folder), record)


def pushed_record(
    ref: str, fingerprint: str, settings: Settings
) -> image_records.ImageRecord | None:
    """Return the record of the image that a tag names, if built here for this fingerprint."""
    records = image_records.read(settings.records_dir / fingerprint)
    if not records:
        return None
    pushed = _tagged(_connect(ref, settings), ref)
    return next((r for r in records if pushed and pushed.digest in r.ids), None)


def require_allowed(ref: str, settings: Settings) -> None:
    """Raise `BuildError` if pushing to a reference is not allowed."""
    blobs.require_allowed(_connect(ref, settings))


def attach(
    ref: str,
    fingerprint: str,
    documents: Mapping[str, str],
    settings: Settings,
    progress: Progress,
) -> None:
    """Attach an image's attestations to it as referrers; existing ones are not changed.

    `documents` are paths by name. Raise `BuildError` if the tag now names another image.
    """
    import tempfile

    connection = _connect(ref, settings)
    image = _tagged(connection, ref)
    records = image_records.read(settings.records_dir / fingerprint)
    if image is None or not any(image.digest in r.ids for r in records):
        raise BuildError(
            f"{ref}: names another image than the one that was just pushed",
            "Another push replaced it. Run the same command again, or use another tag.",
        )
    about = provenance.Subject(name=connection.name, digest={"sha256": image.digest[7:]})
    silent = PlainProgress(lambda line: None)  # they are small
    with tempfile.TemporaryDirectory() as scratch:
        layout = Layout.create(Path(scratch))
        for name, path in documents.items():
            content = Path(path).read_bytes()
            if name == "provenance":
                content = provenance.also_about(content, about)
            kind = MEDIA_TYPES[name]
            made = transfer.make_referrer(layout, image, kind, kind, content)
            transfer.attach(connection, layout, made, settings.uploads_dir, silent)
    progress.note(f"attached to {connection.name}@{image.digest}: {', '.join(documents)}")


def _connect(ref: str, settings: Settings) -> Connection:
    return transfer.connect(reference.parse(ref), settings)


def _tagged(connection: Connection, ref: str) -> Descriptor | None:
    found = connection.find_manifest(reference.parse(ref).tag_or_digest)
    return found[0] if found else None
