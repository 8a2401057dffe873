"""Wheels unpacked once: what environments share, and what never enters another one."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from uv import find_uv_bin

from envbuilder.builds import pipeline, shared
from envbuilder.builds.backends import integrity, linked_venv
from envbuilder.builds.image import unpacked
from envbuilder.builds.image.unpacked import Compiler
from envbuilder.builds.payload import COMPILER
from envbuilder.builds.plan import RunUv, ShareWheels, UnpackTool, UnpackWheels, install_wheels
from envbuilder.core import process
from envbuilder.core.errors import BuildError
from envbuilder.packages.store import Store
from tests.support.images import wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.builds.image.unpacked import Unpacked
    from envbuilder.builds.plan import Step
    from envbuilder.profiles.lock import File

MODULE = b"NAMES = {'b', 'a', 'c'}\nclass A:\n    x = 1\n"
FILES = {
    "a/__init__.py": MODULE,
    "a/lib.so": b"elf",
    "a/template.py": b"{{ x }} =\n",
    "a/tests/test_a.py": MODULE,
}
SCRIPT = b"[console_scripts]\ntool = tool:main\n"


def info(name: str) -> dict[str, bytes]:
    """The metadata that an installer needs."""
    return {
        f"{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n".encode(),
        f"{name}-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }


MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
VERSION = platform.python_version()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def file(store: Store) -> File:
    return wheel(store, "a", {**FILES, **info("a")})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "unpacked"


def environment(path: Path, *files: File, root: Path, store: Store) -> Path:
    """Make an environment, and return its site-packages."""
    work = path.with_name(f"{path.name}.work")
    uv = find_uv_bin()
    scratch = str(work / "scratch")
    step = ShareWheels(
        what="",
        files=files,
        unpacked=str(root),
        installed=f"installed-{MINOR}-test",
        identity="test",
        unpack_uv=Mock(spec=UnpackTool),
        make_venv=RunUv(
            what="make", argv=(uv, "venv", "--relocatable", "--python", sys.executable, scratch)
        ),
        install=install_wheels(
            "install",
            uv=uv,
            wheels=str(work / "wheels"),
            cache=str(work / "cache"),
            python=f"{scratch}/bin/python",
            requirements=str(work / "requirements.txt"),
        ),
        scratch=scratch,
        wheels=str(work / "wheels"),
        requirements=str(work / "requirements.txt"),
        env=str(path),
        venv=str(path),
        python=sys.executable,
        version=VERSION,
    )
    work.mkdir()
    linked_venv.make(step, store, performed)
    shutil.rmtree(work)
    return path / step.site


def performed(step: Step) -> None:
    """Run a step of uv."""
    if isinstance(step, RunUv):
        done = process.run_uv(step.argv)
        assert done.returncode == 0, done.stderr


def written(tree: Unpacked) -> dict[str, bytes]:
    return {each.path: (tree.folder / each.path).read_bytes() for each in tree.contents.files}


def compiled(tree: Unpacked, root: Path, python: str = sys.executable) -> Unpacked:
    compiler = Compiler(argv=(python,), identity=VERSION, variables={}, hint="")
    (bytecode,) = unpacked.compile_modules({"a": tree.modules}, root, compiler).values()
    return bytecode


def test_a_wheel_is_unpacked_once_and_read_only(file: File, root: Path, store: Store) -> None:
    first = unpacked.unpack(file, root, store)
    assert written(first) == FILES
    assert (first.folder / "a/lib.so").stat().st_mode & 0o222 == 0
    store.path(file.sha256).unlink()
    assert unpacked.unpack(file, root, store) == first


def test_environments_link_their_files(
    file: File, root: Path, store: Store, tmp_path: Path
) -> None:
    sites = [environment(tmp_path / name, file, root=root, store=store) for name in "ab"]
    first, second = (site / "a/__init__.py" for site in sites)
    assert first.read_bytes() == MODULE
    assert os.path.samestat(first.stat(), second.stat())
    assert "a/lib.so,sha256=" in (sites[0] / "a-1.0.dist-info/RECORD").read_text()
    integrity.close(tmp_path / "a", {})
    assert integrity.altered(tmp_path / "a") == ""


def test_uv_installs_a_wheel_once(
    root: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {
        "tool.py": b"def main():\n    print('here')\n",
        "tool-1.0.dist-info/entry_points.txt": SCRIPT,
        "tool-1.0.data/data/share/tool.txt": b"data",
    }
    tool = wheel(store, "tool", contents | info("tool"))
    site = environment(tmp_path / "a", tool, root=root, store=store)
    program = tmp_path / "a/bin/tool"
    assert subprocess.run([program], check=True, capture_output=True).stdout == b"here\n"
    monkeypatch.setattr(process, "run_uv", Mock(side_effect=AssertionError("uv runs again")))
    environment(tmp_path / "b", tool, root=root, store=store)
    assert os.path.samestat(program.stat(), (tmp_path / "b/bin/tool").stat())
    assert (tmp_path / "b/pyvenv.cfg").stat().st_nlink == 1, "a venv's own files are not shared"
    integrity.close(tmp_path / "b", {})
    assert integrity.altered(tmp_path / "b") == ""
    digest = integrity.portable_digest(tmp_path / "b")
    assert digest == integrity.marker(tmp_path / "b")["digest"]
    rows = (site / "tool-1.0.dist-info/RECORD").read_text().splitlines()
    assert {row.partition(",")[0] for row in rows} >= {"tool.py", "../../../share/tool.txt"}


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_links_are_impossible_environments_own_their_files(
    error: int,
    file: File,
    root: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = unpacked.unpack(file, root, store)
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(error, "no")))
    records = tree.link(tmp_path / "site")
    copy = tmp_path / "site/a/__init__.py"
    assert copy.stat().st_nlink == 1
    assert copy.stat().st_mode & 0o200
    assert all(each.is_same((tmp_path / "site" / each.path).stat()) for each in records)


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that clones files."""
    if os.geteuid() or not shutil.which("mkfs.btrfs"):
        pytest.skip("needs root and mkfs.btrfs")
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 200 << 20)
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no loop mounts: {done.stderr.decode()}")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


