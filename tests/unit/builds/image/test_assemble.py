"""Images out of layers: what is made, what is taken from the cache, and what is never trusted."""

from __future__ import annotations

import io
import sys
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace

from envbuilder.builds import conventions
from envbuilder.builds.image import assemble, system, wheels as wheel_layers
from envbuilder.builds.image.assemble import Assembly, Preloader
from envbuilder.builds.image.base import Added, BaseContents
from envbuilder.builds.image.layer_cache import LayerCache
from envbuilder.builds.image.wheels import Python, Stage
from envbuilder.builds.plan import Assemble, Run, Step, System, UnpackTool
from envbuilder.containers.oci import layer, rootfs
from envbuilder.containers.oci.layer import Member
from envbuilder.containers.oci.layout import Descriptor, Layout, Manifest
from envbuilder.containers.oci.rootfs import RootFs, read
from envbuilder.core.errors import BuildError
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File
from tests.support import project_layers
from tests.support.images import BASE, image, wheel

SITE = "lib/python3.11/site-packages"


class Uv:
    """Stands in for uv: makes environments and unpacks wheels, and notes what it did."""

    def __init__(self) -> None:
        self.installed: list[str] = []
        self.stray = False
        self.unpacked: set[str] = set()

    def __call__(self, step: Step) -> None:
        if isinstance(step, UnpackTool):
            return
        assert isinstance(step, Run)
        if "venv" in step.argv:
            env = Path(step.argv[-1])
            (env / SITE).mkdir(parents=True)
            (env / "bin").mkdir()
            (env / "bin/python").symlink_to("/usr/bin/python3.11")
            (env / "pyvenv.cfg").write_text("home = /usr/bin\n")
            return
        option = dict(zip(step.argv, step.argv[1:], strict=False))
        env = Path(option["--python"]).parent.parent
        for path in sorted(Path(option["--find-links"]).iterdir()):
            name, version = path.name.split("-")[:2]
            self.installed.append(name)
            with zipfile.ZipFile(path) as archive:
                archive.extractall(env / SITE)
                self.unpacked |= {*archive.namelist()}
                record = [f"{n},," for n in archive.namelist() if not n.endswith("RECORD")]
            script = env / "bin" / name
            script.write_text(f"#!/bin/sh\n# {name}\n")
            info = env / SITE / f"{name}-{version}.dist-info"
            info.mkdir(exist_ok=True)
            record += [f"../../../bin/{name},,", f"{info.name}/RECORD,,"]
            if self.stray:
                record.append("../../../../etc/passwd,,")
            (info / "RECORD").write_text("\n".join(record) + "\n")


