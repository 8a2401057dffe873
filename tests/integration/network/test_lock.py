"""Locks made by the real uv, against an index of tiny wheels on this machine's loopback address."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from envbuilder.core import process
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Configuration, Definition, Settings
from envbuilder.locks import blockers, resolve
from envbuilder.locks.chooser import Chooser
from envbuilder.packages import upstream
from envbuilder.packages.python.uv import Memory, Offer
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile, Resolution
from envbuilder.project.lines import Line
from tests.support import index_server, make_wheels as small_wheels
from tests.support.shipped import shipped_profile

Served = TypeVar("Served")


def wheel(folder: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any") -> Path:
    """A wheel without code."""
    return small_wheels.write(folder, name, {}, version=version, needs=needs, tag=tag)


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index but the test's own."""
    for name in (
        "PIP_FIND_LINKS",
        "PIP_EXTRA_INDEX_URL",
        "PIP_INDEX_URL",
        "UV_INDEX",
        "UV_FIND_LINKS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings(
        project=None, config_dir=tmp_path, cache_dir=tmp_path / "cache", data_dir=tmp_path,
        configuration=Configuration(indexes={"pytorch-cpu": "http://127.0.0.1:9/none"}),
    )  # fmt: skip


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "top", "1.0", "leaf>=1")
    wheel(folder, "leaf", "1.0")
    wheel(folder, "uv", "0.13.8")
    return folder


