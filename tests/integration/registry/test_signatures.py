"""Signatures by envbuilder, Debian's cosign, and podman's policy: each accepts the others'.

cosign runs without its transparency log, which needs the internet; skopeo reads podman's
`policy.json` through the library that podman uses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.build.attestation import provenance
from envbuilder.containers.engine import images as engines
from envbuilder.containers.oci import reference
from envbuilder.containers.oci.layout import Layout
from envbuilder.containers.registry import transfer
from envbuilder.containers.registry.connection import Connection
from envbuilder.core import resources
from envbuilder.core.console import PlainProgress
from envbuilder.signatures import statement as statements
from tests.conftest import missing
from tests.support import image_layouts as images
from tests.support import signing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from envbuilder.containers.engine.interface import Engine
    from tests.integration.conftest import Cli
    from tests.support.registry_server import Registry

    Tool = Callable[..., subprocess.CompletedProcess[str]]

LOCK = "urn:envbuilder:lock:v1"
PASSPHRASE = "of this test"
OFFLINE = ("--insecure-ignore-tlog", "--private-infrastructure")
HTTP = ("--allow-insecure-registry", "--allow-http-registry")


def _tool(name: str, folder: Path) -> Tool:
    if shutil.which(name) is None:
        missing(name, f"{name} is not installed")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [name, *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "COSIGN_PASSWORD": PASSPHRASE},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def cosign(tmp_path: Path) -> Tool:
    """Debian's cosign with a key of its own: `cosign.key`, `cosign.pub`."""
    run = _tool("cosign", tmp_path)
    assert run("generate-key-pair").returncode == 0
    return run


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock in the test's folder."""
    source = resources.profiles_dir() / "locks" / "cpu.json"
    return shutil.copy(source, tmp_path / "cpu.json")


