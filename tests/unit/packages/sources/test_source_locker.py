"""What a lock gets for a package that is built: a wheel, or its source; what builds it, by hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Settings
from envbuilder.packages.python.static_metadata import Metadata
from envbuilder.packages.python.uv import UnresolvableError
from envbuilder.packages.sources import source, source_locker
from envbuilder.packages.sources.source_locker import (
    BuildRequirements,
    BuiltWheel,
    SourceLocker,
    Wheel,
    WheelBuilder,
)
from envbuilder.packages.store import Store
from envbuilder.packages.upstream import Listed
from envbuilder.profiles.lock import File, Recipe, Target, problem
from envbuilder.profiles.profile import Resolution
from tests.support import make_wheels, sources
from tests.support.repositories import lay

PURE = "tiny-1.0-py3-none-any.whl"
COMPILED = "tiny-1.0-cp311-cp311-linux_x86_64.whl"
NEED = File(
    kind="wheel",
    name="setuptools",
    version="80.0",
    file="setuptools-80.0-py3-none-any.whl",
    sha256="5" * 64,
    size=1,
    source="default",
    provenance="read",
    by="x",
)


@pytest.fixture
def project(found: Settings, tmp_path: Path) -> Settings:
    lay(tmp_path / "tiny", sources.files())
    return replace(found, project=tmp_path)


CUDA_SETUP = "from torch.utils import cpp_extension as c\nx = [c.CUDAExtension('tiny', ['x.cu'])]\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine that builds for linux/amd64 and Python 3.11: which wheel, and how often it did."""
    state: dict[str, Any] = {"file": PURE, "builds": 0}

    def make(*arguments: Any) -> BuiltWheel:
        state["builds"] += 1
        if isinstance(state["file"], Exception):
            raise state["file"]
        metadata = Metadata(name="tiny", version="1.0", requires_dist=("six",))
        wheel = Wheel(file=state["file"], sha256="a" * 64, size=9, metadata=metadata)
        return BuiltWheel(plan=arguments[3], wheel=wheel)

    monkeypatch.setattr(source_locker, "_REMEMBERED", {})
    monkeypatch.setattr(WheelBuilder, "platform", "linux/amd64")
    monkeypatch.setattr(WheelBuilder, "has", lambda self, python: python == "3.11")
    monkeypatch.setattr(WheelBuilder, "make", lambda self, *arguments: make(*arguments))

    def resolved(self: WheelBuilder, plan: BuildRequirements, *_: Any) -> tuple[File, ...]:
        state["toolkit"], state["beside"] = plan.toolkit, plan.with_framework
        return (NEED,)

    monkeypatch.setattr(WheelBuilder, "resolved", resolved)
    return state


@pytest.mark.parametrize(
    ("file", "platform", "python", "kind"),
    [
        (PURE, "linux/amd64", "3.11", "wheel"),
        (PURE, "macos/arm64", "3.12", "wheel"),
        (COMPILED, "linux/amd64", "3.11", "wheel"),
        (COMPILED, "linux/amd64", "3.12", "source"),
        (COMPILED, "linux/arm64", "3.11", "source"),
    ],
)
def test_a_wheel_where_it_fits_else_the_source(
    project: Settings, machine: dict[str, Any], file: str, platform: str, python: str, kind: str
) -> None:
    machine["file"] = file
    asked = SourceLocker(Resolution(build=True), project)
    asked.prepare("tiny", pythons=["3.11"], location="./tiny")
    target = sources.locked(asked, python, platform) if python == "3.11" else None
    target = target or asked.finish(_target(asked, platform, python))
    (locked,) = target.files
    assert (locked.kind, locked.source, problem(target.files)) == (kind, "built", "")
    assert locked.file == (file if kind == "wheel" else "tiny.tar")
    assert locked.recipe
    assert locked.recipe.requires == (NEED.sha256,)
    assert target.build_files == (NEED,)
    assert [f.kind for f in source_locker.bundled_sources(target)] == ["wheel", "source"]
    assert machine["builds"] == 1