class Default:
    """The default index: what a folder of wheels holds, offered anew at each start."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch

    def lock(
        self,
        asked: Profile,
        own: Settings,
        previous: Lock | None = None,
        upgrade: bool = False,
        **options: Any,
    ) -> Lock:
        lock = self.serving(lambda: resolve.resolve(asked, own, previous, upgrade, **options))
        assert "://127" not in lockfile.dump(lock)
        return lock

    def serving(self, action: Callable[[], Served]) -> Served:
        """What an action comes to while this index can be reached."""
        found = [upstream.read_wheel(p) for p in sorted(self.folder.glob("*.whl"))]
        with index_server.serve(found) as url:
            self.monkeypatch.setenv("UV_DEFAULT_INDEX", url)
            return action()


@pytest.fixture
def default(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Default:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return Default(wheels, monkeypatch)


def profile(*requirements: str, **changes: object) -> Profile:
    plain = msgspec.structs.replace(
        shipped_profile("cpu"),
        platforms=("linux/amd64",),
        python=profiles.Python(default="3.11", supported=("3.11",)),
        requirements=requirements or ("top",),
        indexes={},
        system_packages=(),
        preload=(),
    )
    return msgspec.structs.replace(plain, **changes)


def versions(lock: Lock) -> dict[str, str]:
    return {f.name: f.version for f in lock.files}


def test_what_uv_answered_in_a_command_is_not_asked_again(default: Default, own: Settings) -> None:
    questions: list[str] = []

    def run(argv: Sequence[str], **options: Any) -> process.Completed:
        questions.append(" ".join(argv))
        return process.run(argv, **options)

    memory = Memory(answers={})
    first = default.lock(profile(), own, run=run, memory=memory)
    number = len(questions)
    assert number > 1
    assert default.lock(profile(), own, run=run, memory=memory) == first
    assert len(questions) == number
    excluded = Resolution(exclude=("leaf",))
    less = default.lock(profile(resolution=excluded), own, run=run, memory=memory)
    assert versions(less) == {"top": "1.0", "uv": "0.13.8"}
    assert len(questions) > number


def test_names_versions_and_hashes(default: Default, wheels: Path, own: Settings) -> None:
    lock = default.lock(profile(), own)
    assert versions(lock) == {"leaf": "1.0", "top": "1.0", "uv": "0.13.8"}
    assert lock.state == "locked"
    for file in lock.files:
        data = (wheels / file.file).read_bytes()
        assert file.sha256 == hashlib.sha256(data).hexdigest()
        assert file.source == "default"


def test_images_of_a_project_get_what_its_wheels_need(
    default: Default, wheels: Path, own: Settings
) -> None:
    wheel(wheels, "opencv_python", "5.0")
    asked = profile("opencv-python")
    assert not default.lock(asked, own).targets[0].system_packages
    project = msgspec.structs.replace(own, definition=Definition())
    lock = default.lock(asked, project)
    (target,) = lock.targets
    assert target.system_packages["libglib2.0-0"] == ("opencv-python",)
    debs = {deb.name: deb.size for deb in target.of_kind("deb")}
    assert {"libgl1-mesa-dri", *target.system_packages} <= debs.keys()
    assert default.lock(asked, project, lock) == lock


def test_twice_gives_the_same_text(default: Default, own: Settings) -> None:
    one = default.lock(profile(), own)
    assert lockfile.dump(default.lock(profile(), own)) == lockfile.dump(one)
    assert lockfile.dump(default.lock(profile(), own, one)) == lockfile.dump(one)


def test_only_an_upgrade_moves_pins(default: Default, wheels: Path, own: Settings) -> None:
    before = default.lock(profile(), own)
    wheel(wheels, "leaf", "1.1")
    wheel(wheels, "top", "2.0", "leaf>=1")
    assert versions(default.lock(profile(), own, before)) == versions(before)
    moved = default.lock(profile("top==1.0"), own, before, upgrade=True)
    assert versions(moved) == {"leaf": "1.1", "top": "1.0", "uv": "0.13.8"}
    assert versions(default.lock(profile(), own, before, upgrade=True))["top"] == "2.0"


def test_what_no_longer_fits_moves_alone(default: Default, wheels: Path, own: Settings) -> None:
    wheel(wheels, "other", "1.0")
    before = default.lock(profile("top", "other"), own)
    wheel(wheels, "leaf", "1.1")
    wheel(wheels, "other", "1.1")
    after = default.lock(profile("top", "other>=1.1"), own, before)
    assert versions(after) == {"leaf": "1.0", "other": "1.1", "top": "1.0", "uv": "0.13.8"}


def test_no_choice_makes_it_unlocked(default: Default, own: Settings) -> None:
    lock = default.lock(profile("top", "leaf<1"), own)
    assert lock.state == "unlocked"
    assert "leaf" in lock.why
    assert "://" not in lock.why


def test_an_index_out_of_reach_is_no_lock_at_all(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(BuildError, match=r"the index .* cannot be reached"):
        resolve.resolve(profile(), own)


def claimed(folder: Path, sha256: str = "e" * 64) -> Offer:
    return Offer(
        distribution="leaf", version="5.0+up", file="leaf-5.0+up-py3-none-any.whl", sha256=sha256,
        source="pytorch-cpu", provenance="claim", by="a public lock",
        requires_dist=("top",),
    )  # fmt: skip


@pytest.mark.parametrize("configured", ["", "UV_NO_CONFIG", "UV_CONFIG_FILE"])
def test_claims_are_resolved_with_their_requirements(
    default: Default,
    wheels: Path,
    own: Settings,
    monkeypatch: pytest.MonkeyPatch,
    configured: str,
) -> None:
    if configured:  # what uv reads of the user does not hide the requirements of a claim
        (wheels.parent / "named.toml").write_text("no-binary = false\n")
        values = {"UV_NO_CONFIG": "1", "UV_CONFIG_FILE": str(wheels.parent / "named.toml")}
        monkeypatch.setenv(configured, values[configured])
    monkeypatch.setattr(upstream, "claims", lambda *_: (claimed(wheels),))
    asked = profile("leaf==5.0+up", indexes={"leaf": "pytorch-cpu"})
    lock = default.lock(asked, own)
    assert versions(lock) == {"leaf": "5.0+up", "top": "1.0", "uv": "0.13.8"}
    leaf = lock.targets[0].files[0]
    assert (leaf.source, leaf.provenance, leaf.by) == ("pytorch-cpu", "claim", "a public lock")
    assert leaf.sha256 == "e" * 64
    assert lock.state == "claimed"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder that pip is told to look into."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return wheel(links, "leaf", "3.0")


def test_find_links_are_used_as_pip_would(default: Default, own: Settings, local: Path) -> None:
    lock = default.lock(profile(), own)
    leaf = lock.targets[0].files[0]
    assert (leaf.name, leaf.version, leaf.source) == ("leaf", "3.0", "default")
    assert leaf.sha256 == hashlib.sha256(local.read_bytes()).hexdigest()


def test_every_file_has_its_size_although_the_index_states_none(
    default: Default, wheels: Path, own: Settings, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = default.lock(profile(), own)
    read = upstream.read_wheel
    monkeypatch.setattr(
        upstream, "read_wheel", lambda path: msgspec.structs.replace(read(path), size=None)
    )
    asked = default.lock(profile(), own)
    real = {p.name: p.stat().st_size for p in (*wheels.iterdir(), local)}
    files = asked.files
    assert [f.name for f in files] == ["uv", "uv", "uv", "leaf", "top"]
    assert {f.file: f.size for f in files} == {f.file: real[f.file] for f in files}
    assert asked == stated


def test_an_upstream_wheel_is_read(default: Default, own: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "upstream"
    folder.mkdir()
    real = upstream.read_wheel(wheel(folder, "torch", "7.0+up", "leaf"))
    with index_server.serve([real]) as url:
        there = Configuration(indexes={"pytorch-cpu": url})
        lock = default.lock(
            profile("torch==7.0+up", indexes={"torch": "pytorch-cpu"}),
            msgspec.structs.replace(own, configuration=there),
        )
    assert versions(lock) == {"leaf": "1.0", "torch": "7.0+up", "uv": "0.13.8"}
    torch = next(f for f in lock.targets[0].files if f.name == "torch")
    assert (torch.sha256, torch.provenance, torch.by) == (
        real.sha256, "read", "the index pytorch-cpu",
    )  # fmt: skip
    assert torch.size == real.size
    assert lock.state == "locked"


def test_the_release_that_a_package_needs(default: Default, wheels: Path, own: Settings) -> None:
    for version in ("2.4.1", "2.13.0"):
        wheel(wheels, "torch", version)
    wheel(wheels, "ext", "1.0", "torch==2.4.1", "leaf")
    wheel(wheels, "ext", "2.0", "torch>=2.13")
    wheel(wheels, "loose", "3.0", "torch")
    wanted = ("torch==2.13.0", "loose", "ext<2")
    asked = msgspec.structs.replace(shipped_profile("cuda"), requirements=wanted, constraints=())

    def releases(*limits: str) -> list[Line | None]:
        with blockers.Diagnosis(own) as diagnosis:
            chooser = Chooser(asked, own, diagnosis)
            ways = default.serving(lambda: [*chooser.alternatives("3.11", limits)])
        return [way.release for way in ways if way.python == "3.11"]

    assert releases() == [Line("torch==2.4.1", "ext 1.0")]
    assert releases("torch>=2.1") == [Line("torch==2.4.1", "ext 1.0")]
    assert releases("torch>=2.5") == []  # the project's own limit


def test_pins_that_no_longer_fit_move_to_the_nearest_later_versions(
    default: Default, wheels: Path, own: Settings
) -> None:
    for version in ("1", "2", "3", "4"):
        wheel(wheels, "torch", f"2.{version}.0")
        wheel(wheels, "text", f"0.{version}", f"torch==2.{version}.0")
    for version in ("1.0", "1.5", "2.0"):
        wheel(wheels, "pinned", version, "leaf")
    wheel(wheels, "other", "1.0", "torch>=2.2")
    texts = ("torch==2.1.0", "text==0.1", "pinned==1.2", "other==1.0", "loose")
    wheel(wheels, "loose", "3.0", "torch")
    lines = [Line(text, "requirements.txt:1") for text in texts]
    asked = msgspec.structs.replace(
        shipped_profile("cuda"), release="2.1.0", requirements=texts, constraints=()
    )
    with blockers.Diagnosis(own) as diagnosis:
        chooser = Chooser(asked, own, diagnosis)
        nearest = default.serving(lambda: [*chooser.moved("3.11", lines)][-1])
    assert nearest[0].release(asked) == "2.2.0"
    assert nearest[1] == {"pinned": "1.5", "text": "0.2", "torch": "2.2.0"}


def test_a_framework_is_locked_under_one_name(
    default: Default, wheels: Path, own: Settings
) -> None:
    for name in ("tensorflow", "tensorflow_cpu"):
        wheel(wheels, name, "2.0", "leaf")
        wheel(wheels, name, "3.0", "leaf")
    wheel(wheels, "tf_keras", "2.0", "tensorflow>=2,<3")
    wheel(wheels, "tf_keras", "3.0", "tensorflow>=3")
    asked = profile("tensorflow-cpu==2.0", "tf-keras", framework="tensorflow")
    lock = default.lock(asked, own)
    assert versions(lock) == {
        "leaf": "1.0",
        "tensorflow-cpu": "2.0",
        "tf-keras": "2.0",
        "uv": "0.13.8",
    }
    newer_only = msgspec.structs.replace(asked, requirements=("tensorflow-cpu==2.0", "tf-keras>=3"))
    refused = default.lock(newer_only, own)
    assert refused.state == "unlocked"
    assert "tensorflow" in refused.why
