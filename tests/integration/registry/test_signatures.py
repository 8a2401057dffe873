"""Signatures of files by envbuilder and Debian's cosign, each of which accepts the other's.

cosign also signs images, by the digest that a push prints. It runs without its transparency log,
which needs the internet.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import Engine
from envbuilder.core import resources
from tests.conftest import exited, missing, ran
from tests.integration.conftest import Cli
from tests.support import signing
from tests.support.registry_server import Registry

Tool = Callable[..., subprocess.CompletedProcess[str]]

LOCK = "urn:envbuilder:lock:v1"
PASSPHRASE = "of this test"
OFFLINE = ("--insecure-ignore-tlog", "--private-infrastructure")
HTTP = ("--allow-insecure-registry", "--allow-http-registry")


@pytest.fixture
def cosign(tmp_path: Path) -> Tool:
    """Debian's cosign with a key of its own: `cosign.key`, `cosign.pub`."""
    if shutil.which("cosign") is None:
        missing("cosign", "cosign is not installed")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ran(
            ["cosign", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COSIGN_PASSWORD": PASSPHRASE},
        )

    assert run("generate-key-pair").returncode == 0
    return run


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock in the test's folder."""
    source = resources.profiles_dir() / "locks/cpu.json"
    return shutil.copy(source, tmp_path / "cpu.json")


@pytest.fixture(params=["p256", "ed25519"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The kind of `ours.pem` and `other.pem`, whose public keys are beside them."""
    for name in ("ours.pem", "other.pem"):
        signing.lay_key(tmp_path / name, request.param)
    kind: str = request.param
    return kind


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
            "verify-blob-attestation",
            *OFFLINE,
            "--key",
            key,
            "--type",
            kind,
            "--signature",
            "cpu.json.intoto.jsonl",
            "cpu.json",
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
    refused(cli("verify-signature", "--key", "ours.pub", "cpu.json"), "does not match the file")


def test_we_verify_what_cosign_signed(cli: Cli, cosign: Tool, lock: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    accepted(
        cosign(
            "attest-blob",
            "--yes",
            "--tlog-upload=false",
            "--key",
            "cosign.key",
            "--type",
            LOCK,
            "--predicate",
            "empty.json",
            "--output-signature",
            "cpu.json.intoto.jsonl",
            "cpu.json",
        )
    )

    def verify(key: str) -> subprocess.CompletedProcess[str]:
        return cli("verify-signature", "--key", key, "cpu.json")

    signing.lay_key(tmp_path / "other.pem")
    accepted(verify("cosign.pub"))
    refused(verify("other.pub"), "not by a trusted key")
    lock.write_bytes(lock.read_bytes() + b" ")
    refused(verify("cosign.pub"), "does not match the file")
    done = exited(2, cli("sign", "--key", "cosign.key", "cpu.json"))
    assert "cosign's own encrypted format" in done.stderr


@pytest.fixture
def build(cli: Cli, tiny: Path, real_engine: Engine, base_image: str, tmp_path: Path) -> Tool:
    """`build(*options)`: the profile `tiny` by the builder `layers`, as JSON."""
    described = real_engine.image(base_image)
    base = engines.export(real_engine, described, tmp_path / "base").folder

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return cli(
            "build",
            "--profile",
            "tiny",
            "--base-image",
            f"oci:{base}",
            "--json",
            *options,
            environment={"ENVBUILDER_DATA_DIR": str(tmp_path / "data")},
        )

    return run


@pytest.mark.engine
@pytest.mark.network
def test_cosign_signs_and_verifies_the_digest_that_a_push_prints(
    build: Tool, cosign: Tool, registry: Registry, tmp_path: Path
) -> None:
    """As in docs/guides/signatures.md."""
    pushed = json.loads(accepted(build("--push", f"{registry.host}/me/tiny:1")).stdout)
    digest = pushed["artifact"]["manifest_digest"]
    image = f"{registry.host}/me/tiny@{digest}"
    signing.lay_key(tmp_path / "other.pem")

    def verify(key: str) -> subprocess.CompletedProcess[str]:
        return cosign("verify", *OFFLINE, *HTTP, "--key", key, image)

    assert "no signatures found" in verify("cosign.pub").stderr
    accepted(cosign("sign", "--yes", "--tlog-upload=false", "--key", "cosign.key", *HTTP, image))
    (signed,) = json.loads(accepted(verify("cosign.pub")).stdout)
    assert signed["critical"]["image"]["docker-manifest-digest"] == digest
    assert verify("other.pub").returncode != 0


@pytest.mark.engine
@pytest.mark.network
def test_a_build_requires_the_signature_of_its_lock(
    cli: Cli, build: Tool, tiny: Path, tmp_path: Path
) -> None:
    signing.lay_key(tmp_path / "ours.pem")
    required = ("--output", "tiny.tar", "--require-signature", "ours.pub")
    refused(build(*required), "tiny.json: not signed")
    accepted(cli("sign", "--key", "ours.pem", str(tiny)))
    built = json.loads(accepted(build(*required)).stdout)
    document = json.loads((tmp_path / "tiny.tar.provenance.json").read_text())
    (recorded,) = document["predicate"]["buildDefinition"]["internalParameters"]["signatures"]
    assert (recorded["name"], recorded["type"]) == ("tiny.json", LOCK)
    assert built["documents"]["provenance"] == str(tmp_path / "tiny.tar.provenance.json")
    accepted(cli("sign", "--key", "ours.pem", "tiny.tar.provenance.json"))
    done = accepted(cli("verify-signature", "--key", "ours.pub", "tiny.tar.provenance.json"))
    assert built["artifact"]["config_digest"] in done.stdout
