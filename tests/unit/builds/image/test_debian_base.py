"""A base made of locked packages: exactly these, the same bytes every time, or an error."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds.image import base as image_base, debian_base
from envbuilder.builds.plan import MakeBase
from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import process
from envbuilder.core.errors import BuildError, ToolError
from envbuilder.core.process import Completed
from envbuilder.core.settings import Settings
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File, LockedBase, Target
from tests.support import debs
from tests.support.packed import entry, tar
from tests.support.programs import completed

VERSIONS = {
    "mmdebstrap": "mmdebstrap 1.3.5\n",
    "apt-get": "apt 2.6.1 (amd64)\nSupported modules:\n*Ver: Standard .deb\n",
    "dpkg": "Debian 'dpkg' package management program version 1.21.22 (amd64).\n",
}
SAME = {"etc/issue": b"Debian\n", "usr/bin/python3.11": b"\x7fELF"}


@pytest.fixture
def store(found: Settings) -> Store:
    return Store(found.store_dir)


@pytest.fixture
def files(store: Store) -> tuple[File, ...]:
    return (debs.stored(store, "dpkg", Essential="yes"), debs.stored(store, "libc6", "2.36-9"))


@pytest.fixture
def wanted(files: tuple[File, ...], found: Settings) -> MakeBase:
    """The base of these packages."""
    return image_base.debian_step(target(files), found)


def target(files: tuple[File, ...], **changes: Any) -> Target:
    base = LockedBase(
        ref="envbuilder/debian:bookworm-abc", digest=None, date="2026-07-11",
        python_path="/usr/bin/python3.11", python_version="3.11.2", suite="bookworm",
    )  # fmt: skip
    return Target(
        platform="linux/amd64", python="3.11", files=files,
        base=replace(base, **changes),
    )  # fmt: skip


def status(*packages: tuple[str, str]) -> bytes:
    return "\n".join(
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n"
        for name, version in packages
    ).encode()


class Tool:
    """Stands in for mmdebstrap: makes a tar of given members, and notes how it was called."""

    def __init__(self, members: dict[str, bytes], code: int = 0, said: str = "") -> None:
        self.members = members
        self.code = code
        self.said = said
        self.calls: list[tuple[list[str], dict[str, str]]] = []
        self.offered: dict[str, str] = {}
        self.versions = dict(VERSIONS)

    def __call__(self, argv: Sequence[str], **options: Any) -> Completed:
        if argv[1:] == ["--version"]:
            said = self.versions[argv[0]]
            return completed(0, said)
        self.calls.append((list(argv), options["env"]))
        archive = Path(argv[-1].split("copy://")[1].split()[0])
        self.offered = {p.name: p.read_text("latin-1") for p in archive.iterdir()}
        at = 1_700_000_000 + len(self.calls)
        entries = (entry(f"./{name}", data, mtime=at) for name, data in self.members.items())
        Path(argv[-2]).write_bytes(tar(*entries))
        return completed(self.code, stderr=self.said)


GOOD = SAME | {"var/lib/dpkg/status": status(("dpkg", "1"), ("libc6", "2.36-9"))}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Tool:
    made = Tool(dict(GOOD))
    monkeypatch.setattr(process, "run", made)
    monkeypatch.setattr(process, "which", lambda name: f"/usr/bin/{name}")
    return made


def make(wanted: MakeBase, store: Store) -> Layout:
    return debian_base.make(wanted, store, lambda line: None)


def contents(layout: Layout) -> list[str]:
    return sorted(rootfs.read(layout, layout.manifest("linux/amd64")).entries)


def test_the_call(files: tuple[File, ...], wanted: MakeBase, store: Store, tool: Tool) -> None:
    make(wanted, store)
    ((argv, environment),) = tool.calls
    assert argv[0] == "mmdebstrap"
    assert "--variant=essential" in argv
    assert "--include=dpkg=1,libc6=2.36-9" in argv
    assert argv[-3] == "bookworm"
    assert environment["SOURCE_DATE_EPOCH"] == "1783728000"
    # It sees these packages and nothing else, each with its hash.
    assert sorted(tool.offered) == [
        "Packages", "Release", "dpkg_1_amd64.deb", "libc6_2.36-9_amd64.deb",
    ]  # fmt: skip
    stanzas = tool.offered["Packages"].strip().split("\n\n")
    assert [s.splitlines()[0] for s in stanzas] == ["Package: dpkg", "Package: libc6"]
    assert "Essential: yes\n" in stanzas[0]
    assert f"SHA256: {files[0].sha256}" in stanzas[0]


def test_the_same_packages_give_the_same_bytes(
    wanted: MakeBase, store: Store, tool: Tool, tmp_path: Path
) -> None:
    one = make(wanted, store)
    again = make(wanted, store)
    assert len(tool.calls) == 1  # it was there
    assert one.folder == again.folder
    # Elsewhere, later, and with what depends on the machine.
    tool.members |= {
        "etc/hostname": b"here\n", "etc/resolv.conf": b"", "etc/apt/sources.list": b"deb /here",
        "var/log/dpkg.log": b"now", "usr/lib/python3/__pycache__/a.cpython-311.pyc": b"now",
        "var/cache/apt/pkgcache.bin": b"now",
    }  # fmt: skip
    elsewhere = replace(wanted, layout=str(tmp_path / "other"))
    other = make(elsewhere, store)
    assert one.index() == other.index()
    assert one.manifest("linux/amd64") == other.manifest("linux/amd64")
    assert [p for p in contents(one) if p in GOOD] == sorted(GOOD)
    kept = sorted(p.name for p in other.folder.iterdir())
    assert kept == ["blobs", "index.json", "made-by.json", "oci-layout"]


def test_a_base_says_what_made_it(wanted: MakeBase, store: Store, tool: Tool) -> None:
    assert debian_base.made_by(wanted) == {}
    layout = make(wanted, store)
    told = {"mmdebstrap": "1.3.5", "apt": "2.6.1", "dpkg": "1.21.22"}
    assert debian_base.made_by(wanted) == told
    # Newer tools make no other base of one that is there.
    tool.versions = {name: text.replace(".", ".9") for name, text in VERSIONS.items()}
    make(wanted, store)
    assert debian_base.made_by(wanted) == told
    # Nor do they make other bytes, as far as they write the same files.
    later = replace(wanted, layout=f"{wanted.layout}-later")
    assert make(later, store).index() == layout.index()
    assert debian_base.made_by(later)["dpkg"] == "1.921.922"
    # Made by an envbuilder that did not ask, or damaged.
    for damage in (b"", b"[]", b'{"dpkg": 1}', b"\xff"):
        (layout.folder / "made-by.json").write_bytes(damage)
        assert debian_base.made_by(wanted) == {}


def test_everything_that_decides_the_bytes_is_in_the_identity(
    files: tuple[File, ...], wanted: MakeBase, found: Settings
) -> None:
    for changed in (
        target(files[:1]), target(files, suite="trixie"), target(files, date="2026-07-12"),
        target(files, unpacked=True),
        replace(target(files), platform="linux/arm64"),
    ):  # fmt: skip
        assert image_base.debian_step(changed, found).identity != wanted.identity
    assert image_base.debian_step(target(files[::-1]), found).identity == wanted.identity


@pytest.mark.parametrize(
    "have",
    [
        (("dpkg", "1"),),
        (("dpkg", "1"), ("libc6", "2.36-10")),
        (("dpkg", "1"), ("libc6", "2.36-9"), ("more", "1")),
    ],
)
def test_another_set_of_packages_is_refused(
    wanted: MakeBase, store: Store, tool: Tool, have: tuple[tuple[str, str], ...]
) -> None:
    tool.members["var/lib/dpkg/status"] = status(*have)
    with pytest.raises(BuildError, match=r"packages that differ from the lock: (libc6|more)"):
        make(wanted, store)
    assert not Path(wanted.layout).exists()


def test_a_package_that_is_not_configured_is_refused(
    wanted: MakeBase, store: Store, tool: Tool
) -> None:
    good = GOOD["var/lib/dpkg/status"]
    for bad in (b"", good.replace(b"ok installed", b"ok half-configured", 1)):
        tool.members["var/lib/dpkg/status"] = bad
        with pytest.raises(BuildError, match="did not configure all packages"):
            make(wanted, store)


def test_a_failing_tool_leaves_nothing_behind(wanted: MakeBase, store: Store, tool: Tool) -> None:
    tool.code = 25
    tool.said = "E: cannot execute arm64"
    with pytest.raises(BuildError, match=r"mmdebstrap failed \(exit 25\)") as caught:
        make(wanted, store)
    assert "unpacked" in caught.value.hint
    assert [p.suffix for p in Path(wanted.layout).parent.iterdir()] == [".lock"]


def test_a_damaged_base_is_made_anew(wanted: MakeBase, store: Store, tool: Tool) -> None:
    layout = make(wanted, store)
    before = layout.index()
    blob = layout.blob(layout.manifest("linux/amd64").layers[0].digest)
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    said: list[str] = []
    again = debian_base.make(wanted, store, said.append)
    assert len(tool.calls) == 2
    assert again.index() == before
    assert "damaged" in said[0]


def test_a_damaged_package_is_named(
    files: tuple[File, ...], wanted: MakeBase, store: Store, tool: Tool
) -> None:
    path = store.path(files[1].sha256)
    path.write_bytes(b"!<arch>\n")
    with pytest.raises(BuildError, match=r"libc6_2\.36-9_amd64\.deb: damaged in the store"):
        make(wanted, store)
    assert tool.calls == []


def test_what_is_only_unpacked_gets_its_users_and_a_status(
    files: tuple[File, ...], found: Settings, store: Store, tool: Tool
) -> None:
    tool.members = SAME | {
        "usr/share/base-passwd/passwd.master": b"root:*:0:0::/root:/bin/sh\n",
        "usr/share/base-passwd/group.master": b"root:*:0:\n",
    }
    layout = make(image_base.debian_step(target(files, unpacked=True), found), store)
    assert "--variant=extract" in tool.calls[0][0]
    found_in = rootfs.read(layout, layout.manifest("linux/amd64")).contents
    assert found_in["etc/passwd"].startswith(b"root:")
    assert found_in["var/lib/dpkg/status"].count(b"Status: install ok unpacked") == 2


def test_without_the_tool(
    wanted: MakeBase, store: Store, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "which", lambda name: None)
    with pytest.raises(ToolError, match="mmdebstrap is not on PATH") as caught:
        image_base.require_maker(wanted)
    assert caught.value.exit_code == 4
    assert "apt-get install mmdebstrap" in caught.value.hint
    monkeypatch.setattr(process, "which", {"mmdebstrap": "/usr/bin/mmdebstrap"}.get)
    make(wanted, store)
    monkeypatch.setattr(process, "which", lambda name: None)
    image_base.require_maker(wanted)  # it is there: nothing is needed


def odd(kind: bytes, name: str = "usr/odd", link: str = "", **pax: str) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.linkname = link
    entry.pax_headers = pax
    return entry.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (odd(tarfile.FIFOTYPE), "not a file, folder or link"),
        (odd(tarfile.CHRTYPE), "not a file, folder or link"),
        (odd(tarfile.LNKTYPE, link="etc/none"), "hard link to etc/none, which does not exist"),
        (odd(tarfile.REGTYPE, "../out"), "path outside"),
        (odd(tarfile.REGTYPE, **{"SCHILY.xattr.security.capability": "x"}), "capabilities"),
    ],
)
def test_what_a_layer_cannot_hold_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(data)
    (tmp_path / "files").mkdir()
    with pytest.raises(BuildError, match=said):
        list(debian_base.layer_members(path, tmp_path / "files"))


@pytest.mark.parametrize("name", ["var/lib/apt/lists/partial", "var/cache/apt/archives/partial"])
def test_apts_folders_do_not_tell_who_made_them(tmp_path: Path, name: str) -> None:
    """apt gives them to its user on the machine, 42 here and 100 there, or leaves them alone."""
    (tmp_path / "files").mkdir()
    made = []
    for uid, mode in ((42, 0o700), (100, 0o700), (0, 0o755)):
        entry = tarfile.TarInfo(f"./{name}")
        entry.type = tarfile.DIRTYPE
        entry.uid = uid
        entry.mode = mode
        (tmp_path / "root.tar").write_bytes(entry.tobuf() + bytes(1024))
        made += debian_base.layer_members(tmp_path / "root.tar", tmp_path / "files")
    assert len(made) == 3
    assert {(m.kind, m.uid, m.gid, m.mode) for m in made} == {("folder", 0, 0, 0o755)}


def test_devices_are_left_to_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "root.tar"
    path.write_bytes(odd(tarfile.CHRTYPE, "./dev/null"))
    (tmp_path / "files").mkdir()
    assert list(debian_base.layer_members(path, tmp_path / "files")) == []
