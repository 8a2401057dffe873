"""Room on the disks is asked for before anything is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from envbuilder.build.plan import Artifact, Plan
from envbuilder.core.errors import BuildError
from envbuilder.packages import space
from envbuilder.packages.space import Room, unpacked
from envbuilder.profiles.lock import File

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def require(made: Plan, own: Settings) -> None:
    space.require(made.files, made.room, own)


def file(size: int | None, sha256: str = "0" * 64, about: int | None = None) -> File:
    return File(
        kind="wheel",
        name="a",
        version="1",
        file="a-1-py3-none-any.whl",
        sha256=sha256,
        size=size,
        size_about=about,
        source="default",
        provenance="read",
        by="test",
    )


def plan(found: Settings, *files: File) -> Plan:
    return Plan(
        profile="cpu",
        backend="venv",
        builder="uv",
        platform="linux/amd64",
        python="3.11",
        fingerprint="0",
        artifact=Artifact(kind="venv", ref="x"),
        workdir="x",
        files=files,
        steps=(),
        room=(Room(folder=str(found.envs_dir), bytes=unpacked(files)),),
    )


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    amount = [10_000]
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _: Usage(0, 0, amount[0]))
    return amount


def test_downloads_and_what_is_unpacked_count_together_on_one_disk(
    found: Settings, free: list[int]
) -> None:
    made = plan(found, file(1000))
    free[0] = 2800
    require(made, found)
    free[0] = 2799
    with pytest.raises(BuildError, match="not enough space") as error:
        require(made, found)
    assert "envbuilder clean" in error.value.hint
    assert "ENVBUILDER_CACHE_DIR" in error.value.hint


def test_two_disks_are_asked_apart(
    found: Settings, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    free[0] = 1900
    with pytest.raises(BuildError):
        require(plan(found, file(1000)), found)
    found.envs_dir.mkdir(parents=True)
    real = Path.stat

    class Other:
        st_dev = -1

    def stat(self: Path, **options: bool) -> object:
        return Other() if self == found.envs_dir else real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(Path, "exists", lambda self: self == found.envs_dir or self == Path("/"))
    require(plan(found, file(1000)), found)


def test_what_the_store_has_is_not_fetched_again(found: Settings, free: list[int]) -> None:
    import hashlib

    from envbuilder.packages.store import Store

    data = b"x" * 1000
    sha256 = hashlib.sha256(data).hexdigest()
    store = Store(found.store_dir)
    found.store_dir.mkdir(parents=True)
    with store.receiving(file(1000, sha256)) as part:
        part.write_bytes(data)
        store.accept(part, file(1000, sha256), "test")
    free[0] = 1800
    require(plan(found, file(1000, sha256)), found)


def test_what_an_interrupted_download_left_is_not_needed_again(
    found: Settings, free: list[int]
) -> None:
    part = found.store_dir / "partial" / ("0" * 64)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 900)
    free[0] = 1900
    require(plan(found, file(1000)), found)
    free[0] = 1899
    with pytest.raises(BuildError, match="not enough space"):
        require(plan(found, file(1000)), found)


def test_a_wheel_of_6_gb_needs_room_for_the_download_its_files_and_the_layers(
    found: Settings, free: list[int]
) -> None:
    wheel, gb = file(6_227_849_000), 10**9
    free[0] = 10 * gb
    with pytest.raises(BuildError, match=r"17\.4 GB are needed, 10\.0 GB are free"):
        require(plan(found, wheel), found)


def test_a_size_that_is_about_right_counts_as_one(found: Settings, free: list[int]) -> None:
    """Torch for ROCm has 6.2 GB, of which no source states each wheel's last bytes."""
    free[0] = 17 * 10**9
    with pytest.raises(BuildError, match=r"17\.4 GB are needed, 17"):
        require(plan(found, file(None, about=6_227_849_000)), found)


def test_unknown_sizes_are_told_and_never_guessed(found: Settings, free: list[int]) -> None:
    free[0] = 0
    with pytest.raises(BuildError, match="and 1 files of unknown size"):
        require(plan(found, file(None), file(5, "1" * 64)), found)
    require(plan(found, file(None)), found)