class Bench:
    """A base, a store, a cache, and images made with them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uv = folder, Uv()
        self.notes: list[str] = []
        self.shown: list[tuple[int, int]] = []
        self.store = Store(folder / "store")
        self.base = image(folder / "base")
        self.count = 0

    def make(self, wheels: Sequence[File], **changes: Any) -> tuple[Layout, Manifest]:
        self.count += 1
        work = self.folder / f"work{self.count}"
        stated: dict[str, Any] = {
            "what": "test", "base": str(self.base.folder), "layout": str(work / "layout"),
            "platform": "linux/amd64", "python": "3.11", "epoch": 1_700_000_000, "uv": uv(self),
            "wheels": tuple(wheels), "debs": (), "system": None,
            "variables": {"VIRTUAL_ENV": "/opt/env"}, "labels": {"a": "b"},
            "names": ("envbuilder/x:1",), "ahead": "", "cache": str(self.folder / "cache"),
            "fresh": False, "work": str(work / "stage"), "records": str(self.folder / "records"),
            "unpacked": str(self.folder / "unpacked"),
        }  # fmt: skip
        step = Assemble(**{**stated, **changes})
        show = self.shown
        layout = Assembly(
            step, self.store, self.uv, self.notes.append, lambda *so_far: show.append(so_far)
        ).make()
        return layout, layout.manifest("linux/amd64")


def uv(bench: Bench) -> File:
    return wheel(bench.store, "uv", {"uv": b"program"})


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(wheel_layers, "LARGE", 4000)
    return Bench(tmp_path)


@pytest.fixture
def wheels(bench: Bench) -> list[File]:
    return [
        wheel(bench.store, "small", {"small.py": b"1"}),
        wheel(bench.store, "torch", {"torch/lib.so": bytes(5000)}),
        wheel(bench.store, "tiny", {"tiny.py": b"2"}),
    ]


def test_a_large_file_of_a_wheel_is_never_held_in_memory(bench: Bench) -> None:
    size = 1 << 26
    large = wheel(bench.store, "torch", {"torch/lib.so": bytes(size)})
    tracemalloc.start()
    try:
        bench.make([large])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size // 2


def test_it_shows_how_much_of_the_missing_layers_is_written(
    bench: Bench, wheels: list[File]
) -> None:
    bench.make(wheels)
    done, totals = zip(*bench.shown, strict=True)
    assert len(set(totals)) == 1
    assert totals[0] > 5000
    assert list(done) == sorted(done)
    assert done[-1] == totals[0]
    bench.shown.clear()
    bench.make(wheels)  # everything is in the cache
    assert bench.shown == []


def test_the_image_is_the_base_the_wheels_the_environment_and_the_payload(
    bench: Bench, wheels: list[File]
) -> None:
    layout, manifest = bench.make(wheels)
    root = read(layout, manifest)
    for path in (f"opt/env/{SITE}/torch/lib.so", "opt/env/bin/tiny", "opt/envbuilder/payload.pyz"):
        assert root.entries[path].kind == "file", path
    assert root.entries["opt/env/bin/python"].target == "/usr/bin/python3.11"
    assert (root.entries["work"].uid, root.entries["home/user"].gid) == (1000, 1000)
    assert root.contents["etc/passwd"].endswith(b"user:x:1000:1000::/home/user:/bin/sh\n")
    assert root.contents["etc/passwd"].startswith(b"root:")
    config = layout.read_config(manifest)
    assert config["config"]["Env"] == [
        "PATH=/opt/env/bin:/usr/local/bin:/usr/bin", "VIRTUAL_ENV=/opt/env",
    ]  # fmt: skip
    assert config["config"]["User"] == "1000:1000"
    assert len(config["rootfs"]["diff_ids"]) == len(manifest.layers) == 5
    assert [h["created_by"] for h in config["history"]] == [
        "envbuilder: torch 1.0", "envbuilder: 2 smaller packages",
        "envbuilder: environment for Python 3.11.2", "envbuilder: payload",
    ]  # fmt: skip


def test_every_build_gives_the_same_image(bench: Bench, wheels: list[File]) -> None:
    _, first = bench.make(wheels)
    bench.uv.installed.clear()
    _, second = bench.make(wheels)
    assert first == second
    assert bench.uv.installed == [], "all from the cache"
    _, third = bench.make(wheels[::-1], fresh=True)
    assert sorted(bench.uv.installed) == ["small", "tiny", "torch"], "nothing from the cache"
    assert {d.digest for d in third.layers} == {d.digest for d in first.layers}
    assert third == first


def test_a_changed_file_of_the_project_rewrites_the_last_layer_only(
    bench: Bench, wheels: list[File], tmp_path: Path
) -> None:
    _, bare = bench.make(wheels)
    code = tmp_path / "code"
    files = {"train.py": b"print(1)", "src/pkg/a.py": b""}
    project = project_layers.lay(code, files, command=("python", "train.py"), ports=(80,))
    layout, first = bench.make(wheels, project=project)
    assert first.layers[:-1] == bare.layers
    root = read(layout, first)
    for path, kind in (("work/train.py", "file"), ("work/src/pkg", "folder"), ("work", "folder")):
        entry = root.entries[path]
        assert (entry.kind, entry.uid, entry.time) == (kind, 1000, 1_700_000_000), path
    config = layout.read_config(first)
    assert config["config"]["Cmd"] == ["python", "train.py"]
    assert config["config"]["ExposedPorts"] == {"80/tcp": {}}
    assert config["history"][-1]["created_by"] == "envbuilder: project"
    bench.uv.installed.clear()
    changed = project_layers.lay(code, {**files, "train.py": b"print(2)"})
    _, second = bench.make(wheels, project=changed)
    assert bench.uv.installed == []
    assert second.layers[:-1] == bare.layers
    assert second.layers[-1] != first.layers[-1]


def test_the_base_is_checked_before_anything_is_put_on_it(bench: Bench, wheels: list[File]) -> None:
    bench.make(wheels)  # what it contains is known from now on
    (layer,) = bench.base.manifest("linux/amd64").layers
    bench.base.blob(layer.digest).write_bytes(b"x" * layer.size)
    with pytest.raises(BuildError, match="damaged"):
        bench.make(wheels)


def test_a_record_that_leads_out_of_the_environment_is_refused(
    bench: Bench, wheels: list[File]
) -> None:
    bench.uv.stray = True
    with pytest.raises(BuildError, match="leads outside"):
        bench.make(wheels)


def test_there_are_never_more_layers_than_engines_take(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "MOST_LAYERS", 7)
    large = [wheel(bench.store, f"w{n}", {f"w{n}/x": bytes(5000 + n)}) for n in range(6)]
    _, manifest = bench.make(large)
    assert len(manifest.layers) <= 7
    assert len(bench.uv.installed) == 6


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers hold 4,000 bytes of files at most."""
    monkeypatch.setattr(wheel_layers, "CUT", 4000)
    monkeypatch.setattr(assemble, "CUT", 4000)


