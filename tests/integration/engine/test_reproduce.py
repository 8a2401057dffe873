"""Images and environments that are equal bit for bit, and what happens where they are not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.commands.options import BUILDERS
from envbuilder.containers.engine import images as engines
from envbuilder.containers.engine.interface import LABEL, Engine
from envbuilder.containers.oci.layer import members
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import resources
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile, profile as profiles
from tests.conftest import exited, missing, succeeded
from tests.integration.conftest import TINY, Cli
from tests.support.surroundings import (
    FIVE,
    TWO,
    Place,
    Surrounding,
    make_locale,
    require_clock,
    starting,
)

BUILDKIT = ("--backend", "docker", "--builder", "buildkit")
IMAGE = ("--profile", "tiny", *BUILDKIT)
ALLOWED = {"etc", "etc/passwd", "home", "home/user", "opt", "opt/env", "work"}
PAYLOAD = {"etc", "etc/group", "opt", "opt/envbuilder", "opt/envbuilder/payload.pyz"}


def of_trials(client: Any) -> set[str]:
    found = client.images.list(filters={"label": f"{LABEL}fingerprint"})
    return {tag for i in found for tag in i.tags if tag.startswith("envbuilder-reproduce")}


def saved(engine: Engine, ref: str, folder: Path) -> Layout:
    image = engine.image(ref)
    return engines.export(engine, image, folder)


def own_layers(layout: Layout, below: int) -> list[dict[str, tarfile.TarInfo]]:
    """The members of an image's layers above the lowest `below`, those that are empty left out."""
    above = layout.manifest("linux/amd64").layers[below:]
    layers = [{m.name.rstrip("/"): m for m, _ in members(layout.checked(layer))} for layer in above]
    return [layer for layer in layers if layer]


@pytest.fixture
def base_without_bytecode(base_image: str, docker_client: Any, tmp_path: Path) -> Iterator[str]:
    """A base image as Python's official ones are: an interpreter must not fill its caches."""
    tag = "envbuilder-test/no-bytecode:1"
    folder = tmp_path / "no-bytecode"
    folder.mkdir()
    (folder / "Dockerfile").write_text(
        f"FROM {base_image}\nRUN find /usr -name __pycache__ -prune -exec rm -rf {{}} +\n"
    )
    build = ["docker", "buildx", "build", "--load", "--provenance=false", "--tag", tag, folder]
    subprocess.run(build, check=True, capture_output=True)
    yield tag
    docker_client.images.remove(tag, force=True)


@pytest.mark.slow
def test_the_layers_hold_what_belongs_in_them_and_no_time_but_the_locks(
    cli: Cli, base_without_bytecode: str, real_engine: Engine, tiny: Path, tmp_path: Path
) -> None:
    done = succeeded(cli("build", *IMAGE, "--base-image", base_without_bytecode, "--json"))
    built = json.loads(done.stdout)
    base = saved(real_engine, base_without_bytecode, tmp_path / "base")
    image = saved(real_engine, built["artifact"]["ref"], tmp_path / "image")
    manifest = image.manifest("linux/amd64")
    assert manifest.config.digest == built["artifact"]["digest"]
    environment, payload = own_layers(image, len(base.manifest("linux/amd64").layers))
    assert {p for p in environment if not p.startswith("opt/env/")} == ALLOWED
    assert set(payload) == PAYLOAD
    target = lockfile.load(tiny).targets[0]
    assert {m.mtime for m in (*environment.values(), *payload.values())} == {target.base.epoch}
    unwanted = ("uv_cache.json", ".whl", "/_virtualenv.cpython-311.pyc")
    assert not [p for p in environment if p.endswith(unwanted)]
    assert oct(payload["opt/envbuilder/payload.pyz"].mode) == "0o644"
    config = image.read_config(manifest)
    assert config["created"].startswith(str(target.base.date))
    inherited = len(base.read_config(base.manifest("linux/amd64"))["history"])
    assert {h["created"] for h in config["history"][inherited:]} == {config["created"]}


