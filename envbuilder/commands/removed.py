"""Commands and options that were removed, and what to do instead."""

from __future__ import annotations

import click

_METRICS = {"--metrics": "make metrics from what `envbuilder fleet show --json` prints"}
_BY_IDENTITY = (
    "cosign checks signatures without a key. Run: cosign verify-blob-attestation --type TYPE"
    " --new-bundle-format --bundle FILE.sigstore.json --certificate-identity NAME"
    " --certificate-oidc-issuer URL FILE"
)
INSTEAD = {
    "clean": {
        "--all-images": "an image of another installation may be somebody else's. Remove those that"
        " are yours by their names, which `clean` lists: docker rmi NAME",
    },
    "doctor": {
        "--fix": "each problem is printed with its commands, ready to copy",
        "--yes": "nothing is changed, so nothing is asked",
    },
    "fleet show": _METRICS,
    "fleet verify": _METRICS,
    "lock": {
        "--audit": "scanners read envbuilder's SBOM and know more. Run: envbuilder sbom --profile"
        " NAME --output sbom.cdx.json, then grype sbom:sbom.cdx.json, trivy sbom sbom.cdx.json or"
        " osv-scanner scan -L sbom.cdx.json",
        "--online": "the download says what is gone. Run: envbuilder bundle"
        " --profile NAME, which fetches every file",
        "--bundle": "`envbuilder unbundle` brings a bundle's files",
    },
    "sign": {
        "--image": "cosign signs images. Run: cosign sign --key cosign.key REF@sha256:…, with the"
        " digest of the manifest that build --push prints",
    },
    "verify": {
        "--tune": "it is a command of its own now. Run: envbuilder tune",
    },
    "verify-signature": {
        "--image": "cosign checks images. Run: cosign verify --key PUB REF@sha256:…",
        "--attestation": "files are checked, not what is attached to an image. Run: envbuilder"
        " verify-signature --key PUB FILE",
        "--identity": _BY_IDENTITY,
        "--issuer": _BY_IDENTITY,
    },
}
"""Command → removed option → the end of the sentence that refuses it."""
COMMANDS = {
    "fleet collect": "save the log of each Job as FOLDER/results/NAME.json, by the commands in the"
    " README.md that `fleet render` wrote. Then run: envbuilder fleet show FOLDER",
}
"""Removed command → the end of the sentence that refuses it."""


def refusal(error: click.ClickException) -> str:
    """Return the sentence that refuses what was removed; empty for every other error."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    name = error.ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        removed, instead = error.option_name, INSTEAD.get(name, {}).get(error.option_name)
    else:
        removed = error.message.removeprefix("No such command '").removesuffix("'.")
        instead = COMMANDS.get(f"{name} {removed}")
    return f"`{name} {removed}` was removed: {instead}" if instead else ""
