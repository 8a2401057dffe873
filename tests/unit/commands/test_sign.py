"""`sign` and `verify-signature`: every kind of file, and each way to refuse a signature."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds import attestations
from envbuilder.builds.backends import integrity
from envbuilder.bundle import format as bundle_format
from envbuilder.commands import sign as module
from envbuilder.containers.oci.layout import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    Index,
    Layout,
    Manifest,
    digest_of,
    encode,
)
from envbuilder.core import resources, signatures
from envbuilder.core.console import PlainProgress
from tests.support import signing
from tests.support.command_line import FILE, Command
from tests.support.folders import read_json

SIGN = ("sign", "--key", "key.pem")
VERIFY = ("verify-signature", "--key", "key.pub")


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signing.lay_key(tmp_path / "key.pem")
    signing.lay_key(tmp_path / "other.pem", "ed25519")
    monkeypatch.delenv(module.PASSPHRASE, raising=False)


def statement(
    path: Path, digest: dict[str, str], builder: str = attestations.BUILDER, **more: Any
) -> Path:
    """A provenance as a build writes it."""
    predicate = {
        "buildDefinition": {"buildType": attestations.BUILD_TYPE, "externalParameters": more},
        "runDetails": {"builder": {"id": builder}},
    }
    subject = signatures.Subject(name="it", digest=digest)
    path.write_bytes(signatures.make_statement([subject], attestations.PREDICATE, predicate))
    return path


def lay_bundle(path: Path, content: bytes = b"itself") -> Path:
    member = bundle_format.Member(
        path="wheels/a-1-py3-none-any.whl", size=len(content), kind="wheel", what="a wheel",
        sha256=digest_of(content).removeprefix("sha256:"),
    )  # fmt: skip
    manifest = bundle_format.Manifest(
        schema=2, made_by="a test", profiles=(), platforms=(), pythons=(), lacks=(),
        members=(member,),
    )  # fmt: skip
    bundle_format.write(
        path,
        manifest,
        [bundle_format.Part(member=member, content=content)],
        PlainProgress(lambda line: None),
    )
    return path


def lay_lock(path: Path) -> Path:
    return shutil.copy(resources.profiles_dir() / "locks/mps.json", path)


def lay(kind: str, folder: Path) -> str:
    """A file of a kind; its name."""
    if kind == "lock":
        return lay_lock(folder / "mps.json").name
    if kind == "bundle":
        return lay_bundle(folder / "a.tar").name
    if kind == "sbom":
        path = folder / "a.sbom.cdx.json"
        path.write_text('{"bomFormat": "CycloneDX", "components": []}')
        return path.name
    return statement(folder / "a.provenance.json", {"sha256": "a" * 64}).name


KINDS = ("lock", "bundle", "sbom", "provenance")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_signed_and_verified(kind: str, envbuilder: Command, tmp_path: Path) -> None:
    name = lay(kind, tmp_path)
    assert f"{name}.intoto.jsonl" in envbuilder(*SIGN, name).out
    verify = (*VERIFY, name)
    out = envbuilder(*verify, "--key", "other.pub", "--json").out
    (signed,) = json.loads(out)["signed"]
    assert signed["keyid"] == signing.read_key(tmp_path / "key.pem").public.id
    assert signed["digest"] in envbuilder(*verify).out


@pytest.mark.parametrize("kind", KINDS)
def test_five_refusals_for_each_kind(kind: str, envbuilder: Command, tmp_path: Path) -> None:
    name = lay(kind, tmp_path)
    verify = (*VERIFY, name)
    signature = tmp_path / f"{name}.intoto.jsonl"

    unsigned = envbuilder(*verify, code=5).err
    assert "not signed" in unsigned

    envbuilder("sign", "--key", "other.pem", name)
    unknown = envbuilder(*verify, code=5).err
    assert "not by a trusted key" in unknown
    signature.unlink()

    envbuilder(*SIGN, name)
    right = signature.read_bytes()
    envelope = json.loads(right)
    payload = base64.b64decode(envelope["payload"]) + b" "
    signature.write_text(json.dumps(envelope | {"payload": base64.b64encode(payload).decode()}))
    changed = envbuilder(*verify, code=5).err
    assert "was changed" in changed

    other = lay("sbom" if kind == "lock" else "lock", tmp_path)
    envbuilder(*SIGN, other)
    (tmp_path / f"{other}.intoto.jsonl").replace(signature)
    wrong_type = envbuilder(*verify, code=5).err
    assert "signature is for urn:envbuilder:" in wrong_type

    signature.write_bytes(right)
    if kind == "bundle":
        lay_bundle(tmp_path / name, b"another")
    elif kind == "provenance":
        statement(tmp_path / name, {"sha256": "b" * 64})
    else:
        document = read_json(tmp_path / name)
        (tmp_path / name).write_text(json.dumps(document, indent=3))
    elsewhere = envbuilder(*verify, code=5).err
    assert "does not match the file" in elsewhere
    assert len({unsigned, unknown, changed, wrong_type, elsewhere}) == 5


def test_a_provenance_that_differs_from_what_was_signed(
    envbuilder: Command, tmp_path: Path
) -> None:
    """The subject is the same, the rest of it is not."""
    digest = {"sha256": "a" * 64}
    path = statement(tmp_path / "a.provenance.json", digest)
    envbuilder(*SIGN, path.name)
    statement(path, digest, baseImage="somebody else's")
    assert "the file differs from the signed content" in envbuilder(*VERIFY, path.name, code=5).err


def test_another_builder_is_refused(envbuilder: Command, tmp_path: Path) -> None:
    path = statement(tmp_path / "a.provenance.json", {"sha256": "a" * 64}, "urn:somebody")
    for command in (SIGN, VERIFY):
        assert "names the builder 'urn:somebody'" in envbuilder(*command, path.name, code=5).err
    for predicate in (None, [], {"buildDefinition": []}, {"buildDefinition": {"buildType": 1}}):
        subject = signatures.Subject(digest={"sha256": "a" * 64})
        path.write_bytes(signatures.make_statement([subject], attestations.PREDICATE, predicate))
        envbuilder(*SIGN, path.name, code=5)


def lay_image(folder: Path, *layers: bytes, named: tuple[bytes, ...] = ()) -> str:
    """An image in an OCI layout; its configuration names `named`, by default its layers."""
    layout = Layout.create(folder)
    ids = [digest_of(content) for content in named or layers]
    config = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": ids}}
    manifest = Manifest(
        schema_version=2,
        media_type=MANIFEST,
        config=layout.add(json.dumps(config).encode(), CONFIG),
        layers=tuple(layout.add(content, LAYER) for content in layers),
    )
    image = layout.add(encode(manifest), MANIFEST)
    layout.write_index(Index(schema_version=2, media_type=INDEX, manifests=(image,)))
    return manifest.config.digest


def test_the_image_next_to_its_provenance_is_compared(envbuilder: Command, tmp_path: Path) -> None:
    folder = tmp_path / "image"
    config = lay_image(folder, b"a layer")
    path = statement(tmp_path / "image.provenance.json", {"sha256": config[7:]})
    verify = (*VERIFY, path.name)
    envbuilder(*SIGN, path.name)
    compared = envbuilder(*verify)
    assert config in compared.out
    assert "was not compared" not in compared.err
    folder.rename(tmp_path / "elsewhere")
    assert "was not compared" in envbuilder(*verify).err
    lay_image(folder, b"another layer")
    for command in (verify, (*SIGN, path.name)):
        assert "does not match the file" in envbuilder(*command, code=5).err
    # The configuration is the one that was signed, but the layers are not those that it names.
    shutil.rmtree(folder)
    assert lay_image(folder, b"another layer", named=(b"a layer",)) == config
    assert "do not match its configuration" in envbuilder(*verify, code=1).err


def test_an_environment_next_to_its_provenance_is_read_again(
    envbuilder: Command, tmp_path: Path
) -> None:
    env = tmp_path / "env"
    (env / "lib").mkdir(parents=True)
    (env / "lib/a.py").write_text("a = 1\n")
    integrity.close(env, {"made_by": "envbuilder"})
    digest = integrity.marker(env)["digest"].removeprefix("sha256:")
    path = statement(tmp_path / "env.provenance.json", {"envbuilderTree": digest})
    envbuilder(*SIGN, path.name)
    envbuilder(*VERIFY, path.name)
    (env / "lib/a.py").write_text("a = 2\n")
    assert "does not match the file" in envbuilder(*VERIFY, path.name, code=5).err
    # Nor does it help to declare the file, and the list of such files, as host-dependent.
    (env / integrity.PLACED).write_text(f"lib/a.py\n{integrity.PLACED}\n")
    envbuilder(*VERIFY, path.name, code=5)


def test_a_signature_replaces_no_other_file(envbuilder: Command, tmp_path: Path) -> None:
    name = lay("lock", tmp_path)
    path = tmp_path / f"{name}.intoto.jsonl"
    path.write_text("mine")
    assert "is not a signature file" in envbuilder(*SIGN, name, code=2).err
    assert path.read_text() == "mine"


def test_other_files_are_not_signed(envbuilder: Command, tmp_path: Path) -> None:
    for content in (b"", b"{}", b"[1]", b"\xff", b"text", b"{" * 100_000):
        (tmp_path / "a.json").write_bytes(content)
        assert "not a lock, bundle" in envbuilder(*SIGN, "a.json", code=2).err
    path = lay_bundle(tmp_path / "a.tar")
    path.write_bytes(path.read_bytes().replace(b"itself", b"itsalf"))
    assert "damaged" in envbuilder(*SIGN, "a.tar", code=1).err


@pytest.mark.parametrize("how", ["variable", "terminal"])
def test_a_passphrase_is_never_an_argument(
    how: str, envbuilder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing.lay_key(tmp_path / "closed.pem", "p256", b"open sesame")
    name = lay("lock", tmp_path)
    command = ["sign", "--key", "closed.pem", name]
    assert f"Set {module.PASSPHRASE}" in envbuilder(*command, code=2).err
    for passphrase, expected in (("wrong", 2), ("open sesame", 0)):
        if how == "variable":
            monkeypatch.setenv(module.PASSPHRASE, passphrase)
        else:
            monkeypatch.setattr("sys.stdin.isatty", lambda: True)
            monkeypatch.setattr(module.click, "prompt", lambda text, p=passphrase, **o: p)
        assert "sesame" not in "".join(envbuilder(*command, code=expected)[1:])


def test_options_that_do_not_go_together(envbuilder: Command, tmp_path: Path) -> None:
    name = lay("lock", tmp_path)
    for arguments in (
        SIGN,
        VERIFY,
        ("verify-signature", name),
        ("verify-signature", "--key", "key.pem", name),
        ("verify-signature", "--key", "none.pub", name),
    ):
        ended = envbuilder(*arguments, code=2)
        assert ended.out == "", arguments
        assert "Traceback" not in ended.err


def test_the_configuration_s_keys(envbuilder: Command, tmp_path: Path) -> None:
    name = lay("lock", tmp_path)
    envbuilder(*SIGN, name)
    FILE.write_text("signatures:\n  locks: [key.pub]\n")
    envbuilder("verify-signature", name)
    FILE.write_text("signatures:\n  locks: [other.pub]\n")
    envbuilder("verify-signature", name, code=5)
    envbuilder("verify-signature", name, "--key", "key.pub")


@pytest.mark.parametrize("kind", ["sbom", "provenance"])
def test_attestations_have_no_key_in_the_configuration(
    kind: str, envbuilder: Command, tmp_path: Path
) -> None:
    FILE.write_text("signatures: {locks: [key.pub], bundles: [key.pub]}")
    assert "Add --key PUB" in envbuilder("verify-signature", lay(kind, tmp_path), code=2).err


KEPT = Path(__file__).parents[2] / "data/signed"
"""A lock and a bundle as 0.1.0 wrote them, each signed with an ed25519 and a P-256 key."""
KEY_IDS = {
    "ed25519": "0439953b0e47ad0186b1dbda4ed26fa1d662a8e9c4ff3e0b889597843fafe92e",
    "p256": "367e2370703d52e99e4093b9d12c95e219cf8dbfced2cf4aae89780c2168da13",
}


@pytest.mark.parametrize("name", ["tiny.json", "tiny.tar"])
@pytest.mark.parametrize("kind", [*KEY_IDS])
def test_signatures_of_earlier_versions_are_valid(
    kind: str, name: str, envbuilder: Command
) -> None:
    assert (
        f"signed by {KEY_IDS[kind]}"
        in envbuilder("verify-signature", "--key", str(KEPT / f"{kind}.pub"), str(KEPT / name)).out
    )


def test_a_signature_is_the_one_that_earlier_versions_made(
    envbuilder: Command, tmp_path: Path
) -> None:
    """ed25519 is deterministic: key id, statement and envelope must be the same."""
    for name in ("tiny.json", "tiny.tar"):
        shutil.copyfile(KEPT / name, tmp_path / name)
        envbuilder("sign", "--key", str(KEPT / "ed25519.pem"), name)
        made, kept = (read_json(folder / f"{name}.intoto.jsonl") for folder in (tmp_path, KEPT))
        assert made == kept | {
            "signatures": [s for s in kept["signatures"] if s["keyid"] == KEY_IDS["ed25519"]]
        }
