"""Check signatures by identity, without a key: by cosign or gh, if one is installed.

That needs certificates, a transparency log and their trust root, which these programs have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from envbuilder.core import process
from envbuilder.core.errors import InvalidError, SignatureError, ToolError
from envbuilder.core.text import printable

if TYPE_CHECKING:
    from pathlib import Path

BUNDLE = ".sigstore.json"
"""Suffix of the file next to a signed one in which cosign and gh keep signature and certificate."""
TIMEOUT_SECONDS = 120.0
_REPOSITORY = re.compile(r"https://github\.com/([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)/")


class Identity(Struct, frozen=True, kw_only=True):
    """Who must have signed: the identity in the certificate, and who vouches for it."""

    name: str
    issuer: str


def file_command(path: Path, predicate_type: str, identity: Identity) -> tuple[str, ...]:
    """Return the command that checks a file with the `.sigstore.json` next to it.

    Raise `ToolError` if no program for it is installed.
    """
    bundle = str(path.with_name(path.name + BUNDLE))
    if process.which("cosign"):
        return (
            *("cosign", "verify-blob-attestation", "--new-bundle-format", "--bundle", bundle),
            *("--type", predicate_type, *_cosign(identity), "--", str(path)),
        )
    return (
        *("gh", "attestation", "verify", str(path.absolute()), "--bundle", bundle),
        *("--predicate-type", predicate_type, *_gh(identity)),
    )


def image_command(ref: str, identity: Identity) -> tuple[str, ...]:
    """Return the command that checks an image in its registry; raise as `file_command`."""
    if process.which("cosign"):
        return ("cosign", "verify", *_cosign(identity), "--", ref)
    return ("gh", "attestation", "verify", f"oci://{ref}", *_gh(identity))


def require(command: tuple[str, ...], where: str) -> None:
    """Run such a command; raise `SignatureError` if the program does not accept the signature."""
    done = process.run(command, timeout=TIMEOUT_SECONDS)
    if done.returncode == 0 and not done.timed_out:
        return
    why = "it took too long" if done.timed_out else printable(done.last_words, 600, lines=True)
    raise SignatureError(
        f"{where}: not accepted by {command[0]}: {why}",
        f"Compare the identity and the issuer; {command[0]} also needs its trust root, which it"
        " downloads.",
    )


def _cosign(identity: Identity) -> tuple[str, ...]:
    return ("--certificate-identity", identity.name, "--certificate-oidc-issuer", identity.issuer)


def _gh(identity: Identity) -> tuple[str, ...]:
    if not process.which("gh"):
        raise ToolError(
            "signatures by identity are checked by cosign or gh, and neither is installed",
            "Install cosign (Debian 13: sudo apt install cosign), or use a key: --key PUB.",
        )
    repository = _REPOSITORY.match(identity.name)
    if repository is None:
        raise InvalidError(
            "gh checks signatures of GitHub's workflows only, and --identity names none",
            "Install cosign, or name a workflow: https://github.com/OWNER/REPO/.github/workflows/…",
        )
    return (
        *("--cert-identity", identity.name, "--cert-oidc-issuer", identity.issuer),
        *("--repo", repository[1]),
    )