def test_a_native_environment_is_the_same_twice(cli: Cli, tiny: Path) -> None:
    done = cli("reproduce", "--profile", "tiny", "--backend", "venv", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["status"] == "equal"


@pytest.fixture
def stamped(tiny: Path, tmp_path: Path, session_environment: dict[str, str]) -> None:
    """The profile `tiny` with a package whose script writes down when it was installed."""
    if shutil.which("dpkg-deb") is None:
        missing("engine", "dpkg-deb is not installed")
    package = tmp_path / "stamp"
    (package / "DEBIAN").mkdir(parents=True)
    control = "Package: stamp\nVersion: 1\nArchitecture: all\nMaintainer: x <x@y>\n"
    (package / "DEBIAN/control").write_text(f"{control}Description: x\n")
    script = package / "DEBIAN/postinst"
    script.write_text("#!/bin/sh\ndate +%s%N > /etc/stamp\nmkdir /var/lib/stamp\n")
    script.chmod(0o755)
    deb = tmp_path / "stamp_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", package, deb], check=True, capture_output=True
    )
    file = lockfile.File(
        kind="deb",
        name="stamp",
        version="1",
        file=f"pool/{deb.name}",
        sha256=file_sha256(deb),
        size=deb.stat().st_size,
        source="debian",
        provenance="read",
        by="test",
    )
    store = Store(load_settings({**os.environ, **session_environment}).store_dir)
    with store.receiving(file.sha256) as part:
        shutil.copyfile(deb, part)
        store.accept(part, file, "test")
    folder = tiny.parent.parent
    text = TINY.replace("system_packages: []", "system_packages: [stamp]")
    (folder / "tiny.yaml").write_text(text)
    profile = profiles.load("tiny", (folder, resources.profiles_dir()))
    lock = lockfile.load(tiny)
    targets = tuple(msgspec.structs.replace(t, files=(*t.files, file)) for t in lock.targets)
    inputs = lockfile.inputs_digest(profile)
    tiny.write_text(lockfile.dump(msgspec.structs.replace(lock, inputs=inputs, targets=targets)))


@pytest.mark.slow
@pytest.mark.usefixtures("stamped")
def test_what_is_not_reproducible_is_caught_and_named(
    cli: Cli, base_image: str, docker_client: Any
) -> None:
    before = of_trials(docker_client)
    base = {"ENVBUILDER_BASE_IMAGE": base_image}
    done = exited(1, cli("reproduce", *IMAGE, "--json", environment=base))
    outcome = json.loads(done.stdout)
    assert outcome["status"] == "different"
    assert outcome["digests"][0] != outcome["digests"][1]
    # One layer, that of the package whose script writes the time.
    (difference,) = outcome["differences"]
    assert difference["path"].startswith("layer ")
    assert of_trials(docker_client) == before, done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("stamped")
def test_packages_leave_no_logs_and_no_time_after_the_locks(
    cli: Cli, base_image: str, real_engine: Engine, tiny: Path, tmp_path: Path
) -> None:
    done = succeeded(cli("build", *IMAGE, "--base-image", base_image, "--json"))
    base = saved(real_engine, base_image, tmp_path / "base")
    image = saved(real_engine, json.loads(done.stdout)["artifact"]["ref"], tmp_path / "image")
    packages, _, _ = own_layers(image, len(base.manifest("linux/amd64").layers))
    assert {"etc/stamp", "var/lib/stamp", "var/lib/dpkg/status"} <= set(packages)
    logs = ("var/log", "var/cache/ldconfig", "var/lib/dpkg/updates", "tmp")
    assert not [p for p in packages if p.startswith(logs)]
    assert not [p for p in packages if p.endswith("-old") and packages[p].size]
    assert not [p for p in packages if ".wh." in p], "a deletion's time differs in some stores"
    target = lockfile.load(tiny).targets[0]
    assert max(m.mtime for m in packages.values()) == target.base.epoch


@pytest.mark.slow
def test_an_image_that_was_changed_is_not_verified_and_is_built_anew(
    cli: Cli, base_image: str, docker_client: Any, real_engine: Engine, tiny: Path
) -> None:
    image = ("--profile", "tiny", "--backend", "docker", "--base-image", base_image)
    built = json.loads(cli("build", *image, "--json").stdout)
    ref = built["artifact"]["ref"]
    original = docker_client.images.get(ref)
    script = "echo changed >> /opt/env/pyvenv.cfg"
    container = docker_client.containers.create(ref, user="0", entrypoint=["sh", "-c", script])
    container.start()
    container.wait()
    repository, _, tag = ref.rpartition(":")
    changed = container.commit(repository, tag, conf={"User": "1000:1000"})
    container.remove()
    try:
        assert docker_client.images.get(ref).id != original.id
        assert docker_client.images.get(ref).labels == original.labels

        done = exited(5, cli("verify", *image, "--quick", "--json"))
        assert f"{ref} was changed after the build" in done.stderr
        assert "--rebuild" in done.stderr
        report = json.loads(done.stdout)
        assert report["status"] == "failed"
        assert "was changed after the build" in report["reasons"][0]

        done = cli("build", *image, "--json")
        again = json.loads(done.stdout)
        assert (done.returncode, again["status"]) == (0, "built")
        assert "was changed after the build" in done.stderr
        assert again["artifact"] == built["artifact"]
        assert docker_client.images.get(ref).id == original.id

        # The commit's label stays with the tag: to Docker the image is its own parent now.
        cleaned = exited(0, cli("clean", "--all", "--yes", "--profile", "tiny"))
        assert real_engine.image(ref) is None, cleaned.stdout + cleaned.stderr
    finally:
        if real_engine.image(changed.id):
            docker_client.images.remove(changed.id, force=True, noprune=True)


