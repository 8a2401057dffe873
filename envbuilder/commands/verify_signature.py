"""`envbuilder verify-signature`: check signatures of files, and of images in a registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import json_option
from envbuilder.core import console
from envbuilder.core.errors import InvalidError
from envbuilder.packages import configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.signatures.keyless import Identity
    from envbuilder.signatures.keys import PublicKey
    from envbuilder.signatures.statement import Signed

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_OF_KIND = {"lock": "locks", "bundle": "bundles"}
"""Kinds of files → their keys in the configuration; all others are attestations of images."""


@click.command("verify-signature", short_help="Check signatures of files and images.")
@click.argument("files", nargs=-1, type=_FILE, metavar="[FILE]...")
@click.option(
    "--key",
    "named",
    multiple=True,
    type=_FILE,
    metavar="PUB",
    help="Public key that must have signed; with several, one of them. Without it, signatures: of"
    " the configuration.",
)
@click.option("--image", metavar="REF", help="An image in a registry.")
@click.option(
    "--attestation",
    type=click.Choice(("sbom", "provenance")),
    multiple=True,
    help="With --image: its signed SBOM or provenance must be there, too.",
)
@click.option("--signature", type=_FILE, help="The signature of a single file, if not next to it.")
@click.option("--identity", help="Who signed without a key; checked by cosign or gh.")
@click.option("--issuer", help="With --identity: who vouches for that identity (a URL).")
@json_option
def command(
    files: tuple[Path, ...],
    named: tuple[Path, ...],
    image: str | None,
    attestation: tuple[str, ...],
    signature: Path | None,
    identity: str | None,
    issuer: str | None,
    as_json: bool,
) -> None:
    """Check who signed files or an image, and that the signature is about these very bytes.

    Of a provenance, the builder is checked as well, and the artifact next to it. Exit code 5: there
    is no signature, or it is not accepted; the message says which.

    \b
    Examples:
      envbuilder verify-signature --key team.pub profiles/locks/cpu.json
      envbuilder verify-signature --key team.pub cpu.tar.provenance.json
      envbuilder verify-signature --key team.pub --image ghcr.io/me/cpu:1 --attestation provenance
      envbuilder verify-signature --identity me@example.com --issuer https://id.example cpu.tar
    """
    if bool(files) == (image is not None):
        raise InvalidError("nothing to check, or too much", "Name either files or --image REF.")
    if attestation and image is None:
        raise InvalidError("--attestation is for images", "Add --image REF.")
    if signature and len(files) != 1:
        raise InvalidError("--signature is for one file", "Leave --signature out.")
    if (identity is None) != (issuer is None) or (identity and (named or attestation or signature)):
        raise InvalidError(
            "--identity and --issuer belong together, without --key, --attestation and --signature",
            "Use either a key or an identity.",
        )
    settings = configuration.load()
    if identity and issuer:
        from envbuilder.signatures.keyless import Identity

        signed = _by_identity(files, image, Identity(name=identity, issuer=issuer))
    elif image is not None:
        signed = _image(image, attestation, _keys(named, "images", settings), settings)
    else:
        signed = [_file(path, signature, named, settings) for path in files]
    if as_json:
        console.data({"schema": 1, "signed": signed})
        return
    for accepted in signed:
        console.result(f"{accepted.name}: signed by {accepted.keyid}")
        console.result(f"  {accepted.type}")
        console.result(f"  {accepted.digest}")


def _keys(named: Sequence[Path], kind: str, settings: Settings) -> tuple[PublicKey, ...]:
    from envbuilder.signatures import keys

    configured = getattr(settings.configuration.signatures, kind)
    trusted = tuple(map(str, named)) or configured
    if not trusted:
        raise InvalidError(
            f"no public key is given, and the configuration names none for {kind}",
            f"Add --key PUB, or signatures: {{{kind}: [PUB]}} to envbuilder.yaml.",
        )
    return keys.publics(trusted)


def _file(path: Path, signature: Path | None, named: Sequence[Path], settings: Settings) -> Signed:
    from envbuilder.commands import signable
    from envbuilder.signatures import beside

    what = signable.recognized(path)
    trusted = _keys(named, _OF_KIND.get(what.kind, "images"), settings)
    files = [signature or beside.path_for(path)]
    statement, signed = beside.require(str(path), files, trusted, what.type, what.digests)
    signable.require_same(what, statement, str(path))
    if what.note:
        console.progress().note(f"note: {path}: {what.note}")
    return signed


def _image(
    ref: str, attestations: Sequence[str], trusted: Sequence[PublicKey], settings: Settings
) -> list[Signed]:
    from envbuilder.commands import signable
    from envbuilder.containers.oci import reference
    from envbuilder.containers.registry import manifests, signed_images, transfer

    parsed = reference.parse(ref)
    connection = transfer.connect(parsed, settings)
    image, _ = manifests.read(connection, parsed.tag_or_digest)
    signed = [signed_images.require_signed(connection, image.digest, trusted)[1]]
    for name in attestations:
        kind = signable.TYPES[name]
        where = f"{connection.name}@{image.digest}"
        statement, about = signed_images.require_attested(connection, image.digest, trusted, kind)
        if name == "provenance":
            signable.require_builder(statement, where)
        signed.append(about)
    return signed


def _by_identity(files: Sequence[Path], image: str | None, identity: Identity) -> list[Signed]:
    from envbuilder.commands import signable
    from envbuilder.signatures import keyless
    from envbuilder.signatures.statement import Signed

    who = f"{identity.name} ({identity.issuer})"
    if image is not None:
        keyless.require(keyless.image_command(image, identity), image)
        return [Signed(name=image, digest="", type="image", keyid=who)]
    signed = []
    for path in files:
        what = signable.recognized(path)
        keyless.require(keyless.file_command(path, what.type, identity), str(path))
        digest = ":".join(next(iter(what.digests.items())))
        signed.append(Signed(name=str(path), digest=digest, type=what.type, keyid=who))
    return signed
