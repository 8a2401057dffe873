"""Packages without dpkg: the files and the records that dpkg leaves, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.image import system
from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError
from envbuilder.profiles.lock import File
from tests.support import debs
from tests.support.images import BASE, STATUS, image

SAME = {"Multi-Arch": "same", "Description": "a library\n more of it"}
DATA = {"lib/x.so.1": b"elf", "usr/share/doc/x/copyright": b"c"}


def found(folder: Path, *more: Member, **options: Any) -> dict[str, Member]:
    layout = image(folder / "base", (BASE, more))
    root = rootfs.read(layout, layout.manifest("linux/amd64"))
    name = options.pop("name", "libx")
    path = folder / "package.deb"
    path.write_bytes(debs.deb(name, **options))
    file = File(
        kind="deb", name=name, version=options.get("version", "1"), sha256="0" * 64, size=1,
        file=f"pool/{name}_1_amd64.deb", source="debian", provenance="read", by="test",
    )  # fmt: skip
    return {m.path: m for m in system.unpacked_members([(file, path)], root)}


def test_files_lie_where_the_bases_links_lead_and_documentation_is_left_out(tmp_path: Path) -> None:
    members = found(tmp_path, data=DATA)
    assert members["usr/lib/x.so.1"].content == b"elf"
    assert not [p for p in members if "doc" in p]


def test_the_package_is_recorded_as_dpkg_does(tmp_path: Path) -> None:
    members = found(tmp_path, data=DATA, control_files={"md5sums": b"m\n"}, **SAME)
    info = "var/lib/dpkg/info/libx:amd64"
    assert members[f"{info}.md5sums"].content == b"m\n"
    listed = members[f"{info}.list"].content.decode()
    assert listed == "/.\n/lib/x.so.1\n/usr/share/doc/x/copyright\n"
    before, after = STATUS.split("\n\n")
    stanza = (
        "Package: libx\nStatus: install ok installed\nArchitecture: amd64\nMulti-Arch: same\n"
        "Version: 1\nDescription: a library\n more of it"
    )
    written = members["var/lib/dpkg/status"].content.decode()
    assert written == f"{before}\n\n{stanza}\n\n{after}\n"


def test_a_package_that_is_there_changes_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, name="libc6", version="2.36-9") == {}


def test_another_version_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="another version"):
        found(tmp_path, name="libc6", version="2.40-1")


@pytest.mark.parametrize(
    "script", ["preinst", "postinst", "prerm", "postrm", "config", "conffiles"]
)
def test_scripts_and_configuration_are_refused(tmp_path: Path, script: str) -> None:
    with pytest.raises(BuildError, match=f"cannot be unpacked into an image: .*{script}") as caught:
        found(tmp_path, control_files={script: b"#!/bin/sh\n"})
    assert "--builder buildkit" in caught.value.hint


@pytest.mark.parametrize(
    ("triggers", "fine"),
    [(b"# comment\nactivate-noawait ldconfig\n", True), (b"interest /usr/share/x\n", False)],
)
def test_only_ldconfig_may_be_triggered(tmp_path: Path, triggers: bytes, fine: bool) -> None:
    if fine:
        assert found(tmp_path, control_files={"triggers": triggers})
        return
    with pytest.raises(BuildError, match="activates triggers other than ldconfig"):
        found(tmp_path, control_files={"triggers": triggers})


def test_a_file_of_the_base_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="/etc/passwd already exists in the base image"):
        found(tmp_path, data={"etc/passwd": b"x"})


def test_earlier_states_are_emptied_as_the_dockerfile_does(tmp_path: Path) -> None:
    there = [Member(path=f"var/{n}", content=b"x") for n in ("lib/dpkg/x-old", "log/dpkg.log")]
    written = found(tmp_path, *there)
    assert written["var/lib/dpkg/x-old"].content == b""
    assert "var/lib/dpkg/status-old" in written
    assert "var/log/dpkg.log" not in written


def test_a_base_without_dpkg_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no dpkg status"):
        found(tmp_path, Member(path="var/lib/dpkg/.wh.status"))