Built = tuple[dict[str, Any], str]
"""What a build told, and the hash of the file that it wrote (empty: the engine has the image)."""


@pytest.fixture
def build_at(
    base_image: str, session_environment: dict[str, str], tmp_path: Path
) -> Callable[..., Built]:
    """`build_at(place, around, profile, builder)`: build there; from nothing, unless warm."""
    locales = make_locale(tmp_path / "locales")

    def build(place: Place, around: Surrounding, profile: str, builder: str) -> Built:
        variables = place.variables(around, locales)
        variables["ENVBUILDER_CONFIG_DIR"] = session_environment["ENVBUILDER_CONFIG_DIR"]
        start = starting(around, tmp_path, place.home)
        if around.clock:
            require_clock(start, around.clock, variables, place.home)
        command = [*start, sys.executable, "-m", "envbuilder", "build", "--profile", profile]
        command += ["--backend", "docker", "--builder", builder, "--base-image", base_image]
        archive = place.home / "image.tar"
        command += ["--output", str(archive)] if builder == "layers" else []
        command += ["--json", *([] if around.warm else ["--rebuild"])]
        done = subprocess.run(
            command,
            env=variables,
            cwd=place.home,
            umask=around.umask,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, f"{around.name}: {done.stderr.decode(errors='replace')}"
        told = json.loads(done.stdout)
        assert (told["status"], told["builder"]) == ("built", builder), around.name
        return told, file_sha256(archive) if builder == "layers" else ""

    return build


def cached_steps(place: Place) -> list[bool]:
    """Of each step that BuildKit was asked to run: whether it took the result from its cache."""
    (log,) = (place.cache / "logs").glob("*.log")
    text = log.read_text()
    steps = re.findall(r"^#(\d+) \[.*\] RUN ", text, re.MULTILINE)
    return [f"\n#{step} CACHED\n" in text for step in dict.fromkeys(steps)]


def layers_made(place: Place) -> dict[Path, int]:
    """The files of the layer cache, which are new ones where a layer is made again."""
    blobs = (place.cache / "layers/blobs").rglob("*")
    return {path: path.stat().st_ino for path in blobs if path.is_file()}


def require_one_image(
    surroundings: Sequence[Surrounding],
    build: Callable[[Place, Surrounding], Built],
    builder: str,
    store: Path,
    folder: Path,
) -> None:
    """Build in each surrounding; they must all be the same image, and the same file if written."""
    images: dict[str, tuple[str, ...]] = {}
    place = None
    before = dict[Path, int]()
    for number, around in enumerate(surroundings):
        if place and not around.warm:
            shutil.rmtree(place.caches)
        place = Place(folder / f"build {number} ö", place.caches if around.warm and place else None)
        if not around.warm:
            place.lay(store, copied=around.copied)
        told, file = build(place, around)
        made_by = json.dumps(told["made_by"], sort_keys=True)
        images[around.name] = (told["fingerprint"], told["artifact"]["digest"], made_by, file)
        if builder == "layers":
            assert not around.warm or layers_made(place) == before
            before = layers_made(place)
        else:
            assert set(cached_steps(place)) == {around.warm}, around.name
        print(
            told["profile"], builder, around.name, told["artifact"]["digest"], file, told["seconds"]
        )
    assert len(set(images.values())) == 1, images


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["layers", pytest.param("buildkit", marks=pytest.mark.soak)])
def test_two_builds_in_two_surroundings_are_one_image(
    builder: str, build_at: Any, tiny: Path, test_cache: Path, tmp_path: Path
) -> None:
    build = partial(build_at, profile="tiny", builder=builder)
    require_one_image(TWO, build, builder, test_cache / "store", tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("name", ["cpu", "zendnn"])
def test_five_builds_in_five_surroundings_are_one_image(
    name: str, builder: str, build_at: Any, test_cache: Path, tmp_path: Path
) -> None:
    build = partial(build_at, profile=name, builder=builder)
    require_one_image(FIVE, build, builder, test_cache / "store", tmp_path)