def _target(
    asked: SourceLocker, platform: str, python: str, *beside: File, location: str = "./tiny"
) -> Target:
    offer = asked.prepare("tiny", pythons=["3.11"], location=location).offer
    file = replace(NEED, name="tiny", version="1.0", file=offer.file, sha256=offer.sha256)
    file = replace(file, source=offer.source, by=offer.by)
    files = (*beside, file)
    return Target(platform=platform, python=python, base=None, files=files)  # type: ignore[arg-type]


def test_a_wheel_by_its_url_is_taken_by_its_hash_and_needs_no_consent(
    found: Settings, machine: dict[str, Any], tmp_path: Path
) -> None:
    wheel = make_wheels.write(tmp_path, "tiny", {"tiny.py": b""}, needs=["six"])
    sha256 = file_sha256(wheel)

    asked = SourceLocker(Resolution(), found)

    def prepared(end: str = "") -> source_locker.Candidate:
        return asked.prepare("tiny", pythons=["3.11"], location=f"{wheel.as_uri()}{end}")

    location = f"{wheel.as_uri()}#sha256={sha256.upper()}"
    target = sources.locked(asked, "3.11", location=location)
    (locked,) = target.files
    recipe = Recipe(kind="wheel", location=wheel.as_uri(), sha256=sha256)
    assert (locked.kind, locked.source, locked.recipe) == ("wheel", "url", recipe)
    assert (locked.file, locked.sha256) == (wheel.name, sha256)
    assert problem(target.files) == ""
    assert source_locker.bundled_sources(target) == ()
    assert prepared().requires_dist == ("six",)
    Store.of(found).path(sha256).unlink()
    assert source_locker.fetch(target.files, target, found, PlainProgress(lambda _: None)) == 1
    assert machine["builds"] == 0

    with pytest.raises(BuildError, match=f"expected sha256 {'0' * 64}"):
        prepared(f"#sha256={'0' * 64}")
    other = wheel.rename(tmp_path / "other-1.0-py3-none-any.whl")
    with pytest.raises(BuildError, match="other"):
        asked.prepare("tiny", pythons=["3.11"], location=other.as_uri())


def test_profiles_ask_once_and_share_the_failure(
    project: Settings, machine: dict[str, Any]
) -> None:
    machine["file"] = BuildError("tiny: its build failed")
    for _ in range(3):
        with pytest.raises(BuildError, match="its build failed"):
            SourceLocker(Resolution(build=True), project).prepare(
                "tiny", pythons=["3.11"], location="./tiny"
            )
    assert machine["builds"] == 1


