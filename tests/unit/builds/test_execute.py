"""Steps of a plan, and that a failing one leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envbuilder.builds import plan, records
from envbuilder.builds.backends.integrity import MARKER
from envbuilder.builds.execute import execute
from envbuilder.core import process
from envbuilder.core.errors import BuildError
from envbuilder.core.settings import Settings
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support import debs
from tests.support.folders import names_in
from tests.support.packed import zipped
from tests.support.programs import completed
from tests.support.progress import SILENT
from tests.support.recorded import replaced
from tests.support.repositories import lay

REAL_POPEN = subprocess.Popen


def stored(found: Settings, name: str, content: bytes, kind: str = "wheel") -> File:
    file = File(
        kind=kind,  # type: ignore[arg-type]
        name="x",
        version="1",
        file=name,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        source="default",
        provenance="read",
        by="test",
    )
    store = Store(found.store_dir)
    with store.receiving(file.sha256) as part:
        part.write_bytes(content)
        store.accept(part, file, "test")
    return file


def planned(found: Settings, *steps: plan.Step) -> plan.Plan:
    return plan.Plan(
        profile="x",
        backend="venv",
        builder="uv",
        platform="linux/amd64",
        python="3.11",
        fingerprint="f" * 64,
        artifact=plan.Artifact(kind="venv", ref=str(found.envs_dir / "x")),
        workdir=str(found.envs_dir / ".x.partial"),
        files=(),
        steps=steps,
    )


def run(found: Settings, *steps: plan.Step) -> None:
    execute(planned(found, *steps), found, SILENT)


@pytest.fixture
def work(found: Settings) -> Path:
    """Where a plan does its work."""
    return found.envs_dir / ".x.partial"


def put_in_place(found: Settings, work: Path, name: str, text: str = "") -> None:
    """Make an environment of one file, and move it into place."""
    run(
        found,
        plan.Write(what="w", path=f"{work}/env/{name}", text=text),
        plan.Move(what="m", source=f"{work}/env", target=f"{found.envs_dir}/x"),
    )


def test_what_another_process_built_meanwhile_is_left_alone(found: Settings) -> None:
    target = lay(found.envs_dir, {"x/file": "in use"}) / "x/file"
    step = plan.Write(what="write", path=str(target), text="again")
    assert execute(planned(found, step), found, SILENT, lambda: True) is False
    assert target.read_text() == "in use"
    assert execute(planned(found, step), found, SILENT, lambda: False) is True
    assert target.read_text() == "again"


def test_a_built_image_is_recorded_outside_of_it(found: Settings, work: Path) -> None:
    step = plan.RecordImage(
        what="record",
        profile="x",
        fingerprint="f" * 64,
        builder="buildkit",
        metadata=str(work / "image.json"),
        made_by={"docker": "26.1"},
        versions=str(work / "versions"),
        folder=str(found.records_dir / ("f" * 64)),
        names=("x:1",),
    )
    told = {
        "containerimage.config.digest": f"sha256:{1:064}",
        "containerimage.digest": f"sha256:{2:064}",
    }
    versions = plan.Write(what="v", path=step.versions, text="BuildKit version: v0.13.2\n")
    run(found, plan.Write(what="m", path=step.metadata, text=json.dumps(told)), versions, step)
    (record,) = records.read(found.records_dir / ("f" * 64))
    assert record.digest == f"sha256:{1:064}"
    assert record.ids == (f"sha256:{1:064}", f"sha256:{2:064}")
    assert record.made_by == {"docker": "26.1", "buildkit": "v0.13.2"}
    with pytest.raises(BuildError, match="did not report"):
        run(found, plan.Write(what="m", path=step.metadata, text="{}"), versions, step)


def test_what_a_command_prints_is_kept_where_it_is_asked_for(
    found: Settings, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, process, "run", completed(0, "1.2\n", "x"))
    kept = found.envs_dir / "x"
    run(
        found,
        plan.Run(what="ask", argv=("tool",), output=f"{work}/versions"),
        plan.Move(what="m", source=f"{work}/versions", target=str(kept)),
    )
    assert kept.read_text() == "1.2\n"


@pytest.mark.parametrize("failures", [3, 1000])
def test_a_folder_that_is_still_written_to_is_removed_with_patience(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installer that outlived its killed parent fills the folder while it is emptied."""
    (tmp_path / "work").mkdir()
    from envbuilder.builds import execute as module

    real = shutil.rmtree
    tried = []

    def rmtree(path: Path) -> None:
        tried.append(path)
        if len(tried) <= failures:
            raise OSError(39, "Directory not empty")
        real(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    monkeypatch.setattr(module, "_REMOVE_PAUSE_SECONDS", 0)
    if failures == 3:
        module._remove(tmp_path / "work")
        assert not (tmp_path / "work").exists()
    else:
        with pytest.raises(BuildError, match="Directory not empty"):
            module._remove(tmp_path / "work")


def test_a_finished_folder_moves_into_place_and_the_work_is_removed(
    found: Settings, work: Path
) -> None:
    target = found.envs_dir / "x"
    run(
        found,
        plan.Write(what="w", path=f"{work}/env/a", text="hello"),
        plan.WritePayload(what="p", path=f"{work}/env/payload.pyz"),
        plan.Move(what="m", source=f"{work}/env", target=str(target)),
    )
    assert (target / "a").read_text() == "hello"
    assert zipfile.is_zipfile(target / "payload.pyz")
    assert not work.exists()


def test_what_is_replaced_is_never_half_there(
    found: Settings, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while the old environment is being removed must not leave a part of it."""
    target = found.envs_dir / "x"
    lay(target, {MARKER: "old"})
    removed: list[str] = []
    real = shutil.rmtree

    def watched(path: Path) -> None:
        removed.append(str(path))
        real(path)

    monkeypatch.setattr(shutil, "rmtree", watched)
    put_in_place(found, work, MARKER, "new")
    assert (target / MARKER).read_text() == "new"
    assert removed == [str(work)]
    assert not work.exists()


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_envbuilder_did_not_make_is_not_replaced(
    found: Settings, work: Path, tmp_path: Path, kind: str
) -> None:
    place = found.envs_dir / "x"
    theirs = tmp_path / "theirs"
    found.envs_dir.mkdir(parents=True)
    if kind == "file":
        place.write_text("theirs")
    else:
        folder = place if kind == "folder" else theirs
        folder.mkdir()
        (folder / "thesis.tex").write_text("theirs")
        if kind == "link":
            place.symlink_to(theirs)
    with pytest.raises(BuildError, match="already exists, and envbuilder did not make it"):
        put_in_place(found, work, "new")
    assert place.is_symlink() == (kind == "link")
    assert (place if kind == "file" else place / "thesis.tex").read_text() == "theirs"


def test_what_a_killed_build_left_is_not_used(found: Settings, work: Path) -> None:
    lay(work, {"env/old": "half"})
    put_in_place(found, work, "new")
    assert names_in(found.envs_dir / "x") == {"new"}


def test_a_failing_command_ends_the_build_with_its_last_words(
    found: Settings, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", REAL_POPEN)
    script = "import sys; print('long story'); print('the reason', file=sys.stderr); sys.exit(3)"
    with pytest.raises(BuildError, match=r"install: failed .exit 3.:\nthe reason") as caught:
        run(found, plan.Run(what="install", argv=(sys.executable, "-c", script)))
    assert not work.exists()
    log = next(found.logs_dir.glob("*.log"))
    assert str(log) in caught.value.hint
    assert "long story" in log.read_text()


def test_wheels_of_a_venv_that_cannot_be_made_are_linked_to_no_place(
    found: Settings, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, process, "run_uv", completed(2, stderr="no room"))
    step = plan.ShareWheels(
        what="install",
        files=(),
        unpacked=str(found.unpacked_dir),
        installed="installed",
        identity="venv",
        unpack_uv=tool(found),
        make_venv=plan.RunUv(what="make a venv", argv=("uv", "venv")),
        install=plan.RunUv(what="install", argv=("uv", "pip")),
        scratch=f"{work}/scratch",
        wheels=f"{work}/wheels",
        requirements=f"{work}/requirements.txt",
        env=f"{work}/env",
        venv=f"{work}/env",
        python="python3.11",
        version="3.11.9",
    )
    with pytest.raises(BuildError, match="make a venv: failed"):
        run(found, step)
    assert not work.exists()


def tool(found: Settings) -> plan.UnpackTool:
    """The step that extracts a program."""
    wheel = zipped({"uv-1.data/scripts/uv": b"#!/bin/sh\n"})
    return plan.UnpackTool(
        what="u",
        file=stored(found, "uv-1-py3-none-any.whl", wheel),
        name="uv",
        path=str(found.envs_dir / "uv"),
        unpacked=str(found.unpacked_dir),
    )


def test_a_tool_comes_out_of_its_wheel(found: Settings) -> None:
    step = tool(found)
    run(found, step)
    target = Path(step.path)
    assert target.read_bytes() == b"#!/bin/sh\n"
    assert target.stat().st_mode & 0o777 == 0o555
    target.unlink()
    (kept,) = found.unpacked_dir.glob("*/programs/uv")
    kept.chmod(0o755)
    kept.write_bytes(b"changed")
    run(found, step)
    assert target.read_bytes() == b"#!/bin/sh\n"


def unpack_library(found: Settings, data: dict[str, bytes | str]) -> Path:
    """Take `libz.so.1` out of a package of these files."""
    file = stored(found, "pool/z_1_amd64.deb", debs.deb("z", data=data), kind="deb")
    library = found.envs_dir / "lib/libz.so.1"
    run(
        found,
        plan.UnpackLibraries(
            what="l", files=(file,), libraries=(library.name,), folder=str(library.parent)
        ),
    )
    return library


@pytest.mark.parametrize("link", ["libz.so.1.2", "../x/libz.so.1.2", "/usr/lib/x/libz.so.1.2"])
def test_a_library_comes_out_of_its_package_under_its_soname(found: Settings, link: str) -> None:
    library = "usr/lib/x/libz.so.1"
    unpacked = unpack_library(found, {f"{library}.2": b"ELF", library: link})
    assert unpacked.read_bytes() == b"ELF"
    assert not unpacked.is_symlink()


@pytest.mark.parametrize("link", ["../../../../etc/passwd", "/etc/passwd", "libz.so.1"])
def test_a_link_that_leaves_the_package_yields_nothing(found: Settings, link: str) -> None:
    with pytest.raises(BuildError, match=r"libz\.so\.1: not in any of"):
        unpack_library(found, {"usr/lib/libz.so.1": link})


def test_a_full_disk_is_said_and_nothing_stays(
    found: Settings, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path as AnyPath

    def full(self: AnyPath, *args: object, **options: object) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(AnyPath, "write_bytes", full)
    with pytest.raises(BuildError, match="no space left on the disk"):
        run(found, plan.WritePayload(what="p", path=str(found.envs_dir / "a/b")))
    assert not work.exists()