def test_clones_are_the_environments_own(file: File, btrfs: Path, store: Store) -> None:
    tree = unpacked.unpack(file, btrfs / "unpacked", store)
    tree.link(btrfs / "site")
    clone = btrfs / "site/a/__init__.py"
    clone.write_bytes(b"x = 2\n")
    assert clone.stat().st_nlink == 1
    assert written(tree) == FILES


def test_a_file_changed_in_place_enters_no_other_environment(
    file: File, root: Path, store: Store, tmp_path: Path
) -> None:
    site = environment(tmp_path / "a", file, root=root, store=store)
    integrity.close(tmp_path / "a", {})
    changed = site / "a/__init__.py"
    changed.chmod(0o644)
    changed.write_bytes(b"evil = 1\n")
    assert "a/__init__.py" in integrity.altered(tmp_path / "a")
    assert "lib.so" not in integrity.altered(tmp_path / "a")
    other = environment(tmp_path / "b", file, root=root, store=store)
    assert (other / "a/__init__.py").read_bytes() == MODULE
    # What was whole is still shared.
    assert os.path.samestat((site / "a/lib.so").stat(), (other / "a/lib.so").stat())


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_records_that_are_lost_or_foreign_are_an_alteration(
    content: str | None, file: File, root: Path, store: Store, tmp_path: Path
) -> None:
    environment(tmp_path / "a", file, root=root, store=store)
    integrity.close(tmp_path / "a", {})
    records = tmp_path / "a" / shared.SHARED
    records.unlink()
    if content is not None:
        records.write_text(content)
    assert shared.SHARED in integrity.altered(tmp_path / "a")


@pytest.mark.parametrize("what", ["files/a/lib.so", "rest.whl", "files.json", "files"])
def test_a_part_that_is_removed_is_unpacked_again(
    what: str, file: File, root: Path, store: Store
) -> None:
    tree = unpacked.unpack(file, root, store)
    part = tree.folder.parent / what
    part.rename(root / "elsewhere")
    again = unpacked.unpack(file, root, store)
    assert written(again) == FILES
    assert again.rest.is_file()