def test_a_release_with_wheels_for_other_platforms_is_not_built_to_be_locked(
    project: Settings, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "tiny-1.0.tar.gz"
    pythons = ">=3.8,!=3.9*"  # as an index states it of an old release
    link = Listed(file=file, location=f"https://x/{file}", sha256="", requires_python=pythons)
    recipe = Recipe(kind="sdist", location=file, sha256="b" * 64)
    monkeypatch.setattr(source, "newest", lambda *_: ("1.0", link))
    monkeypatch.setattr(source, "of_release", lambda *_: recipe)
    folder = project.project / "tiny"
    monkeypatch.setattr(source, "unpack", lambda *_: folder)
    resolution = Resolution(build=True)
    asked = SourceLocker(resolution, project, elsewhere=lambda *_: ["six>=1"])
    candidate = asked.prepare("tiny", pythons=["3.11"])
    assert candidate.requires_dist == ("six>=1",)
    assert candidate.offer.requires_python == ">=3.8"
    assert machine["builds"] == 0
    for platform, kind in (("macos/arm64", "source"), ("linux/amd64", "wheel")):
        target = _target(asked, platform, "3.11", location="")
        assert asked.finish(target).files[0].kind == kind


def test_what_builds_it_is_the_targets_own_where_a_platform_lacks_the_pinned_one(
    project: Settings, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """scipy 1.7.1 is built with numpy==1.19.3, of which Macs have no wheel."""

    def resolved(_: WheelBuilder, plan: BuildRequirements, *place: str) -> tuple[File, ...]:
        if "numpy==1.19.3" in plan.requires:
            raise UnresolvableError("no wheels")
        return (replace(NEED, name="numpy", version=plan.requires[0].partition("==")[2]),)

    old = (f"numpy=={v}; python_version {o} '3.10'" for v, o in (("1.19.3", "<"), ("1.21.4", ">=")))
    plan = BuildRequirements(requires=(*old, "cython"))
    assert plan.beside({"numpy": "1.21.0"}).requires == ("numpy==1.21.0", "cython")
    monkeypatch.setattr(WheelBuilder, "resolved", resolved)
    asked = SourceLocker(Resolution(build=True), project)
    numpy = replace(NEED, name="numpy", version="1.21.0")
    target = _target(asked, "macos/arm64", "3.11")
    (plan,) = asked._plans.values()
    asked._plans = dict.fromkeys(asked._plans, replace(plan, requires=("numpy==1.19.3",)))
    machine["file"] = COMPILED
    finished = asked.finish(replace(target, files=(*target.files, numpy)))
    assert [f.version for f in finished.build_files] == ["1.21.0"]
    with pytest.raises(BuildError, match="its build requirements cannot be installed"):
        asked.finish(target)


@pytest.mark.parametrize(
    ("log", "changes"),
    [
        ("ModuleNotFoundError: No module named 'numpy'", {"requires": ("setuptools", "numpy")}),
        ("No module named 'pkg_resources'", {"requires": ("setuptools", "setuptools<81")}),
        ("error: command 'c++' failed", None),
        ("use_2to3 is invalid", {"constraints": ("setuptools<81",)}),
    ],
)
def test_what_is_tried_after_a_failure(log: str, changes: dict[str, Any] | None) -> None:
    plan = BuildRequirements(requires=("setuptools",))
    assert source_locker._another(plan, log) == (
        None if changes is None else replace(plan, **changes)
    )


def test_a_build_that_imports_the_framework_gets_the_targets_own() -> None:
    plan = source_locker._another(
        BuildRequirements(requires=("setuptools",)), "No module named 'torch'"
    )
    assert plan
    assert (plan.with_framework, "ninja" in plan.requires) == (True, True)
    assert (
        BuildRequirements(requires=()).with_more(["torch>=1.7", "cython"]).requires[0] == "cython"
    )
    numpy = replace(NEED, name="numpy")
    framework = replace(numpy, version="1.0", sha256="7" * 64)
    target = Target(
        platform="linux/amd64",
        python="3.11",
        base=None,
        files=(framework,),
        build_files=(numpy, replace(NEED, sha256="6" * 64)),
    )
    recipe = Recipe(kind="sdist", location="x", sha256="1" * 64, requires=(numpy.sha256,))
    file = replace(NEED, recipe=replace(recipe, with_framework=True))
    assert source_locker.builders(file, target) == (numpy,)
    beside = replace(target, build_files=())
    assert source_locker.builders(file, beside) == (framework,)


KERNELS = "7.5;8.0;8.6;9.0;10.0;12.0"
TOOLKIT = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-runtime==13.0.96",
)


@pytest.mark.parametrize(
    ("torch", "runtime", "wished", "architectures", "requires"),
    [
        ("2.13.0", "nvidia-cuda-runtime==13.0.96", (), KERNELS, TOOLKIT),
        ("2.13.0", "nvidia-cuda-runtime==13.0.96", ("8.6+PTX",), "8.6+PTX", TOOLKIT),
        ("9.9.9", "nvidia-cuda-runtime==13.0.96", ("9.0a", "12.0"), "9.0a;12.0", TOOLKIT),
        ("2.10.0", "nvidia-cuda-runtime-cu12==12.8.90", ("7.0",), "7.0", ()),
        ("2.13.0+cpu", "", (), "", ()),
        ("", "nvidia-cuda-runtime==13.0.96", (), "", ()),
    ],
)
@pytest.mark.parametrize("source", ["setup.py", "x.cu"])
def test_what_compiles_cuda_for_a_target(
    project: Settings,
    machine: dict[str, Any],
    source: str,
    torch: str,
    runtime: str,
    wished: tuple[str, ...],
    architectures: str,
    requires: tuple[str, ...],
) -> None:
    """It is of the CUDA and for the GPUs of the target's PyTorch, and part of what is locked."""
    assert project.project
    lay(project.project / "tiny", {source: CUDA_SETUP})
    if source == "setup.py":
        lay(project.project / "tiny", {"PKG-INFO": sources.INFO})
    machine["file"] = COMPILED
    asked = SourceLocker(Resolution(build=True, cuda_architectures=wished), project)
    beside = [replace(NEED, name="torch", version=torch)] if torch else []
    if runtime:
        name, _, version = runtime.partition("==")
        beside.append(replace(NEED, name=name, version=version))
    target = asked.finish(_target(asked, "linux/amd64", "3.11", *beside))
    recipe = target.files[-1].recipe
    assert recipe
    assert (recipe.cuda_architectures, machine["toolkit"]) == (architectures, requires)
    by_torch = source == "setup.py"
    assert (recipe.with_framework, machine["beside"]) == (by_torch, by_torch)
    # Beside PyTorch it is built when it is needed; without a toolkit, once for both.
    assert target.files[-1].kind == ("source" if by_torch else "wheel")
    assert machine["builds"] == (0 if by_torch else 2 if architectures else 1)


def test_what_a_source_shows_is_enough_where_it_cannot_be_built(
    project: Settings, machine: dict[str, Any]
) -> None:
    """A version that only its code knows is that of a tag, else setuptools' own for none."""
    machine["file"] = BuildError("tiny: its build failed")

    def prepared(*shown: Any) -> source_locker.Candidate:
        source_locker._REMEMBERED.clear()
        asked = SourceLocker(Resolution(build=True), project, shown=lambda _: shown)
        return asked.prepare("tiny", pythons=["3.11"], location="./tiny")

    for version, expected in (("", "0.0.0"), ("1.2", "1.2")):
        candidate = prepared("tiny", version, ("six",))
        assert candidate.version == expected
        assert candidate.requires_dist == ("six",)
    tagged = SourceLocker(Resolution(build=True), project, shown=lambda _: ("tiny", "", ()))
    assert tagged._likely(Path("x"), "1.5") == Metadata(name="tiny", version="1.5")


def test_what_is_wrong_with_a_source_names_the_package(project: Settings) -> None:
    assert project.project
    lay(project.project / "tiny", {"pyproject.toml": "["})
    with pytest.raises(BuildError, match=r"^tiny: its pyproject\.toml is not valid TOML"):
        SourceLocker(Resolution(build=True), project).prepare(
            "tiny", pythons=["3.11"], location="./tiny"
        )


def test_gpus_that_no_table_has_must_be_named(project: Settings) -> None:
    assert project.project
    lay(project.project / "tiny", {"setup.py": CUDA_SETUP, "PKG-INFO": sources.INFO})
    asked = SourceLocker(Resolution(build=True), project)
    beside = [replace(NEED, name=n, version="13.9.9") for n in ("torch", "nvidia-cuda-runtime")]
    with pytest.raises(BuildError, match="cannot determine which GPUs") as caught:
        asked.finish(_target(asked, "linux/amd64", "3.11", *beside))
    assert "cuda_architectures" in caught.value.hint


def test_what_a_source_requires_is_read_once_and_of_few_files(
    project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = f"{sources.INFO}Requires-Dist: six\nRequires-Dist: [no requirement\n"
    path = sources.archive(tmp_path / "tiny-1.0.tar.gz", {"PKG-INFO": info, "a/b/data.bin": "1"})
    link = Listed(file=path.name, location=str(path), sha256=file_sha256(path))
    unpacked: list[str] = []
    unpack = source.unpack

    def seen(recipe: Recipe, settings: Settings, folder: Path, *only: Any) -> Path:
        built = unpack(recipe, settings, folder, *only)
        unpacked.extend(file.name for file in folder.rglob("*") if file.is_file())
        return built

    monkeypatch.setattr(source, "unpack", seen)
    assert [source_locker.requirements(link, project) for _ in range(2)] == [("six",)] * 2
    assert unpacked == ["PKG-INFO"]
