"""Closures of Debian packages install on any base of their suite, and lists are checked."""

from __future__ import annotations

import hashlib
import lzma
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Configuration, Settings
from envbuilder.packages.debian import mirrors, suite as debian
from envbuilder.packages.debian.suite import Atom, Package, closure, relations
from envbuilder.profiles.lock import File

HASH = "c" * 64
DATE = "Sat, 11 Jul 2026 10:16:37 UTC"


def stanza(name: str, version: str = "1.0-1", **fields: str) -> str:
    lines = [f"Package: {name}", f"Version: {version}", f"Filename: pool/{name}_{version}.deb"]
    lines += [f"Size: {len(name)}", f"SHA256: {HASH}"]
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in fields.items()]
    return "\n".join(lines) + "\n"


def universe(*stanzas: str) -> dict[str, Package]:
    return {p.name: p for p in debian.parse_packages(["\n".join(stanzas).encode()])}


def names(wanted: list[str], *stanzas: str) -> list[str]:
    return sorted(p.name for p in closure(wanted, universe(*stanzas)))


BASE = (
    stanza("dpkg", Essential="yes", Depends="libc6 (>= 1)"),
    stanza("libc6", "2.36-9", Depends="libgcc-s1"),
    stanza("libgcc-s1", "12", Depends="gcc-12-base (= 12)"),
    stanza("libstdc++6", "12", Depends="gcc-12-base (= 12)"),
    stanza("gcc-12-base", "12", Priority="required"),
    stanza("libc-bin", "2.36-9", Priority="required", Depends="libc6 (>> 2.36), libc6 (<< 2.37)"),
    stanza("apt", Priority="required", Depends="libstdc++6"),
)


@pytest.mark.parametrize(
    "version",
    ["a:1", "1234567890:1", "", "1 2", "9" * 5000, "1:" + "9" * 5000],
    ids=lambda version: version[:12],
)
def test_a_package_whose_version_cannot_be_compared_is_left_out(version: str) -> None:
    assert universe(stanza("tool", version)) == {}
    assert relations(f"tool (>= {version})") == ()


DEV = stanza("libc6-dev", Depends="libc6 (= 2.36-9)")
NEEDS = stanza("tool", Depends="virtual")
NEEDS_2 = stanza("tool", Depends="virtual (>= 2)")


@pytest.mark.parametrize(
    ("stanzas", "expected"),
    [
        # What the base has is left out.
        (
            (*BASE, stanza("tool", Depends="libc6 (>= 2.2), helper"), stanza("helper")),
            ["helper", "tool"],
        ),
        # Exact versions move the base along.
        ((*BASE, DEV), ["libc6", "libc6-dev"]),
        # What is tied to a moved package moves, too.
        (
            (*BASE, stanza("g++", Depends="gcc-12-base (= 12)")),
            ["g++", "gcc-12-base", "libgcc-s1", "libstdc++6"],
        ),
        # The first alternative that can be had.
        (
            (stanza("tool", Depends="gone | second | third"), stanza("second"), stanza("third")),
            ["second", "tool"],
        ),
        # Providers stand in.
        ((*BASE, NEEDS, stanza("real", Provides="virtual, x")), ["real", "tool"]),
        ((*BASE, NEEDS_2, stanza("real", Provides="virtual (= 3)")), ["real", "tool"]),
        # One in the base is enough.
        (
            (
                stanza("mawk", Priority="required", Provides="awk"),
                stanza("tool", Depends="awk"),
                stanza("gawk", Provides="awk"),
            ),
            ["tool"],
        ),
        # Circles end.
        (
            (stanza("one", Depends="tool"), stanza("tool", Pre_Depends="one")),
            ["one", "tool"],
        ),
    ],
)
def test_closures(stanzas: tuple[str, ...], expected: list[str]) -> None:
    wanted = next(name for name in ("tool", "libc6-dev", "g++") if name in expected)
    assert names([wanted], *stanzas) == expected


def test_what_cannot_be_had_is_named() -> None:
    with pytest.raises(InvalidError, match="no package 'nothing'"):
        names(["nothing"], *BASE)
    with pytest.raises(InvalidError, match="tool needs virtual"):
        names(["tool"], *BASE, NEEDS_2, stanza("real", Provides="virtual"))