@pytest.mark.usefixtures("cut")
def test_a_large_wheel_is_cut_and_nothing_is_lost(bench: Bench) -> None:
    files = {
        "torch/a.py": bytes(3000), "torch/b.py": bytes(3000), "torch/c.py": b"",
        "torch/lib.so": bytes(9000), "torch-1.0.data/scripts/run": b"#!python\n",
    }  # fmt: skip
    torch = wheel(bench.store, "torch", files)
    layout, manifest = bench.make([torch])
    config = layout.read_config(manifest)
    assert [h["created_by"] for h in config["history"]][:3] == [
        "envbuilder: torch 1.0: torch/a.py", "envbuilder: torch 1.0: torch/lib.so",
        "envbuilder: torch 1.0",
    ]  # fmt: skip
    each = [rootfs_of(layout, manifest, n) for n in (1, 2, 3)]
    site = f"opt/env/{SITE}"
    assert each[0] == {f"{site}/torch/a.py"}
    assert each[1] == {f"{site}/torch/lib.so"}
    assert {f"{site}/torch/b.py", f"{site}/torch/c.py", "opt/env/bin/torch"} < each[2]
    assert not each[2] & (each[0] | each[1])
    # The stand-in for uv only unpacks: what it left is there, wherever uv would put it.
    assert bench.uv.unpacked == {"torch-1.0.data/scripts/run", "torch-1.0.dist-info/RECORD"}


@pytest.mark.usefixtures("cut")
def test_a_cut_wheel_of_which_one_layer_is_lost_is_made_whole(bench: Bench) -> None:
    torch = wheel(bench.store, "torch", {"torch/a.py": bytes(3000), "torch/lib.so": bytes(9000)})
    _, before = bench.make([torch])
    for lost in before.layers[1:3]:
        bench.uv.installed.clear()
        digest = lost.digest.removeprefix("sha256:")
        (bench.folder / "cache/blobs/sha256" / digest).unlink()
        _, after = bench.make([torch])
        assert after == before
        needs_uv = lost is before.layers[2]
        assert bench.uv.installed == (["torch"] if needs_uv else [])


def test_the_record_is_that_of_the_whole_wheel(bench: Bench) -> None:
    """uv tells of what it has installed, and that was not the whole."""
    small = wheel(bench.store, "small", {"small.py": b"1", "more/data.txt": b"2"})
    layout, manifest = bench.make([small])
    path = f"opt/env/{SITE}/small-1.0.dist-info/RECORD"
    text = contents(layout, manifest.layers[1])[path].decode()
    rows = [line.partition(",")[0] for line in text.splitlines()]
    assert rows == sorted(rows)
    assert {*rows} >= {"small.py", "more/data.txt", "../../../bin/small"}
    assert "small.py,sha256=a4ayc_80_OGda4BO_1o_V0etpOqiLx1JwB5S3beHW0s,1\n" in text


def contents(layout: Layout, of: Descriptor) -> dict[str, bytes]:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(layout.checked(of).read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar if m.isreg()}  # type: ignore[union-attr]