@pytest.fixture(params=["p256", "ed25519"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The kind of `ours.pem` and `other.pem`, whose public keys are beside them."""
    for name in ("ours.pem", "other.pem"):
        signing.lay_key(tmp_path / name, request.param)
    kind: str = request.param
    return kind


@pytest.fixture
def image(registry: Registry, tmp_path: Path) -> str:
    """An image in a registry, by its digest."""
    layout = Layout.create(tmp_path / "layout")
    made = images.image(layout, b"a layer")
    connection = Connection(reference.parse(f"{registry.host}/me/image:1"))
    silent = PlainProgress(lambda line: None)
    transfer.push(connection, "1", layout, made, tmp_path / "uploads", silent)
    return f"{connection.name}@{made.digest}"


@pytest.fixture
def attestation(image: str, tmp_path: Path) -> Path:
    """A provenance of the image, as a build writes it."""
    subject = statements.Subject(name=image, digest={"sha256": image.rpartition(":")[2]})
    predicate = {
        "buildDefinition": {"buildType": provenance.BUILD_TYPE, "externalParameters": {}},
        "runDetails": {"builder": {"id": provenance.BUILDER}},
    }
    path = tmp_path / "image.provenance.json"
    path.write_bytes(statements.make([subject], provenance.PREDICATE, predicate))
    return path


def accepted(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr
    return done


def refused(done: subprocess.CompletedProcess[str], why: str = "") -> None:
    assert done.returncode == 5, (done.returncode, done.stderr)
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_cosign_verifies_what_we_signed(cli: Cli, cosign: Tool, lock: Path, keys: str) -> None:
    def blob(key: str, kind: str = LOCK) -> subprocess.CompletedProcess[str]:
        return cosign(
            *("verify-blob-attestation", *OFFLINE, "--key", key, "--type", kind),
            *("--signature", "cpu.json.intoto.jsonl", "cpu.json"),
        )

    accepted(cli("sign", "--key", "ours.pem", "cpu.json"))
    assert "Verified OK" in accepted(blob("ours.pub")).stderr
    assert blob("other.pub").returncode != 0
    assert blob("ours.pub", "urn:envbuilder:sbom:v1").returncode != 0
    accepted(cli("sign", "--key", "other.pem", "cpu.json"))  # a second signature beside it
    for key in ("ours.pub", "other.pub"):
        accepted(blob(key))
        accepted(cli("verify-signature", "--key", key, "cpu.json"))
    lock.write_bytes(lock.read_bytes() + b" ")
    assert blob("ours.pub").returncode != 0
    refused(cli("verify-signature", "--key", "ours.pub", "cpu.json"), "about other content")


def test_we_verify_what_cosign_signed(cli: Cli, cosign: Tool, lock: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    accepted(
        cosign(
            *("attest-blob", "--yes", "--tlog-upload=false", "--key", "cosign.key"),
            *("--type", LOCK, "--predicate", "empty.json"),
            *("--output-signature", "by-cosign", "cpu.json"),
        )
    )

    def verify(key: str) -> subprocess.CompletedProcess[str]:
        return cli("verify-signature", "--key", key, "--signature", "by-cosign", "cpu.json")

    signing.lay_key(tmp_path / "other.pem")
    accepted(verify("cosign.pub"))
    refused(verify("other.pub"), "not by a trusted key")
    lock.write_bytes(lock.read_bytes() + b" ")
    refused(verify("cosign.pub"), "about other content")
    done = cli("sign", "--key", "cosign.key", "cpu.json")
    assert done.returncode == 2
    assert "cosign's own encrypted format" in done.stderr


def test_cosign_verifies_our_images(
    cli: Cli, cosign: Tool, image: str, attestation: Path, keys: str
) -> None:
    def verify(key: str, *more: str) -> subprocess.CompletedProcess[str]:
        return cosign("verify", *OFFLINE, *HTTP, "--key", key, *more, image)

    assert verify("ours.pub").returncode != 0
    accepted(cli("sign", "--key", "ours.pem", "--image", image, attestation.name))
    accepted(verify("ours.pub"))
    assert verify("other.pub").returncode != 0
    statement = ("verify-attestation", *OFFLINE, *HTTP, "--type", "slsaprovenance1")
    accepted(cosign(*statement, "--key", "ours.pub", image))
    assert cosign(*statement, "--key", "other.pub", image).returncode != 0
    ours = ("verify-signature", "--key", "ours.pub", "--image", image)
    accepted(cli(*ours, "--attestation", "provenance"))
    refused(cli(*ours, "--attestation", "sbom"), "expected https://cyclonedx.org/bom")
    refused(cli("verify-signature", "--key", "other.pub", "--image", image), "trusted key")


def test_cosign_finds_our_signature_as_a_referrer(
    cli: Cli, cosign: Tool, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.lay_key(tmp_path / "ours.pem")
    accepted(cli("sign", "--key", "ours.pem", "--image", image))
    done = subprocess.run(
        [
            *("cosign", "verify", *OFFLINE, *HTTP, "--experimental-oci11"),
            *("--key", str(tmp_path / "ours.pub"), image),
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COSIGN_EXPERIMENTAL": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    accepted(done)


def test_we_verify_cosign_s_images(cli: Cli, cosign: Tool, image: str, tmp_path: Path) -> None:
    signing.lay_key(tmp_path / "ours.pem")
    refused(cli("verify-signature", "--key", "cosign.pub", "--image", image), "not signed")
    accepted(cli("sign", "--key", "ours.pem", "--image", image))
    by_cosign = ("--yes", "--tlog-upload=false", "--key", "cosign.key", *HTTP)
    accepted(cosign("sign", *by_cosign, image))
    (tmp_path / "bom.json").write_text('{"bomFormat": "CycloneDX"}')
    accepted(cosign("attest", *by_cosign, "--type", "cyclonedx", "--predicate", "bom.json", image))
    for key in ("cosign.pub", "ours.pub"):  # beside each other
        accepted(cli("verify-signature", "--key", key, "--image", image))
    theirs = ("verify-signature", "--image", image, "--attestation", "sbom", "--key")
    accepted(cli(*theirs, "cosign.pub"))
    refused(cli(*theirs, "ours.pub"))


def test_a_provenance_is_attached_to_its_own_image_only(
    cli: Cli, image: str, attestation: Path, tmp_path: Path
) -> None:
    signing.lay_key(tmp_path / "ours.pem")
    changed = attestation.read_text().replace(image.rpartition(":")[2], "a" * 64)
    attestation.write_text(changed)
    done = cli("sign", "--key", "ours.pem", "--image", image, attestation.name)
    refused(done, "about other content")
    refused(cli("verify-signature", "--key", "ours.pub", "--image", image), "not signed")


def test_podman_s_policy_accepts_and_refuses(
    cli: Cli, image: str, registry: Registry, tmp_path: Path, keys: str
) -> None:
    skopeo = _tool("skopeo", tmp_path)
    folder = tmp_path / "registries.d"
    folder.mkdir()
    attachments = {"docker": {registry.host: {"use-sigstore-attachments": True}}}
    (folder / "local.yaml").write_text(json.dumps(attachments))

    def copy(key: str, ref: str = image) -> subprocess.CompletedProcess[str]:
        requirement: dict[str, Any] = {
            "type": "sigstoreSigned",
            "keyPath": str(tmp_path / key),
            "signedIdentity": {"type": "matchRepository"},
        }
        policy = {
            "default": [{"type": "reject"}],
            "transports": {"docker": {f"{registry.host}/me/image": [requirement]}},
        }
        (tmp_path / "policy.json").write_text(json.dumps(policy))
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        done = skopeo(
            *("--policy", "policy.json", "--registries.d", "registries.d", "copy"),
            *("--src-tls-verify=false", f"docker://{ref}", "dir:copy"),
        )
        if "sigstore disabled" in done.stderr:
            missing("skopeo", "this skopeo was built without sigstore, as in Debian 12")
        return done

    assert "signature" in copy("ours.pub").stderr
    assert copy("ours.pub").returncode != 0
    accepted(cli("sign", "--key", "ours.pem", "--image", image))
    accepted(copy("ours.pub"))
    accepted(copy("ours.pub", image.partition("@")[0] + ":1"))
    assert copy("other.pub").returncode != 0


@pytest.mark.engine
@pytest.mark.network
def test_a_build_requires_signatures_of_lock_and_base(
    cli: Cli, tiny: Path, real_engine: Engine, base_image: str, registry: Registry, tmp_path: Path
) -> None:
    described = real_engine.image(base_image)
    assert described is not None
    layout = engines.export(real_engine, described, tmp_path / "base")
    (base,) = layout.index().manifests
    connection = Connection(reference.parse(f"{registry.host}/me/base:1"))
    silent = PlainProgress(lambda line: None)
    transfer.push(connection, "1", layout, base, tmp_path / "uploads", silent)
    ref = f"{connection.name}@{base.digest}"
    signing.lay_key(tmp_path / "ours.pem")
    own = {"ENVBUILDER_DATA_DIR": str(tmp_path / "data")}

    def build() -> subprocess.CompletedProcess[str]:
        return cli(
            *("build", "--profile", "tiny", "--builder", "layers", "--base-image", ref),
            *("--output", "tiny.tar", "--require-signature", "ours.pub", "--json"),
            environment=own,
        )

    try:
        refused(build(), "tiny.json: not signed")
        accepted(cli("sign", "--key", "ours.pem", str(tiny)))
        refused(build(), f"{ref}: not signed")
        accepted(cli("sign", "--key", "ours.pem", "--image", ref))
        built = json.loads(accepted(build()).stdout)
        registry.stop()  # the signature was stored, and the engine has the base
        accepted(build())
    finally:
        subprocess.run(["docker", "image", "rm", ref], capture_output=True, check=False)
    document = json.loads((tmp_path / "tiny.tar.provenance.json").read_text())
    recorded = document["predicate"]["buildDefinition"]["internalParameters"]["signatures"]
    assert [(s["name"], s["type"]) for s in recorded] == [
        ("tiny.json", LOCK),
        (ref, "cosign container image signature"),
    ]
    assert built["documents"]["provenance"] == str(tmp_path / "tiny.tar.provenance.json")
    accepted(cli("sign", "--key", "ours.pem", "tiny.tar.provenance.json"))
    done = accepted(cli("verify-signature", "--key", "ours.pub", "tiny.tar.provenance.json"))
    assert built["artifact"]["config_digest"] in done.stdout
