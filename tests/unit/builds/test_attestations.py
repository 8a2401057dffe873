"""The documents of an artifact: where they are, when they are written, and that nothing else is."""

from __future__ import annotations

import errno
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, Mock

import pytest
from msgspec.structs import replace
from packageurl import PackageURL

from envbuilder import __version__
from envbuilder.builds import attestations, payload as pack, plan
from envbuilder.builds.backends import docker, integrity as seal
from envbuilder.builds.image import base as image_base
from envbuilder.containers.engine import connection
from envbuilder.core import files as atomic, resources
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.core.settings import Settings
from envbuilder.core.signatures import Subject
from envbuilder.packages.debian import deb as base_status
from envbuilder.profiles import lock as lockfile
from tests.support import project_layers
from tests.support.command_line import Command
from tests.support.engines import BUILDKIT, FakeEngine
from tests.support.folders import read_json
from tests.support.pipeline import a_build
from tests.support.progress import SILENT
from tests.support.provenance import read
from tests.support.recorded import replaced
from tests.support.repositories import lay
from tests.unit.builds.backends.test_backends import docker_plan, shipped, venv_plan

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose images hold nothing of Debian."""
    FakeEngine().serve(monkeypatch)


@pytest.fixture
def image(found: Settings) -> plan.Plan:
    """The plan of an image."""
    return docker_plan("cpu", found)


@pytest.fixture
def venv(found: Settings) -> plan.Plan:
    """The plan of an environment that is there."""
    made = venv_plan("cpu", found)
    prefix = Path(made.artifact.ref)
    prefix.mkdir(parents=True)
    seal.close(prefix, {"fingerprint": made.fingerprint})
    return made


def built(made: plan.Plan, **changes: Any) -> plan.Artifact:
    """The artifact of a plan, after its build."""
    return replace(made.artifact, digest=DIGEST, **changes)


def ensure(
    made: plan.Plan,
    found: Settings,
    progress: PlainProgress = SILENT,
    *,
    anew: bool = True,
    **more: Any,
) -> Any:
    """Where the documents of an artifact that was built are."""
    return attestations.ensure(made, built(made), found, progress, anew=anew, **more)


def documents(made: plan.Plan, found: Settings) -> tuple[Any, Any]:
    """The SBOM and the provenance of an artifact that was built."""
    bill, statement = ensure(made, found).values()
    return read_json(Path(bill)), read_json(Path(statement))


def test_those_of_an_environment_lie_beside_it_and_leave_it_as_it_was(
    venv: plan.Plan, found: Settings
) -> None:
    written = ensure(venv, found)
    ref = venv.artifact.ref
    assert written == {
        "sbom": f"{ref}.sbom.cdx.json",
        "provenance": f"{ref}.provenance.json",
    }
    seal.require_unchanged(Path(ref), "bin/python")
    assert sorted(p.name for p in found.envs_dir.iterdir()) == sorted(
        Path(p).name for p in (ref, *written.values())
    )


def test_those_of_an_image_lie_beside_its_record_under_its_digest(
    image: plan.Plan, found: Settings
) -> None:
    written = ensure(image, found)
    folder = found.records_dir / image.fingerprint
    assert written["sbom"] == str(folder / ("ab" * 32 + ".sbom.cdx.json"))
    assert {Path(p) for p in written.values()} == set(folder.iterdir())
    pushed = built(image, kind="registry", ref="registry.example/cpu:1")
    assert attestations.places(image, pushed, found) == written
    assert attestations.subject(pushed).name == "registry.example/cpu:1"


def test_they_name_the_digest_of_the_projects_files(
    image: plan.Plan, found: Settings, tmp_path: Path
) -> None:
    project = project_layers.lay(tmp_path / "code", {"train.py": b"1"})
    step = plan.CopyProject(what="copy", project=project, folder="/context")
    with_project = replace(image, steps=(step, *image.steps))
    for made, named in ((image, []), (with_project, [project.digest])):
        bill, statement = documents(made, found)
        properties = {p["name"]: p["value"] for p in bill["metadata"]["properties"]}
        assert [properties[n] for n in properties if n == "envbuilder:project-files"] == named
        inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert [
            d["digest"]["sha256"] for d in inputs if d["uri"] == "urn:envbuilder:project"
        ] == named


def test_they_are_written_anew_only_after_a_build_or_where_one_is_missing(
    image: plan.Plan, found: Settings
) -> None:
    written = ensure(image, found)
    for path in map(Path, written.values()):
        path.write_text("kept")
    ensure(image, found, anew=False)
    assert {Path(p).read_text() for p in written.values()} == {"kept"}
    ensure(image, found)
    for p in written.values():
        assert Path(p).read_text() != "kept"
    Path(written["sbom"]).unlink()
    ensure(image, found, anew=False)
    assert all(Path(p).read_text() != "kept" for p in written.values())


def test_the_base_image_that_was_used_is_in_both_not_the_locked_one(
    image: plan.Plan, found: Settings
) -> None:
    used = plan.UsedBase(ref="site/base:1", digest=DIGEST)
    for document in map(json.dumps, documents(replace(image, base=used), found)):
        assert "site/base" in document
        assert "3.11-slim-bookworm" not in document


def test_a_base_made_of_locked_packages_is_its_packages(found: Settings) -> None:
    profile, lock = shipped("zendnn")
    target = lockfile.select(lock, "linux/amd64", "3.11")
    files = tuple(replace(f, role="base") if f.kind == "deb" else f for f in target.files)
    own = replace(target.base, suite="bookworm", digest=None)
    target = replace(target, base=own, files=files)
    step = image_base.debian_step(target, found)
    for made_base, packages in ((step, len(target.base_files)), (None, 0)):
        made = docker.plan(
            a_build(found, profile, lock),
            target,
            image_base.Base(ref="base:1", identity=DIGEST, make=(made_base,) if made_base else ()),
            BUILDKIT,
        )
        bill, statement = documents(made, found)
        listed = bill["components"]
        assert sum(c["purl"].startswith("pkg:deb") for c in listed) == packages
        assert any(c["type"] == "container" for c in listed) == (made_base is None)
        assert ("base:1" in json.dumps(statement)) == (made_base is None)


def test_what_is_installed_in_a_venv_beside_the_lock_is_in_its_bill(
    venv: plan.Plan, found: Settings
) -> None:
    info = "lib/python3.11/site-packages/pip-25.0.dist-info"
    lay(Path(venv.artifact.ref), {f"{info}/METADATA": "Name: pip\nVersion: 25.0\n"})
    assert "pkg:pypi/pip@25.0" in json.dumps(documents(venv, found)[0])


def test_the_packages_of_an_images_base_are_in_its_bill(
    image: plan.Plan, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = image.artifact.ref
    engine = FakeEngine(ref).serve(monkeypatch)
    libtcmalloc = b"Package: libtcmalloc-minimal4\nVersion: 2.10-1\n"
    engine.contents = {base_status.STATUS: b"%s\n%s" % (STATUS, libtcmalloc)}
    bill, _ = documents(image, found)
    purls = [c["purl"] for c in bill["components"] if c["purl"].startswith("pkg:deb")]
    assert purls == [
        "pkg:deb/debian/base-files@12.4?distro=bookworm",
        "pkg:deb/debian/libtcmalloc-minimal4@2.10-1?arch=amd64&distro=bookworm",
    ]
    assert engine.done == [f"read {ref} linux/amd64"]


STATUS = b"""Package: base-files
Status: install ok installed
Architecture: amd64
Version: 12.4

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_of_layers_the_base_below_is_read_and_no_engine(
    image: plan.Plan, found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "layers")
    step = SimpleNamespace(base="/base", platform="linux/amd64", cache=cache, project=None)
    for module in (plan, attestations):
        monkeypatch.setattr(module, "Assemble", SimpleNamespace)
    archive = plan.Artifact(kind="archive", ref=str(tmp_path / "cpu.tar"))
    made = replace(image, steps=(step,), artifact=archive)
    monkeypatch.setattr(connection, "connect", lambda: pytest.fail("the engine was asked"))
    root = SimpleNamespace(contents={"var/lib/dpkg/status": STATUS, "etc/passwd": b""})
    contents = SimpleNamespace(root=root, config={"rootfs": {}})
    read = replaced(monkeypatch, image_base, "read_contents", contents)
    bill, statement = documents(made, found)
    text = json.dumps(bill)
    assert "pkg:deb/debian/base-files@12.4?distro=bookworm" in text
    assert "removed" not in text
    assert read.calls == [("/base", "linux/amd64", ANY)]
    assert statement["subject"][0]["name"] == "cpu.tar", "no folder of this machine"