def test_lower_layers_are_offered_as_images_of_their_own(
    bench: Bench, wheels: list[File], monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[tuple[int, int, Manifest]] = []

    def offer(self: Preloader, added: Sequence[Added], left: int, write: Any) -> None:
        layout = write(added)
        (found,) = layout.index().manifests
        assert found.annotations["io.containerd.image.name"] == "docker.io/envbuilder/ahead:1"
        for blob in layout.read_manifest(found).layers:
            layout.checked(blob)
        offered.append((len(added), left, layout.read_manifest(found)))

    monkeypatch.setattr(Preloader, "offer", offer)
    _, manifest = bench.make(wheels, ahead="envbuilder/ahead:1")
    assert [o[0] for o in offered] == [1, 2]
    assert offered[0][1] > offered[1][1] == 0
    for count, _, lower in offered:
        assert lower.layers == manifest.layers[: 1 + count]
    offered.clear()
    bench.make(wheels, ahead="envbuilder/ahead:1")
    assert offered == [], "what was made before goes with the whole image"


def rootfs_of(layout: Layout, manifest: Manifest, number: int) -> set[str]:
    """The files of one layer."""
    alone = replace(manifest, layers=(manifest.layers[number],))
    entries = read(layout, alone).entries
    return {path for path, entry in entries.items() if entry.kind == "file"}


def test_another_base_gives_the_same_image_with_and_without_a_cache(
    bench: Bench, wheels: list[File]
) -> None:
    """The scaffold repeats the base's folders above it: `/opt` may have another mode and time."""
    _, before = bench.make(wheels)
    opt = Member(path="opt", kind="folder", mode=0o750, time=1_600_000_000)
    bench.base = image(bench.folder / "other", ([*BASE, opt],))
    _, cached = bench.make(wheels)
    assert before.layers[1:3] == cached.layers[1:3], "those of wheels are kept"
    assert before.layers[0] != cached.layers[0]
    _, fresh = bench.make(wheels, fresh=True)
    assert cached == fresh


# --- system packages


class Installer:
    """Stands in for the engine that installs packages, and notes what was there when it ended."""

    def __init__(self, bench: Bench, *packages: str) -> None:
        self.begun = threading.Event()
        self.finished = False
        self.goes_on = threading.Event()
        self.bench = bench
        self.changes: dict[str, Any] = {
            "debs": tuple(replace(uv(bench), kind="deb", name=name) for name in packages),
            "system": System(recipe="0" * 64, steps=(), ref=""),
        }

    def __call__(
        self, step: Assemble, system: System, base: BaseContents, cache: LayerCache, *more: Any
    ) -> tuple[list[Added], RootFs]:
        self.begun.set()
        assert self.goes_on.wait(60)
        path = self.bench.folder / "of-the-engine"
        changed = [Member(path="etc/passwd", content=b"root:x\n"), Member(path="usr/bin/g++")]
        made = cache.keep({"by": "engine"}, layer.write(changed, path, 0), path)
        self.finished = True
        added = Added(layer=made, reason="g++")
        return [added], rootfs.over(base.root, cache.layout.blob(made.digest))


def test_layers_of_wheels_are_made_while_an_engine_installs_packages(
    bench: Bench, wheels: list[File], monkeypatch: pytest.MonkeyPatch
) -> None:
    install = Installer(bench, "g++")
    monkeypatch.setattr(system, "built", install)
    make = Assembly._wheels

    def wheels_first(self: Assembly, preloader: Preloader) -> list[Added]:
        assert install.begun.wait(60), "they are installed from the beginning"
        try:
            return make(self, preloader)
        finally:
            install.goes_on.set()

    monkeypatch.setattr(Assembly, "_wheels", wheels_first)
    layout, manifest = bench.make(wheels, **install.changes)
    history = [h["created_by"] for h in layout.read_config(manifest)["history"]]
    assert history == [
        "envbuilder: torch 1.0", "envbuilder: 2 smaller packages", "envbuilder: g++",
        "envbuilder: environment for Python 3.11.2", "envbuilder: payload",
    ]  # fmt: skip
    users = read(layout, manifest).contents["etc/passwd"]
    assert users.startswith(b"root:x\n"), "what a package's script wrote stays"
    assert users.endswith(b"/home/user:/bin/sh\n")


@pytest.mark.parametrize(
    "base", [b"", b"root:x:0:0::/root:/bin/sh", b"root:x:0:0::/root:/bin/sh\n"]
)
def test_the_images_user_has_a_line_of_its_own(base: bytes) -> None:
    passwd, group, *_ = assemble._users({"etc/passwd": base, "etc/group": base})
    for member, entry in ((passwd, conventions.PASSWD), (group, conventions.GROUP)):
        assert member.content.decode().splitlines() == [*base.decode().splitlines(), entry]


def test_packages_that_may_bring_the_python_are_installed_first(
    bench: Bench, wheels: list[File], monkeypatch: pytest.MonkeyPatch
) -> None:
    install = Installer(bench, "g++", "libpython3.11-stdlib")
    install.goes_on.set()
    monkeypatch.setattr(system, "built", install)
    make = Assembly._wheels

    def wheels_last(self: Assembly, preloader: Preloader) -> list[Added]:
        assert install.finished
        return make(self, preloader)

    monkeypatch.setattr(Assembly, "_wheels", wheels_last)
    bench.make(wheels, **install.changes)


# --- what uv is told


def test_uv_hears_of_the_images_interpreter(tmp_path: Path) -> None:
    ran: list[Run] = []
    python = Python(path="/usr/local/bin/python3.12", version="3.12.14", platform="linux/arm64")
    stage = Stage(tmp_path, tmp_path / "uv", python, ran.append)
    stage.make()
    asked = (tmp_path / "python").read_text()
    assert asked.startswith("#!/bin/sh\nexec ")
    assert sys.executable in asked
    facts = (tmp_path / "real.json").read_text()
    for said in ('"arch": "aarch64"', '"python_full_version": "3.12.14"', python.path):
        assert said in facts
    assert str(Path(sys.prefix)) not in facts
    assert "--relocatable" in ran[0].argv
