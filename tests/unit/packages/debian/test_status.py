"""The packages of a Debian system are read from its dpkg status."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian import deb

STATUS = b"""\
Package: libc6
Status: install ok installed
Priority: optional
Architecture: amd64
Version: 2.36-9
Depends: libgcc-s1,
 libcrypt1 (>= 1:4)
Breaks: old (<< 1)
Conffiles:
 /etc/ld.so.conf.d/x.conf d4e7a7b88a71b5ffd9e2644e71a0cfab
Description: GNU C Library
 Depends: not a field

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: waiting
Status: install ok triggers-pending
Architecture: all
Version: 1

Package: raw
Status: install ok unpacked
Architecture: amd64
Version: 1

Package: foreign
Status: install ok installed
Architecture: arm64
Version: 1
"""


def test_a_status_says_what_is_installed() -> None:
    packages = deb.installed({deb.STATUS: STATUS}, "amd64")
    assert packages == {"libc6": "2.36-9", "waiting": "1", "raw": "1"}


def test_one_file_a_package() -> None:
    files = {
        f"{deb.STATUS_FOLDER}base": b"Package: base\nVersion: 1\nArchitecture: amd64\n",
        f"{deb.STATUS_FOLDER}libc6": b"Package: libc6\nVersion: 2\nArchitecture: amd64\n",
        f"{deb.STATUS_FOLDER}libc6.md5sums": b"d41d8cd98f00b204e9800998ecf8427e  etc/x\n",
    }
    assert deb.installed(files, "amd64") == {"base": "1", "libc6": "2"}


def test_no_status_and_an_empty_one() -> None:
    assert deb.installed({}, "amd64") is None
    with pytest.raises(InvalidError, match="no installed packages for arm64"):
        deb.installed({deb.STATUS: b"Package: x\n"}, "arm64")


@given(st.binary(max_size=300))
def test_any_bytes_can_be_a_status(data: bytes) -> None:
    try:
        deb.installed({deb.STATUS: b"Package: p\nVersion: 1\n\n" + data}, "amd64")
    except InvalidError:
        return


def says(*names: str) -> bytes:
    return "\n".join(
        f"Package: {n}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
        for n in names
    ).encode()


def test_the_files_of_an_image_are_read() -> None:
    for path, name in ((deb.STATUS, "a"), ("var/lib/dpkg/status.d/b", "b")):
        assert deb.installed_in({path: says(name)}, "linux/amd64", "base:1") == {name: "1"}
    with pytest.raises(InvalidError, match="base:1: not a Debian system"):
        deb.installed_in({"etc/passwd": b""}, "linux/amd64", "base:1")
