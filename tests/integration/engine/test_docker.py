"""The docker backend on a real engine: build, reuse, verify, run, and what can go wrong."""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envbuilder.builds import records as images
from envbuilder.containers.engine.interface import LABEL, Engine
from envbuilder.containers.oci import archive, reference
from envbuilder.containers.registry.connection import Connection
from envbuilder.core import archives
from tests.conftest import exited, ran, succeeded
from tests.integration.conftest import Cli, begin, locked, start
from tests.support import canaries, small_profiles
from tests.support.registry_server import Registry

Build = Callable[..., dict[str, Any]]

LOOK = (
    "id -u; echo $OMP_NUM_THREADS; ls -A /tmp;"
    " find /opt \\( -name '*.whl' -o -name '.uv' -o -name uv_cache.json"
    " -o -name uv -type f \\)"
)
NAMED = ("--profile", "cpu", "--backend", "docker")
CPU = (*NAMED, "--base-image")
BUILDKIT = ("--builder", "buildkit")


@pytest.fixture(scope="module")
def image(base_image: str, session_environment: dict[str, str]) -> dict[str, Any]:
    """The `cpu` image, as `build --json` describes it."""
    from tests.integration.conftest import start

    done = succeeded(start(("build", *CPU, base_image, "--json"), session_environment))
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_image_is_labelled_and_lean(
    docker_client: Any, image: dict[str, Any], session_environment: dict[str, str]
) -> None:
    found = docker_client.images.get(image["artifact"]["ref"])
    assert found.labels["io.envbuilder.fingerprint"] == image["fingerprint"]
    assert found.labels["io.envbuilder.profile"] == "cpu"
    assert len(found.labels["io.envbuilder.lock"]) == 64
    records = Path(session_environment["ENVBUILDER_DATA_DIR"], "records", image["fingerprint"])
    (record,) = images.read(records)
    assert image["artifact"]["digest"] == record.digest
    assert found.id in record.ids
    assert image["builder"] == "layers", "the default where it can make the image"
    inside = docker_client.containers.run(
        image["artifact"]["ref"], ["sh", "-c", LOOK], remove=True, network_mode="none"
    )
    user, threads, *leftovers = inside.decode().split("\n")
    assert user == "1000"
    assert int(threads) >= 1
    assert leftovers == [""]


def test_the_entrypoint_follows_the_quota(docker_client: Any, image: dict[str, Any]) -> None:
    shown = docker_client.containers.run(
        image["artifact"]["ref"],
        ["python", "-c", "import os; print(os.environ['OMP_NUM_THREADS'])"],
        remove=True,
        nano_cpus=1_000_000_000,
    )
    assert shown == b"1\n"


def test_run_passes_the_code_through_and_mounts_the_folder(
    cli: Cli, base_image: str, image: dict[str, Any], tmp_path: Path
) -> None:
    script = "import torch; open('made', 'w').write(torch.__version__); raise SystemExit(9)"
    base = {"ENVBUILDER_BASE_IMAGE": base_image}
    exited(9, cli("run", *NAMED, "--", "python", "-c", script, environment=base))
    made = tmp_path / "made"
    assert made.read_text() == "2.13.0+cpu"
    assert made.stat().st_uid == os.getuid()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    ("builder", "at"), [("buildkit", "build the image"), ("layers", "assemble the image")]
)
def test_a_killed_build_leaves_no_image_and_the_next_works(
    builder: str,
    at: str,
    number: signal.Signals,
    cli: Cli,
    base_image: str,
    image: dict[str, Any],
    docker_client: Any,
    real_engine: Engine,
    session_environment: dict[str, str],
    test_cache: Path,
) -> None:
    tag = f"envbuilder-test/killed:{builder}-{number.name.lower()}"
    if real_engine.image(tag):  # of an earlier run that could not be interrupted
        docker_client.images.remove(tag, force=True)

    def folders() -> set[str]:
        # Other tests verify meanwhile, which takes a folder of another name.
        return {p.name for p in (test_cache / "build").glob("cpu-*") if p.is_dir()}

    before = folders()
    command = ("build", *CPU, base_image, "--rebuild", "--tag", tag, "--builder", builder)
    child = begin(command, session_environment)
    for line in child.stderr:
        if at in line:
            break
    time.sleep(1)
    child.send_signal(number)
    _, said = child.communicate(timeout=120)
    assert child.returncode == (130 if number == signal.SIGINT else -9), said
    assert real_engine.image(tag) is None
    if number == signal.SIGINT:
        assert folders() <= before
    done = succeeded(cli("build", *CPU, base_image, "--json"))
    assert json.loads(done.stdout)["artifact"]["ref"] == image["artifact"]["ref"]


def test_clean_removes_only_what_is_ours(
    cli: Cli, base_image: str, image: dict[str, Any], real_engine: Engine
) -> None:
    done = cli("clean", "--all", "--profile", "cpu", "--dry-run", "--json")
    listed = json.loads(done.stdout)["removed"]
    assert image["artifact"]["ref"] in listed
    assert base_image not in listed
    assert real_engine.image(image["artifact"]["ref"]) is not None


@pytest.fixture
def name() -> str:
    return f"named-{secrets.token_hex(4)}"