def test_relations_of_every_form() -> None:
    assert relations("a (>= 1:2.0~rc1), b:any | c (<< 3), d [amd64]x, , python3:any (= 1)") == (
        (Atom("a", ">=", "1:2.0~rc1"),),
        (Atom("b"), Atom("c", "<<", "3")),
        (Atom("python3", "=", "1"),),
    )


versions = st.from_regex(r"([0-9]:)?[0-9]{1,2}(\.[0-9]{1,2}){0,2}(~rc1|\+b1|-1)?", fullmatch=True)


@given(versions, versions)
def test_versions_are_ordered(one: str, other: str) -> None:
    order = debian.compare(one, other)
    assert debian.satisfies(one, Atom("x", "<<", other)) == (order < 0)
    assert debian.satisfies(one, Atom("x", ">=", other)) == (order >= 0)
    assert debian.satisfies(one, Atom("x"))


SOURCES = """\
# comment
deb [arch=amd64 signed-by=/k] https://one.invalid/debian/ bookworm main
deb-src https://src.invalid/debian bookworm main
deb https://third.invalid/apt cloud main

Types: deb deb-src
URIs: http://two.invalid/debian
# comment
Suites: trixie trixie-updates
Components: main

Types: deb
URIs: http://two.invalid/debian-security
Suites: trixie-security
Components: main

Types: deb
Enabled: no
URIs: http://off.invalid/debian
Suites: bookworm
"""


@pytest.mark.parametrize("word", ["No", "0"])
def test_a_disabled_source_is_not_used(word: str) -> None:
    text = SOURCES.replace("Enabled: no", f"Enabled: {word}")
    assert [*mirrors.parse_sources(text)] == [*mirrors.parse_sources(SOURCES)]


def test_both_formats_of_apts_sources() -> None:
    found = [*mirrors.parse_sources(SOURCES)]
    assert [*dict.fromkeys(uri for uri, _ in found)] == [
        "https://one.invalid/debian", "https://third.invalid/apt", "http://two.invalid/debian",
        "http://two.invalid/debian-security",
    ]  # fmt: skip
    assert mirrors.machine_roots(found) == {
        "debian": "https://one.invalid/debian",
        "debian-security": "http://two.invalid/debian-security",
    }


def mirror(**suites: str) -> Callable[[str], bytes]:
    """A mirror at http://m with these suites (name → package list)."""
    files: dict[str, bytes] = {}
    for suite, packages in suites.items():
        name = suite.replace("_", "-")
        raw = lzma.compress(packages.encode())
        digest = hashlib.sha256(raw).hexdigest()
        files[f"http://m/dists/{name}/main/binary-amd64/Packages.xz"] = raw
        files[f"http://m/dists/{name}/Release"] = (
            f"Suite: x\nDate: {DATE}\nSHA256:\n {digest} {len(raw)} main/binary-amd64/Packages.xz\n"
        ).encode()

    def read(url: str) -> bytes:
        if url not in files:
            raise OSError(url)
        return files[url]

    return read


@pytest.fixture
def own(found: Settings) -> Settings:
    urls = {"debian": "http://m", "debian-security": "http://m"}
    return replace(found, configuration=Configuration(indexes=urls))


def locked(
    wanted: list[str], suite: str, platform: str, own: Settings, read: Callable[[str], bytes]
) -> tuple[File, ...]:
    return debian.lock(wanted, debian.load(suite, platform, own, read=read))


def test_a_lock_of_debs(own: Settings) -> None:
    read = mirror(
        bookworm="\n".join((*BASE, stanza("tool"))),
        bookworm_security=stanza("tool", "1.0-2"),
    )
    (file,) = locked(["tool"], "bookworm", "linux/amd64", own, read)
    assert (file.kind, file.name, file.version) == ("deb", "tool", "1.0-2")
    assert (file.source, file.provenance) == ("debian-security", "read")
    assert file.file == "pool/tool_1.0-2.deb"
    assert file.by == "bookworm-security Release of 2026-07-11T10:16:37Z"
    assert mirrors.urls(file, own) == ("http://m/pool/tool_1.0-2.deb",)


def test_a_changed_list_is_refused(own: Settings) -> None:
    good = mirror(bookworm=stanza("tool"))

    def read(url: str) -> bytes:
        return good(url) + b"x" if url.endswith(".xz") else good(url)

    with pytest.raises(BuildError, match="has sha256"):
        locked(["tool"], "bookworm", "linux/amd64", own, read)


