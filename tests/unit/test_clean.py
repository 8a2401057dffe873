"""`clean` removes what carries our mark, follows no link, and can say so beforehand."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from envbuilder import cli, documents, engine, images, settings
from envbuilder.errors import BuildError, ToolError
from envbuilder.seal import MARKER

if TYPE_CHECKING:
    from collections.abc import Sequence

Shown = pytest.CaptureFixture[str]


class FakeEngine:
    """Our images by tag; `answers` False: there is no engine."""

    def __init__(self) -> None:
        self.images = {"envbuilder/cpu:latest": "cpu", "envbuilder/xpu:latest": "xpu"}
        self.answers, self.configured = True, True
        self.removed: list[str] = []

    def own_images(self, profile: str | None) -> tuple[str, ...]:
        if not self.answers:
            raise ToolError("no container engine answers: connection refused")
        return tuple(t for t, p in self.images.items() if profile in {None, p})

    def remove_images(self, refs: Sequence[str]) -> None:
        self.removed += refs


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    made = FakeEngine()
    monkeypatch.setattr(engine, "own_images", made.own_images)
    monkeypatch.setattr(engine, "remove_images", made.remove_images)
    monkeypatch.setattr(engine, "configured", lambda: made.configured)
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def own() -> settings.Settings:
    """The folders that the command itself will see."""
    return settings.load()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["clean", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def folder(path: Path, marker: Any = None) -> Path:
    """A folder with a file; `marker` is what its marker says (text as it is)."""
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").write_text("x")
    if marker is not None:
        text = marker if isinstance(marker, str) else json.dumps(marker)
        (path / MARKER).write_text(text)
    return path


def ours(own: settings.Settings, profile: str = "cpu") -> Path:
    marker = {"made_by": "envbuilder", "profile": profile}
    return folder(own.envs_dir / f"{profile}-py3.11-0123456789ab", marker)


def record(own: settings.Settings, profile: str) -> Path:
    fingerprint = hashlib.sha256(profile.encode()).hexdigest()
    path = own.records_dir / fingerprint
    made = images.ImageRecord(
        profile=profile,
        fingerprint=fingerprint,
        ref="x",
        digest=f"sha256:{fingerprint}",
        ids=(),
        builder="buildkit",
        made_by={},
    )
    images.keep(path, made)
    return path


def leftover(own: settings.Settings) -> Path:
    return folder(own.envs_dir / ".cpu-py3.11-0123456789ab.partial")


def test_only_what_carries_our_mark_is_removed(
    own: settings.Settings, fake: FakeEngine, capsys: Shown
) -> None:
    removed = [ours(own, "cpu"), ours(own, "xpu"), leftover(own)]
    removed.append(folder(own.cache_dir / "build" / "cpu-0123456789ab"))
    removed.append(folder(own.cache_dir / "reproduce" / "tmp123"))
    removed += [record(own, "cpu"), record(own, "xpu")]
    kept = [
        folder(own.records_dir / "no-record"),
        folder(own.envs_dir / "no-marker"),
        folder(own.envs_dir / "other-maker", {"made_by": "conda"}),
        folder(own.envs_dir / "a-list", ["envbuilder"]),
        folder(own.envs_dir / "damaged", '{"made_by": "envbuilder"'),
        folder(own.envs_dir / "binary", "\0"),
        folder(own.envs_dir / ".hidden", {"made_by": "envbuilder"}),
        folder(own.envs_dir / "not-hidden.partial"),
        folder(own.cache_dir / "store" / "sha256"),
        folder(own.reports_dir),
        folder(own.data_dir / "other", {"made_by": "envbuilder"}),
    ]
    (own.envs_dir / "a-file").write_text("x")
    (own.envs_dir / ".x.partial").write_text("a file, too")
    assert run() == 0
    assert [p for p in removed if p.exists()] == []
    assert [p for p in kept if not (p / "bin" / "python").exists()] == []
    assert (own.envs_dir / "a-file").exists()
    assert (own.envs_dir / ".x.partial").exists()
    shown = capsys.readouterr().out
    assert sorted(shown.splitlines()) == sorted(f"removed {x}" for x in [*removed, *fake.images])
    assert fake.removed == list(fake.images)


def test_no_link_is_followed(own: settings.Settings, tmp_path: Path, capsys: Shown) -> None:
    marker = {"made_by": "envbuilder", "profile": "cpu"}
    elsewhere = [folder(tmp_path / name, marker) for name in ("env", "work", "store", "build")]
    own.envs_dir.mkdir(parents=True)
    (own.cache_dir / "build").mkdir(parents=True)
    links = [
        own.envs_dir / "cpu-py3.11-0123456789ab",
        own.envs_dir / ".cpu-py3.11-0123456789ab.partial",
        own.cache_dir / "store",
        own.cache_dir / "build" / "cpu-0123456789ab",
    ]
    for link, target in zip(links, elsewhere, strict=True):
        link.symlink_to(target)
    inside = folder(ours(own, "xpu") / "data")
    (inside / "elsewhere").symlink_to(elsewhere[0])
    assert run("--store") == 0
    assert all((p / "bin" / "python").exists() for p in elsewhere)
    assert all(link.is_symlink() for link in links)
    assert not inside.exists()


def test_a_running_build_is_left_alone(own: settings.Settings) -> None:
    running, killed = leftover(own), folder(own.envs_dir / ".xpu-py3.11-0123456789ab.partial")
    building = folder(own.cache_dir / "build" / "cpu-0123456789ab")
    with FileLock(f"{running}.lock"), FileLock(f"{building}.lock"):
        assert run() == 0
        assert running.exists()
        assert building.exists()
        assert not killed.exists()
    assert run() == 0
    assert not running.exists()
    assert not building.exists()


def test_dry_run_removes_nothing(own: settings.Settings, fake: FakeEngine, capsys: Shown) -> None:
    paths = [ours(own), leftover(own), folder(own.cache_dir / "store")]
    assert run("--dry-run", "--store") == 0
    assert all((p / "bin" / "python").exists() for p in paths)
    assert fake.removed == []
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"would remove {x}" for x in [*paths, *fake.images])


def test_a_dry_run_says_exactly_what_a_run_removes(own: settings.Settings, capsys: Shown) -> None:
    ours(own)
    leftover(own)
    assert run("--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert run("--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert planned == {**done, "dry_run": True}
    assert (done["schema"], done["dry_run"]) == (1, False)
    assert len(done["removed"]) == 4


def test_one_profile(own: settings.Settings, fake: FakeEngine) -> None:
    cpu, xpu, rest = ours(own, "cpu"), ours(own, "xpu"), leftover(own)
    assert run("--profile", "cpu") == 0
    assert not cpu.exists()
    assert xpu.exists()
    assert rest.exists()
    assert fake.removed == ["envbuilder/cpu:latest"]


def test_an_environments_documents_go_with_it_and_nobody_elses(own: settings.Settings) -> None:
    gone = folder(own.envs_dir / "cpu-py3.11-aa", {"made_by": "envbuilder", "profile": "cpu"})
    kept = folder(own.envs_dir / "xpu-py3.11-bb", {"made_by": "envbuilder", "profile": "xpu"})
    for prefix in (gone, kept):
        for suffix in documents.SUFFIXES.values():
            Path(f"{prefix}{suffix}").write_text("{}")
    theirs = own.envs_dir / "cpu-py3.11-aa.notes.json"
    theirs.write_text("mine")
    assert run("--profile", "cpu") == 0
    left = {p.name for p in own.envs_dir.iterdir()}
    assert left == {
        *(kept.name + suffix for suffix in ("", *documents.SUFFIXES.values())),
        theirs.name,
    }


def test_a_profile_that_left_nothing(own: settings.Settings, capsys: Shown) -> None:
    cpu = ours(own, "cpu")
    assert run("--profile", "nope") == 0
    assert cpu.exists()
    assert capsys.readouterr().out == "nothing to remove\n"


def test_the_store_only_when_asked(own: settings.Settings, capsys: Shown) -> None:
    names = ("store", "datasets", "locate", "uv-resolve", "logs")
    made = [folder(own.cache_dir / name) for name in names]
    strange = folder(own.cache_dir / "somebody's")
    report = folder(own.reports_dir)
    assert run() == 0
    assert all(p.exists() for p in made)
    assert run("--store") == 0
    assert not any(p.exists() for p in made)
    assert strange.exists()
    assert report.exists()
    assert capsys.readouterr().out.count("removed ") == 5 + 2 * 2


def test_the_store_belongs_to_no_profile(own: settings.Settings, capsys: Shown) -> None:
    made = [ours(own), folder(own.cache_dir / "store")]
    assert run("--store", "--profile", "cpu") == 2
    assert "leave out --profile" in capsys.readouterr().err
    assert all(p.exists() for p in made)


def test_nothing_there(own: settings.Settings, fake: FakeEngine, capsys: Shown) -> None:
    fake.images = {}
    assert run() == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "removed": [], "dry_run": False}
    assert not own.envs_dir.exists()
    assert not own.cache_dir.exists()


@pytest.mark.parametrize("configured", [True, False])
def test_a_silent_engine_is_a_note_only_where_one_is_configured(
    own: settings.Settings, fake: FakeEngine, capsys: Shown, configured: bool
) -> None:
    fake.answers, fake.configured = False, configured
    prefix = ours(own)
    assert run() == 0
    assert not prefix.exists()
    shown = capsys.readouterr()
    assert shown.out == f"removed {prefix}\n"
    note = "images were not looked at: no container engine answers: connection refused\n"
    assert shown.err == (note if configured else "")


def test_what_cannot_be_removed_is_named(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    prefix = ours(own)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    assert run() == 1
    shown = capsys.readouterr()
    assert f"{prefix}: cannot be removed: Permission denied" in shown.err
    assert shown.out == ""


def test_an_image_in_use_is_named(
    own: settings.Settings, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    def refuse(refs: Sequence[str]) -> None:
        raise BuildError(f"{refs[0]}: cannot be removed: in use", "Stop the containers")

    monkeypatch.setattr(engine, "remove_images", refuse)
    assert run() == 1
    assert "envbuilder/cpu:latest: cannot be removed" in capsys.readouterr().err