@pytest.fixture
def build(tmp_path: Path, session_environment: dict[str, str], name: str) -> Build:
    """`build(number, options…)`: build from one of two locks; return what it reports."""
    wheels = small_profiles.lay(tmp_path, name)
    variables = {**session_environment, "PIP_FIND_LINKS": str(wheels)}
    profile = tmp_path / f"profiles/{name}-0.yaml"
    requirement = "small-0==1.0"
    locks = []
    for text in (profile.read_text(), profile.read_text().replace(requirement, "small-1==1.0")):
        profile.write_text(text)
        lock = locked(tmp_path, f"{name}-0", variables)
        locks.append((text, lock.read_text()))

    def run(number: int, *options: str, **environment: str) -> dict[str, Any]:
        for path, text in zip((profile, lock), locks[number], strict=True):
            path.write_text(text)
        words = ("build", "--profile", f"{name}-0", "--python-version", "3.11", "--json")
        done = succeeded(start((*words, *options), {**variables, **environment}, cwd=tmp_path))
        read: dict[str, Any] = json.loads(done.stdout)
        return read

    return run


@pytest.fixture
def engine(
    request: pytest.FixtureRequest,
    each_engine: tuple[str, str, dict[str, str]],
    name: str,
    build: Build,
) -> Iterator[tuple[Any, tuple[str, ...], dict[str, str]]]:
    """An engine, the options for its images, and the variables with which it is used."""
    client, base, variables = each_engine
    options = ("--backend", "docker", "--builder", "layers", "--base-image", base)
    engine = request.getfixturevalue("engine_of_podman" if client == "podman" else "real_engine")
    yield engine, options, variables
    for image in engine.labelled():
        if image.labels.get(f"{LABEL}profile") == f"{name}-0":
            for tag in image.tags:
                engine.remove(tag)


def test_names_in_an_engine(
    build: Build, name: str, engine: tuple[Any, tuple[str, ...], dict[str, str]]
) -> None:
    there, options, variables = engine
    first, second = (build(number, *options, **variables) for number in (0, 1))
    assert first["fingerprint"] != second["fingerprint"]
    for number, expected in ((1, second), (0, first)):
        again = build(number, *options, "--tag", f"me/{name}", **variables)
        assert again["status"] == "reused"
        names = (expected["artifact"]["ref"], f"envbuilder/{name}-0:latest", f"me/{name}")
        images = [there.image(n) for n in names]
        assert {i.labels[f"{LABEL}fingerprint"] for i in images} == {expected["fingerprint"]}


@pytest.mark.slow
def test_names_on_disk_and_in_a_registry(
    build: Build, base_image: str, registry: Registry, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "out.tar"
    ref = f"{registry.host}/{name}:1"
    for number, tag, status in ((0, "a", "built"), (0, "b", "built"), (0, "b", "reused")):
        options = ("--base-image", base_image, "--output", str(output), "--tag", f"me/{tag}")
        assert build(number, *options)["status"] == status
        (held,) = archive.held(output)
        assert {n for n in held.names if "/me/" in n} == {f"docker.io/me/{tag}"}
    for number in (0, 1, 0):
        artifact = build(number, "--base-image", base_image, "--push", ref)["artifact"]
        found = Connection(reference.parse(ref), plain_http=True).find_manifest("1")
        assert found
        assert found[0].digest == artifact["manifest_digest"]


TAG = "envbuilder-test/credentials:lab"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[canaries.Machine]:
    with canaries.machine(tmp_path) as made:
        yield made


def require_clean(client: Any, image: str, folder: Path) -> None:
    """Raise if a layer, the history or a label of an image holds a canary."""
    found = client.images.get(image)
    assert not canaries.leaked(json.dumps([found.attrs, found.history()]).encode())
    path = folder / "image.tar"
    with path.open("wb") as out:
        out.writelines(found.save())
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is None:
                continue
            assert not canaries.leaked(archives.unpacked(io.BytesIO(content.read())).read()), (
                member.name
            )


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["layers", "buildkit"])
def test_no_credential_gets_into_an_image(
    machine: canaries.Machine, docker_client: Any, base_image: str, tmp_path: Path, builder: str
) -> None:
    assert machine.run("lock", "--profile", "lab").returncode == 0
    build = ("build", "--profile", "lab", "--backend", "docker", "--builder", builder)
    done = machine.run(*build, "--base-image", base_image, "--tag", TAG, "--json")
    try:
        assert done.returncode == 0, done.stderr
        require_clean(docker_client, TAG, tmp_path)
    finally:
        assert machine.run("clean", "--yes").returncode == 0


@pytest.mark.slow
def test_a_rendered_dockerfile_takes_a_login_as_a_secret(
    machine: canaries.Machine, docker_client: Any, base_image: str, tmp_path: Path
) -> None:
    assert machine.run("lock", "--profile", "lab").returncode == 0
    assert machine.run("render", "--profile", "lab", "-o", "image").returncode == 0
    netrc = tmp_path / "netrc"
    user, _, password = canaries.LOGIN.partition(":")
    host = urlsplit(machine.index).hostname
    netrc.write_text(f"machine {host} login {user} password {password}\n")

    def docker(*options: str) -> subprocess.CompletedProcess[str]:
        command = ("docker", "build", "--network", "host", "--no-cache", "--tag", TAG)
        arguments = (f"BASE_IMAGE={base_image}", f"PIP_INDEX_URL={machine.index}")
        return ran(
            [*command, *(x for a in arguments for x in ("--build-arg", a)), *options, "image"],
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            cwd=machine.project,
            timeout=300,
        )

    assert docker().returncode != 0  # the index is closed
    done = docker("--secret", f"id=netrc,src={netrc}")
    assert done.returncode == 0, done.stderr[-3000:]
    try:
        require_clean(docker_client, TAG, tmp_path)
    finally:
        docker_client.images.remove(TAG, force=True)
