"""What is installed on a known base: nothing needless, and nothing broken by it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from debian.debian_support import Version
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.packages.debian import status as dpkg_status
from envbuilder.packages.debian.closure import on_base
from envbuilder.packages.debian.package import Package, Stanza

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def have(name: str, version: str = "1", **fields: str) -> Stanza:
    return Stanza(name=name, version=version, **fields)


def offer(name: str, version: str = "1", **fields: str) -> Package:
    return Package(name=name, version=version, file="f", sha256="c" * 64, size=1, **fields)


def found(
    wanted: list[str], offers: Iterable[Package], base: Iterable[Stanza], **options: list[str]
) -> list[str]:
    universe, installed = {p.name: p for p in offers}, {s.name: s for s in base}
    return sorted(p.name for p in on_base(wanted, universe, installed, **options))


def test_what_the_base_has_is_not_added() -> None:
    offers = [offer("tool", depends="lib (>= 1), helper"), offer("lib", "2"), offer("helper")]
    assert found(["tool"], offers, [have("lib", "1")]) == ["helper", "tool"]
    assert found(["lib"], offers, [have("lib", "1")]) == []
    assert found(["lib"], offers, [have("lib", "1")], listed=["lib"]) == ["lib"]
    assert found(["lib"], offers, [have("lib", "3")], listed=["lib"]) == []


def test_what_must_be_newer_is_upgraded() -> None:
    offers = [offer("tool", depends="lib (>= 2)"), offer("lib", "2")]
    assert found(["tool"], offers, [have("lib", "1")]) == ["lib", "tool"]


def test_what_an_upgrade_would_break_is_upgraded_too() -> None:
    base = [have("lib", "1"), have("twin", "1", depends="lib (= 1)"), have("other", "1")]
    offers = [
        offer("tool", depends="lib (>= 2)"), offer("lib", "2"), offer("other", "2"),
        offer("twin", "2", depends="lib (= 2), more"), offer("more"),
    ]  # fmt: skip
    assert found(["tool"], offers, base) == ["lib", "more", "tool", "twin"]


def test_where_an_upgrade_does_not_help_an_alternative_does() -> None:
    base = [have("lib", "1"), have("twin", "1", depends="lib (<< 2) | other")]
    offers = [offer("tool", depends="lib (>= 2)"), offer("lib", "2"), offer("other")]
    assert found(["tool"], offers, base) == ["lib", "other", "tool"]


def test_a_broken_package_is_upgraded() -> None:
    offers = [offer("tool", breaks="old (<< 2)"), offer("old", "2")]
    assert found(["tool"], offers, [have("old", "1")]) == ["old", "tool"]
    assert found(["tool"], offers, []) == ["tool"]
    # The other way round: the base's package refuses the new one.
    offers = [offer("tool"), offer("old", "2")]
    assert found(["tool"], offers, [have("old", "1", breaks="tool (<< 3)")]) == ["old", "tool"]


def test_conflicts_are_an_error_that_names_both() -> None:
    for refuses in ({"conflicts": "old"}, {"breaks": "old (<< 9)"}):
        offers = [offer("tool", **refuses), offer("old", "2")]
        with pytest.raises(InvalidError, match=r"tool 1 does not go together with old 1: it ref"):
            found(["tool"], offers, [have("old", "1")])
    with pytest.raises(InvalidError, match="one 1 does not go together with two 1"):
        found(["one", "two"], [offer("one", conflicts="two"), offer("two")], [])


def test_what_a_package_provides_itself_it_does_not_refuse() -> None:
    mail = offer("exim", provides="mta", conflicts="mta")
    assert found(["exim"], [mail], []) == ["exim"]
    with pytest.raises(InvalidError, match="does not go together"):
        found(["exim"], [mail], [have("postfix", provides="mta")])


def test_nothing_is_downgraded() -> None:
    offers = [offer("tool", depends="lib (= 1)"), offer("lib", "1")]
    with pytest.raises(InvalidError, match=r"needs lib = 1, that of the base is newer"):
        found(["tool"], offers, [have("lib", "2")])
    with pytest.raises(InvalidError, match="needs gone, which the suite lacks"):
        found(["tool"], [offer("tool", depends="gone")], [])


def test_the_same_version_is_no_upgrade() -> None:
    """The suite's package of the same version may say something else of itself: dpkg skips it."""
    base = [have("lib", "1"), have("twin", "1", depends="lib (= 1)")]
    offers = [offer("tool", depends="lib (>= 2)"), offer("lib", "2"), offer("twin", "1")]
    with pytest.raises(InvalidError, match="twin 1 needs lib = 1"):
        found(["tool"], offers, base)


def test_what_was_broken_before_stays_so() -> None:
    base = [have("odd", depends="gone"), have("one", conflicts="two"), have("two")]
    assert found(["tool"], [offer("tool")], base) == ["tool"]


def test_providers_of_the_base_count() -> None:
    offers = [offer("tool", depends="awk"), offer("gawk", provides="awk")]
    assert found(["tool"], offers, [have("mawk", provides="awk")]) == ["tool"]
    assert found(["tool"], offers, []) == ["gawk", "tool"]
    assert found(["awk"], offers, [have("mawk", provides="awk")]) == []


# --- an independent check: what a set of packages complains about, by the policy's own words