def test_an_image_that_cannot_be_read_is_noted(
    image: plan.Plan, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connection, "connect", Mock(side_effect=ToolError("the engine does not answer"))
    )
    said: list[str] = []
    written = ensure(image, found, PlainProgress(said.append))
    assert Path(written["sbom"]).is_file()
    why = "note: the SBOM lacks the base image's packages: "
    assert said == [f"{why}the engine does not answer"]
    # podman shows no single file of an image.
    FakeEngine().serve(monkeypatch)
    ensure(image, found, PlainProgress(said.append))
    assert said[1:] == [f"{why}this engine does not list them"]


def test_a_full_disk_is_said_and_leaves_no_half_document(
    image: plan.Plan, found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        atomic, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(BuildError, match="No space left") as caught:
        ensure(image, found)
    assert "is complete" in caught.value.hint
    assert not [p for p in found.data_dir.rglob("*") if p.is_file()]


# --- the command


def test_a_profiles_bill_is_printed(envbuilder: Command) -> None:
    bill = functools.partial(envbuilder, "sbom", "--profile", "cpu")
    printed = json.loads(bill().out)
    assert printed["specVersion"] == "1.6"
    other = bill("--platform", "linux/arm64", "--python-version", "3.12").out
    assert "arm64" in other
    assert json.loads(other)["serialNumber"] != printed["serialNumber"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--profile", "cpu", "--platform", "macos/arm64"),
        ("--profile", "cpu", "--python-version", "3.99"),
        ("--profile", "xpu-ipex"),
        ("--profile", "nothing"),
    ],
)
def test_what_has_no_bill_is_a_usage_error(arguments: tuple[str, ...], envbuilder: Command) -> None:
    envbuilder("sbom", *arguments, code=2)