def test_a_full_disk_leaves_nothing_that_counts(
    file: File, root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "recorded", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        unpacked.unpack(file, root, store)
    monkeypatch.undo()
    assert written(unpacked.unpack(file, root, store)) == FILES


KILLED = """
import os, signal, sys
from pathlib import Path
from envbuilder.builds.project_folder import temporary
with temporary(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_unpacking_left_goes_with_the_next(
    file: File, root: Path, store: Store
) -> None:
    work = root / "work"
    work.mkdir(parents=True)
    subprocess.run([sys.executable, "-c", KILLED, work], check=False)
    assert [*work.glob("*/half")]
    unpacked.unpack(file, root, store)
    assert [*work.iterdir()] == []


def test_a_wheel_that_arrives_is_unpacked_before_its_step(
    file: File, root: Path, store: Store, tmp_path: Path
) -> None:
    other = wheel(store, "b", FILES)
    step = UnpackWheels(what="", files=(file,), unpacked=str(root))
    settings = Mock(unpacked_dir=root, store_dir=tmp_path / "store", shared_store=None)
    arrived = pipeline._unpacking(Mock(settings=settings, plan=Mock(steps=(step,))))
    arrived(other)
    assert not root.exists()
    arrived(file)
    assert [each.name for each in root.glob("*/rest.whl")] == ["rest.whl"]
    assert unpacked.Unpacked.read(root / file.sha256 / "files")


def test_bytecode_depends_on_the_source_alone(file: File, root: Path, store: Store) -> None:
    tree = unpacked.unpack(file, root, store)
    bytecode = compiled(tree, root)
    (path,) = written(bytecode)  # a template is no module, and tests are left out
    assert path == importlib.util.cache_from_source("a/__init__.py")
    elsewhere = unpacked.unpack(file, root.with_name("other"), store)
    again = compiled(elsewhere, root.with_name("other"))
    assert written(again) == written(bytecode)


def test_bytecode_of_several_wheels_is_replaced(root: Path, store: Store) -> None:
    wheels = [wheel(store, name, {f"{name}/__init__.py": MODULE}) for name in "ab"]
    trees = {each.sha256: unpacked.unpack(each, root, store).modules for each in wheels}
    compiler = Compiler(argv=(sys.executable,), identity=VERSION, variables={}, hint="")
    for each in unpacked.compile_modules(trees, root, compiler).values():
        (file,) = each.contents.files
        (each.folder / file.path).chmod(0o644)
        (each.folder / file.path).write_bytes(b"")
    again = unpacked.compile_modules(trees, root, compiler)
    assert all(each.is_whole() for each in again.values())


def test_python_loads_the_bytecode_and_never_compares_it(tmp_path: Path) -> None:
    """As an import shows whose source was changed since."""
    module = tmp_path / "module.py"
    module.write_text("import sys\nprint(sys._getframe().f_code.co_filename)\n")
    line = json.dumps([str(tmp_path), str(tmp_path), module.name])
    subprocess.run([sys.executable, COMPILER], input=line.encode(), check=True)
    module.write_text("raise SystemExit(1)\n")
    argv = [sys.executable, "-B", "-c", "import module"]
    done = subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()).name == "module.py"


def test_a_python_that_compiles_nothing_is_an_error(file: File, root: Path, store: Store) -> None:
    tree = unpacked.unpack(file, root, store)
    with pytest.raises(BuildError, match="cannot compile the packages' modules"):
        compiled(tree, root, "/bin/false")


def test_the_manifest_names_bytecode_of_ours_alone(
    file: File, root: Path, store: Store, tmp_path: Path
) -> None:
    site = environment(tmp_path / "a", file, root=root, store=store)
    integrity.close(tmp_path / "a", {})
    (site / "a/__pycache__/other.cpython-311.pyc").write_bytes(b"")
    state = integrity.require_unchanged(tmp_path / "a", "bin/python")
    assert any(entry.path.endswith(".pyc") for entry in state.contents)
    environment(tmp_path / "b", file, root=root, store=store)
    # Another environment's links change times, but no bytes.
    integrity.require_untouched(tmp_path / "a", "bin/python", state)


def test_the_payload_finds_the_bytecode_of_the_build(
    file: File, root: Path, store: Store, tmp_path: Path
) -> None:
    site = environment(tmp_path / "a", file, root=root, store=store)
    shared.link_bytecode(tmp_path / "a", tmp_path / "prefix")
    argv = [sys.executable, "-I", "-B", "-X", f"pycache_prefix={tmp_path / 'prefix'}", "-c"]
    program = f"import sys; sys.path.insert(0, {str(site)!r}); import a; print(a.__cached__)"
    done = subprocess.run([*argv, program], check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_symlink()
