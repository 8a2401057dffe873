"""`envbuilder verify-signature`: check signatures of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import json_option
from envbuilder.core import console
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.signatures.keys import PublicKey
    from envbuilder.signatures.statement import Signed

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("verify-signature", short_help="Check signatures of files.")
@click.argument("files", nargs=-1, type=_FILE, metavar="FILE...", required=True)
@click.option(
    "--key",
    "named",
    multiple=True,
    type=_FILE,
    metavar="PUB",
    help="Public key that must have signed; with several, one of them. Without it, signatures: of"
    " the configuration, for locks and bundles.",
)
@click.option("--signature", type=_FILE, help="The signature of a single file, if not next to it.")
@json_option
def command(
    files: tuple[Path, ...],
    named: tuple[Path, ...],
    signature: Path | None,
    as_json: bool,
) -> None:
    """Check who signed files, and that the signature is about these very bytes.

    Of a provenance, the builder is checked as well, and the artifact next to it. Exit code 5: there
    is no signature, or it is not accepted; the message says which.

    \b
    Examples:
      envbuilder verify-signature --key team.pub profiles/locks/cpu.json
      envbuilder verify-signature --key team.pub cpu.tar.provenance.json
    """
    if signature and len(files) != 1:
        raise InvalidError("--signature is for one file", "Leave --signature out.")
    settings = load_settings()
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

    signatures = settings.configuration.signatures
    configured = {"lock": signatures.locks, "bundle": signatures.bundles}
    trusted = tuple(map(str, named)) or configured.get(kind)
    if not trusted:
        raise InvalidError(
            f"no public key is given for a {kind}, and the configuration names none",
            "Add --key PUB, or for locks and bundles, signatures: to envbuilder.yaml.",
        )
    return keys.publics(trusted)


def _file(path: Path, signature: Path | None, named: Sequence[Path], settings: Settings) -> Signed:
    from envbuilder.commands import signable
    from envbuilder.signatures import statement as statements

    what = signable.recognized(path)
    trusted = _keys(named, what.kind, settings)
    files = [signature or statements.path_beside(path)]
    statement, signed = statements.require(str(path), files, trusted, what.type, what.digests)
    signable.require_same(what, statement, str(path))
    if what.note:
        console.progress().note(f"note: {path}: {what.note}")
    return signed