def test_a_release_that_does_not_list_it_is_refused(own: Settings) -> None:
    good = mirror(bookworm=stanza("tool"))
    with pytest.raises(BuildError, match="does not list"):
        locked(["tool"], "bookworm", "linux/arm64", own, lambda u: good(
            u.replace("arm64", "amd64")))  # fmt: skip


def test_a_mirror_out_of_reach_is_an_error_with_a_hint(own: Settings) -> None:
    with pytest.raises(BuildError, match="no Debian mirror answers") as caught:
        locked(["tool"], "bookworm", "linux/amd64", own, mirror())
    assert "ENVBUILDER_INDEX_DEBIAN" in caught.value.hint


def test_odd_entries_do_not_enter_a_lock(own: Settings) -> None:
    odd = stanza("tool").replace("pool/tool", "../../etc/tool")
    with pytest.raises(BuildError, match="invalid entry"):
        locked(["tool"], "bookworm", "linux/amd64", own, mirror(bookworm=odd))


def test_only_linux_has_debs(own: Settings) -> None:
    with pytest.raises(InvalidError, match="only Linux"):
        locked(["tool"], "bookworm", "macos/arm64", own, mirror())


def test_usrmerge_is_not_taken_for_part_of_every_base() -> None:
    base = (
        stanza("init-system-helpers", Essential="yes", Depends="usrmerge | usr-is-merged"),
        stanza("usrmerge", Depends="perl"), stanza("perl"), stanza("usr-is-merged"),
    )  # fmt: skip
    assert names(["tool"], *base, stanza("tool", Depends="perl")) == ["perl", "tool"]


def test_a_base_is_the_minimal_system_and_what_is_included(own: Settings) -> None:
    listed = (*BASE, stanza("tool", Depends="helper"), stanza("helper"), stanza("other"))
    suite = debian.load("bookworm", "linux/amd64", own, read=mirror(bookworm="\n".join(listed)))
    found = debian.lock_base(["tool"], suite)
    assert [f.name for f in found] == [
        "apt", "dpkg", "gcc-12-base", "helper", "libc-bin", "libc6", "libgcc-s1", "libstdc++6",
        "tool",
    ]  # fmt: skip
    assert {f.role for f in found} == {"base"}
    with pytest.raises(InvalidError, match="no package 'nothing'"):
        debian.lock_base(["nothing"], suite)


def test_nothing_is_added_that_a_base_of_the_same_lists_has(own: Settings) -> None:
    listed = (
        *BASE, stanza("tool", Depends="first | second, libc6 (= 2.36-9)"),
        stanza("first"), stanza("second"),
    )  # fmt: skip
    suite = debian.load("bookworm", "linux/amd64", own, read=mirror(bookworm="\n".join(listed)))
    base = frozenset(f.name for f in debian.lock_base(["second"], suite))
    assert [f.name for f in debian.lock(["tool", "second"], suite, base)] == ["tool"]
    assert [f.name for f in debian.lock(["tool"], suite)] == ["first", "libc6", "tool"]


def test_snapshots_stand_in_for_the_mirror(found: Settings) -> None:
    last = mirrors.roots("debian-security", found, "2026-07-11T10:16:37Z")[-1]
    assert last.endswith("/archive/debian-security/20260711T101637Z")
    file = File(
        kind="deb", name="tool", version="1", file="pool/tool_1.deb", sha256=HASH, size=1,
        source="debian", provenance="read", by="bookworm Release of 2026-07-11T10:16:37Z",
    )  # fmt: skip
    assert mirrors.urls(file, found)[-1].endswith("/debian/20260711T101637Z/pool/tool_1.deb")
    assert mirrors.snapshot(file, found).endswith("/archive/debian/20260711T101637Z")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ((b"\0", 100 << 20), "more than 1048576 bytes"),
        ((b"A: a\n\n", 201_000), "more than 200000 packages"),
    ],
)
def test_a_small_list_cannot_take_all_memory(
    own: Settings, content: tuple[bytes, int], why: str
) -> None:
    raw = lzma.compress(content[0] * content[1], preset=0)
    listed = f" {hashlib.sha256(raw).hexdigest()} {len(raw)} main/binary-amd64/Packages.xz\n"

    def read(url: str) -> bytes:
        return raw if url.endswith(".xz") else f"Suite: x\nSHA256:\n{listed}".encode()

    tracemalloc.start()
    try:
        with pytest.raises(BuildError, match=why):
            debian.load("bookworm", "linux/amd64", own, read=read)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