LOCKS = {p.stem: lockfile.load(p) for p in (resources.profiles_dir() / "locks").glob("*.json")}
IMAGE = Subject(name="envbuilder/cpu:latest", digest={"sha256": "ef" * 32})


def planned(name: str = "cpu", number: int = 0, **facts: Any) -> plan.Plan:
    lock = LOCKS[name]
    target = lock.targets[number]
    return plan.Plan(
        **{
            "profile": name,
            "backend": "docker",
            "builder": "buildkit",
            "platform": target.platform,
            "python": target.python,
            "fingerprint": "12" * 32,
            "artifact": plan.Artifact(kind="image", ref="envbuilder/cpu:latest"),
            "lock": lockfile.lock_digest(lock),
            "base": plan.UsedBase(ref="python:3.11-slim", digest="sha256:" + "cd" * 32),
            "workdir": "/work",
            "files": (lock.tool(target.platform), *target.files),
            "steps": (),
            **facts,
        }
    )


@pytest.mark.parametrize("name", sorted(n for n, lock in LOCKS.items() if lock.targets))
def test_a_statement_names_everything_that_went_in(name: str) -> None:
    made = planned(name)
    document = read(attestations.provenance(made, IMAGE, {}))
    definition = document["predicate"]["buildDefinition"]
    went_in = {d["name"]: d["digest"]["sha256"] for d in definition["resolvedDependencies"]}
    assert {f.basename: f.sha256 for f in made.files}.items() <= went_in.items()
    assert went_in["python:3.11-slim"] == "cd" * 32
    assert went_in[f"{name}.lock"] == made.lock
    assert went_in["payload.pyz"] == pack.payload_sha256()
    assert len(went_in) == len(made.files) + 3
    for dependency in definition["resolvedDependencies"]:
        if dependency["uri"].startswith("pkg:"):
            PackageURL.from_string(dependency["uri"])


def test_a_statement_says_what_was_asked_for_and_who_built_it() -> None:
    document = read(attestations.provenance(planned(), IMAGE, {"buildkit": "0.13.2"}))
    assert document["subject"] == [{"name": IMAGE.name, "digest": IMAGE.digest}]
    predicate = document["predicate"]
    assert predicate["buildDefinition"]["externalParameters"] == {
        "profile": "cpu",
        "platform": "linux/amd64",
        "python": "3.11",
        "backend": "docker",
        "builder": "buildkit",
        "baseImage": "python:3.11-slim",
    }
    assert predicate["buildDefinition"]["internalParameters"] == {"fingerprint": "12" * 32}
    assert predicate["runDetails"]["builder"]["version"] == {
        "envbuilder": __version__,
        "uv": "0.13.8",
        "buildkit": "0.13.2",
    }
    assert "metadata" not in predicate["runDetails"]


def test_a_venv_has_no_base_image_and_a_base_without_a_digest_is_named_only() -> None:
    document = read(attestations.provenance(planned(base=None), IMAGE, {}))
    assert "baseImage" not in document["predicate"]["buildDefinition"]["externalParameters"]
    unknown = plan.UsedBase(ref="base:latest", digest="")
    document = read(attestations.provenance(planned(base=unknown), IMAGE, {}))
    named = document["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"name": "base:latest", "uri": "pkg:docker/library/base@latest"} in named


def test_a_statement_can_be_about_a_registrys_manifest_as_well() -> None:
    content = attestations.provenance(planned(), IMAGE, {})
    manifest = Subject(name="registry/cpu", digest={"sha256": "99" * 32})
    both = attestations.also_about(content, manifest)
    assert [s["digest"]["sha256"][:2] for s in read(both)["subject"]] == ["ef", "99"]
    assert attestations.also_about(both, manifest) == both
    before, after = (json.loads(c)["predicate"] for c in (content, both))
    assert before == after


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"predicate": 1}', b'{"subject": [1]}', b"\xff"]
)
def test_only_our_statements_get_further_subjects(content: bytes) -> None:
    with pytest.raises(ValueError, match="statement"):
        attestations.also_about(content, IMAGE)
    foreign = json.loads(attestations.provenance(planned(), IMAGE, {}))
    foreign["predicate"]["buildDefinition"]["buildType"] = "https://example.org/other"
    with pytest.raises(ValueError, match="not written by envbuilder"):
        attestations.also_about(json.dumps(foreign).encode(), IMAGE)