NAMES = "abcdef"
names = st.sampled_from(NAMES)
numbers = st.sampled_from("123")
atoms = st.one_of(
    names,
    st.builds("{} ({} {})".format, names, st.sampled_from(["<<", "<=", "=", ">=", ">>"]), numbers),
)
depends = st.lists(st.lists(atoms, min_size=1, max_size=2).map(" | ".join), max_size=2)
stanzas = st.fixed_dictionaries(
    {
        "version": numbers,
        "depends": depends.map(", ".join),
        "provides": st.lists(st.sampled_from(["v", "v (= 2)", "w"]), max_size=1).map(", ".join),
        "breaks": st.lists(atoms, max_size=1).map(", ".join),
        "conflicts": st.lists(names, max_size=1).map(", ".join),
    }
)


def complaints(system: Mapping[str, Stanza]) -> set[tuple[str, str, str]]:
    """Every need that is not met and every refusal that is, by brute force."""

    def meets(package: Stanza, text: str) -> bool:
        name, _, rest = text.partition(" (")
        relation, _, version = rest.rstrip(")").partition(" ")
        claims = [(package.name, package.version)]
        for provided in filter(None, package.provides.split(", ")):
            virtual, _, stated = provided.partition(" (= ")
            claims.append((virtual, stated.rstrip(")")))
        for claimed, have_version in claims:
            if claimed != name:
                continue
            if not relation:
                return True
            if not have_version:
                continue
            mine, other = Version(have_version), Version(version)
            if {"<<": mine < other, "<=": mine <= other, "=": mine == other,
                ">=": mine >= other, ">>": mine > other}[relation]:  # fmt: skip
                return True
        return False

    found: set[tuple[str, str, str]] = set()
    for package in system.values():
        for group in filter(None, package.depends.split(", ")):
            if not any(meets(p, t) for t in group.split(" | ") for p in system.values()):
                found.add(("needs", package.name, group))
        for text in filter(None, [*package.breaks.split(", "), *package.conflicts.split(", ")]):
            found |= {
                ("refuses", package.name, other.name)
                for other in system.values()
                if other.name != package.name and meets(other, text)
            }
    return found


systems = st.dictionaries(names, stanzas, max_size=6)


@given(systems, systems, st.lists(names, max_size=3))
def test_a_closure_installs_and_breaks_nothing(
    base: dict[str, dict[str, str]], suite: dict[str, dict[str, str]], wanted: list[str]
) -> None:
    installed = {n: have(n, **fields) for n, fields in base.items()}
    universe = {n: offer(n, **fields) for n, fields in suite.items()}
    before = complaints(installed)
    try:
        chosen = on_base(wanted, universe, installed)
    except InvalidError:
        return
    after = {**installed, **{p.name: p for p in chosen}}
    assert not {c for c in complaints(after) if c not in before}
    for package in chosen:
        # Never the same again, never an older one.
        old = installed.get(package.name)
        assert old is None or Version(package.version) > Version(old.version)
    assert all(n in after for n in wanted if n in universe and n not in installed)
    # Once more on the result: there is nothing left to do.
    assert on_base(wanted, universe, after) == ()


@given(systems, st.lists(names, max_size=3))
def test_a_base_of_the_suite_itself_needs_nothing_that_it_has(
    suite: dict[str, dict[str, str]], wanted: list[str]
) -> None:
    universe = {n: offer(n, **fields) for n, fields in suite.items()}
    if not complaints(universe):
        inside = [n for n in wanted if n in universe]
        assert on_base(inside, universe, universe) == ()


# --- the status that dpkg keeps

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
    status = dpkg_status.parse({dpkg_status.FILE: STATUS}, "amd64")
    assert status is not None
    assert sorted(status.packages) == ["libc6", "raw", "waiting"]
    libc = status.packages["libc6"]
    assert (libc.version, libc.breaks) == ("2.36-9", "old (<< 1)")
    assert libc.depends == "libgcc-s1, libcrypt1 (>= 1:4)"
    assert status.digest == hashlib.sha256(STATUS).hexdigest()


def test_one_file_a_package() -> None:
    files = {
        f"{dpkg_status.FOLDER}base": b"Package: base\nVersion: 1\nArchitecture: amd64\n",
        f"{dpkg_status.FOLDER}libc6": b"Package: libc6\nVersion: 2\nArchitecture: amd64\n",
        f"{dpkg_status.FOLDER}libc6.md5sums": b"d41d8cd98f00b204e9800998ecf8427e  etc/x\n",
    }
    status = dpkg_status.parse(files, "amd64")
    assert status is not None
    assert {n: s.version for n, s in status.packages.items()} == {"base": "1", "libc6": "2"}
    again = dpkg_status.parse(dict(reversed(files.items())), "amd64")
    assert again is not None
    assert again.digest == status.digest


def test_no_status_and_an_empty_one() -> None:
    assert dpkg_status.parse({}, "amd64") is None
    with pytest.raises(InvalidError, match="no installed package of arm64"):
        dpkg_status.parse({dpkg_status.FILE: b"Package: x\n"}, "arm64")


@given(st.binary(max_size=300))
def test_any_bytes_can_be_a_status(data: bytes) -> None:
    try:
        dpkg_status.parse({dpkg_status.FILE: b"Package: p\nVersion: 1\n\n" + data}, "amd64")
    except InvalidError:
        return


text = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=20)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9+.-]{1,8}", fullmatch=True),
        st.tuples(st.from_regex(r"[0-9][0-9.]{0,5}", fullmatch=True), text),
        min_size=1,
    )
)
def test_what_is_written_is_read(packages: dict[str, tuple[str, str]]) -> None:
    written = "\n".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n"
        f"Description: x\n .{said}\n"
        for name, (version, said) in packages.items()
    )
    status = dpkg_status.parse({dpkg_status.FILE: written.encode()}, "amd64")
    assert status is not None
    assert {n: s.version for n, s in status.packages.items()} == {
        n: v for n, (v, _) in packages.items()
    }
