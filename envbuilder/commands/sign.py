"""`envbuilder sign`: sign files with a key."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.commands.options import json_option
from envbuilder.core import console
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.signatures.keys import PrivateKey

PASSPHRASE = "ENVBUILDER_KEY_PASSPHRASE"  # noqa: S105 (the name of a variable)
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_LONGEST = 1024


@click.command("sign", short_help="Sign locks, bundles, SBOMs and provenances with a key.")
@click.argument("files", nargs=-1, type=_FILE, metavar="FILE...", required=True)
@click.option("--key", required=True, type=_FILE, help="Private key, PKCS#8 in PEM.")
@click.option(
    "--passphrase-file",
    type=_FILE,
    help=f"File whose first line is the key's passphrase; else {PASSPHRASE}, else it is asked for.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the signature of a single file, instead of FILE.intoto.jsonl.",
)
@json_option
def command(
    files: tuple[Path, ...],
    key: Path,
    passphrase_file: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Sign locks, bundles, SBOMs and provenances, each into FILE.intoto.jsonl next to it.

    Keys are P-256 or ed25519, as openssl makes them.

    \b
    Examples:
      openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes256 -out team.pem
      openssl pkey -in team.pem -pubout -out team.pub
      envbuilder sign --key team.pem profiles/locks/cpu.json
      envbuilder sign --key team.pem cpu.tar cpu.sbom.cdx.json
    """
    if output is not None and len(files) != 1:
        raise InvalidError("--output is for the signature of one file", "Leave --output out.")
    from envbuilder.signatures import keys

    note = console.progress().note
    private = keys.private(key, _passphrase(key, passphrase_file), note)
    results = [_sign_file(path, private, output) for path in files]
    if as_json:
        console.data({"schema": 1, "keyid": private.public.id, "signed": results})
        return
    for result in results:
        console.result(f"{result['name']}: {result['kind']}, signed: {result['where']}")
    console.result(f"key {private.public.id}")


def _sign_file(path: Path, key: PrivateKey, output: Path | None) -> dict[str, str]:
    from envbuilder.commands import signable
    from envbuilder.signatures import statement

    what = signable.recognized(path)
    written = statement.write_file(output or statement.path_beside(path), what.statement, key)
    return {"name": str(path), "kind": what.kind, "where": str(written)}


def _passphrase(key: Path, file: Path | None) -> Callable[[], bytes]:
    """Return a function that returns a key's passphrase, from a file, a variable or the terminal.

    It is never an argument: other users could read those.
    """

    def read() -> bytes:
        if file is not None:
            try:
                with file.open("rb") as stream:
                    return stream.readline(_LONGEST).rstrip(b"\r\n")
            except OSError as error:
                raise InvalidError(f"{file}: cannot be read: {error.strerror or error}") from error
        if PASSPHRASE in os.environ:
            return os.fsencode(os.environ[PASSPHRASE])
        if not sys.stdin.isatty():
            raise InvalidError(
                f"{key}: the key is encrypted, and there is no terminal to ask for its passphrase",
                f"Use --passphrase-file FILE, or set {PASSPHRASE}.",
            )
        asked: str = click.prompt(f"Passphrase of {key}", hide_input=True, err=True)
        return asked.encode()

    return read
