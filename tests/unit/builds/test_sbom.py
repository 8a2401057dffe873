"""Bills of materials: what a lock pins and what is installed, as CycloneDX, always the same bytes.

After a wanted change of the golden document: `make golden`, then read the diff.
"""

from __future__ import annotations

import json
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from packageurl import PackageURL

from envbuilder.builds import attestations, plan, sbom
from envbuilder.builds.sbom import Component
from envbuilder.core import resources
from envbuilder.core.settings import Settings
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles.lock import File
from tests.support.boms import problems
from tests.support.packed import zipped
from tests.support.repositories import lay

LOCKS = resources.profiles_dir() / "locks"
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)
VERSION = st.from_regex(r"[0-9][A-Za-z0-9.+:~!_-]{0,20}", fullmatch=True)


def file(**facts: Any) -> File:
    stated = {
        "kind": "wheel",
        "name": "torch",
        "version": "2.13.0+cpu",
        "file": "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "sha256": "ab" * 32,
        "size": 1,
        "source": "pytorch-cpu",
        "provenance": "read",
        "by": "the index pytorch-cpu",
    }
    return File(**(stated | facts))


def deb(**facts: Any) -> File:
    stated = {
        "kind": "deb",
        "name": "g++",
        "version": "4:12.2.0-3",
        "file": "pool/main/g/gcc-defaults/g++_12.2.0-3_amd64.deb",
        "source": "debian",
        "by": "bookworm Release of 2026-07-11T10:16:37Z",
    }
    return file(**(stated | facts))


def of_lock(name: str, number: int, found: Settings) -> bytes:
    lock = lockfile.load(LOCKS / f"{name}.json")
    target = lock.targets[number]
    digest = lockfile.lock_digest(lock)
    facts = {"lock": digest, "platform": target.platform, "python": target.python}
    base = target.base and plan.UsedBase(ref=f"{target.base.ref}@{target.base.digest}", digest="")
    return attestations.bill(name, (*target.files, lock.tool(target.platform)), base, facts, found)


TARGETS = [
    (path.stem, number)
    for path in sorted(LOCKS.glob("*.json"))
    for number in range(len(lockfile.load(path).targets))
]


def test_the_document_of_the_cpu_profile_is_the_golden_one(
    repository: Path, found: Settings, rewrite_golden: bool
) -> None:
    golden = repository / "tests/golden/cpu/sbom.cdx.json"
    content = of_lock("cpu", 0, found)
    if rewrite_golden:
        golden.write_bytes(content)
    assert content == golden.read_bytes()


@pytest.mark.parametrize("name", sorted({name for name, _ in TARGETS}))
def test_every_profile_has_a_valid_document(name: str, found: Settings) -> None:
    assert problems(of_lock(name, 0, found)) is None


@pytest.mark.parametrize(("name", "number"), TARGETS)
def test_every_target_has_a_document_of_all_its_files(
    name: str, number: int, found: Settings
) -> None:
    content = of_lock(name, number, found)
    lock = lockfile.load(LOCKS / f"{name}.json")
    target = lock.targets[number]
    files = (*target.files, lock.tool(target.platform))
    hashes = {h["content"] for c in json.loads(content)["components"] for h in c.get("hashes", ())}
    assert {f.sha256 for f in files} <= hashes
    references = [c["bom-ref"] for c in json.loads(content)["components"]]
    assert len(set(references)) == len(references) == len(files) + bool(target.base)


@pytest.mark.parametrize(
    ("given", "purl"),
    [
        (file(), "pkg:pypi/torch@2.13.0%2Bcpu"),
        (file(name="typing_extensions", version="4.16.0"), "pkg:pypi/typing-extensions@4.16.0"),
        (file(kind="tool", name="uv", version="0.13.8"), "pkg:pypi/uv@0.13.8"),
        (deb(), "pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64&distro=bookworm"),
        (
            deb(name="libssl3", version="3.0.22-1~deb12u2", file="pool/o/libssl3_3.0.22_arm64.deb",
                source="debian-security", by="bookworm-security Release of 2026-11-17T22:33:39Z"),
            "pkg:deb/debian/libssl3@3.0.22-1~deb12u2?arch=arm64&distro=bookworm",
        ),
        (
            deb(name="intel-opencl-icd", version="1", file="i/intel-opencl-icd_1_amd64.deb",
                source="intel-graphics", by="somebody"),
            "pkg:deb/intel-graphics/intel-opencl-icd@1?arch=amd64",
        ),
        (
            file(kind="conda", name="a_b", version="3.12.1", file="noarch/a_b-3.12.1-py_0.tar.bz2",
                source="conda-forge"),
            "pkg:conda/a_b@3.12.1?build=py_0&channel=conda-forge&subdir=noarch&type=tar.bz2",
        ),
    ],
)  # fmt: skip
def test_files_are_named_by_package_urls(given: File, purl: str) -> None:
    assert sbom.file_purl(given) == purl


@given(name=WORD, version=VERSION)
def test_a_package_url_says_what_the_lock_says(name: str, version: str) -> None:
    parsed = PackageURL.from_string(sbom.purl("pypi", None, name, version))
    assert (parsed.name, parsed.version) == (name, version)
    stated = deb(name=f"lib{name}++", version=version)
    parsed = PackageURL.from_string(sbom.file_purl(stated))
    assert (parsed.name, parsed.version) == (f"lib{name}++", version)
    assert parsed.qualifiers == {"arch": "amd64", "distro": "bookworm"}


DIGEST = "sha256:" + "cd" * 32
HUB = "docker.io/library"


@pytest.mark.parametrize(
    ("ref", "digest", "purl"),
    [
        # An image of this engine: nobody says that a registry has it under this digest.
        ("python:3.11-slim", DIGEST, f"pkg:oci/python@{DIGEST}?arch=arm64&tag=3.11-slim"),
        (
            f"python:3.11-slim@{DIGEST}",
            "",
            f"pkg:oci/python@{DIGEST}?arch=arm64&repository_url={HUB}/python&tag=3.11-slim",
        ),
        (
            f"ghcr.io/me/base@{DIGEST}",
            DIGEST,
            f"pkg:oci/base@{DIGEST}?arch=arm64&repository_url=ghcr.io/me/base",
        ),
        (
            f"ghcr.io/me/base@{DIGEST}",
            "sha256:" + "00" * 32,
            f"pkg:oci/base@{DIGEST}?arch=arm64&repository_url=ghcr.io/me/base",
        ),
        ("me/base:1", "", "pkg:docker/me/base@1"),
        ("me/base:1", "me/base:1", "pkg:docker/me/base@1"),
    ],
)
def test_a_base_image_is_named_by_its_digest_where_that_is_known(
    ref: str, digest: str, purl: str
) -> None:
    base = sbom.of_base(ref, digest, "linux/arm64")
    assert base.purl == purl
    assert problems(sbom.document("x", [base], {})) is None


def test_a_base_that_is_a_folder_is_named_too() -> None:
    base = sbom.of_base("/srv/images/base", DIGEST, "linux/amd64")
    assert base.purl == f"pkg:oci/base@{DIGEST}?arch=amd64"
    assert problems(sbom.document("x", [base], {})) is None


# --- licences


def metadata(**lines: str | list[str]) -> bytes:
    message = Message()
    for name, values in {"Metadata-Version": "2.4", "Name": "x", "Version": "1", **lines}.items():
        for value in [values] if isinstance(values, str) else values:
            message[name.replace("_", "-")] = value
    return message.as_bytes()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"License_Expression": "MIT OR Apache-2.0", "License": "x"}, ("MIT OR Apache-2.0",)),
        ({"License": "BSD"}, ("BSD",)),
        ({"License": "UNKNOWN", "Classifier": ["License :: OSI Approved :: MIT License"]},
         ("MIT License",)),
        ({"License": "word " * 200, "Classifier": ["License :: A", "License :: B :: C"]},
         ("A", "C")),
        ({"Classifier": ["Topic :: Software"]}, ()),
        ({}, ()),
    ],
)  # fmt: skip
def test_what_metadata_says_of_its_licence(lines: dict[str, Any], said: tuple[str, ...]) -> None:
    assert sbom.declared_licences(metadata(**lines)) == said


@pytest.mark.parametrize(
    ("said", "written"),
    [
        (("MIT",), [{"license": {"acknowledgement": "declared", "id": "MIT"}}]),
        (("apache-2.0",), [{"license": {"acknowledgement": "declared", "id": "Apache-2.0"}}]),
        (("MIT OR Apache-2.0",),
         [{"acknowledgement": "declared", "expression": "MIT OR Apache-2.0"}]),
        # What is no SPDX expression is a name, and stays what the author wrote.
        (("BSD",), [{"license": {"acknowledgement": "declared", "name": "BSD"}}]),
        (("MIT OR", ), [{"license": {"acknowledgement": "declared", "name": "MIT OR"}}]),
        (("MIT License", "Zope"),
         [{"license": {"acknowledgement": "declared", "name": "MIT License"}},
          {"license": {"acknowledgement": "declared", "name": "Zope"}}]),
        ((), None),
    ],
)  # fmt: skip
def test_only_valid_expressions_are_written_as_such(said: tuple[str, ...], written: Any) -> None:
    part = Component(kind="library", name="x", version="1", purl="pkg:pypi/x@1", licences=said)
    content = sbom.document("x", [part], {})
    assert json.loads(content)["components"][0].get("licenses") == written
    assert problems(content) is None


def wheel(path: Path, content: bytes, name: str = "x-1.dist-info/METADATA") -> None:
    path.write_bytes(zipped({"x/__init__.py": "", name: content}))


def test_licences_come_from_the_wheels_in_the_store(found: Settings) -> None:
    store = Store(found.store_dir)
    here, damaged, gone = (file(sha256=c * 64) for c in "abc")
    store.path(here.sha256).parent.mkdir(parents=True)
    wheel(store.path(here.sha256), metadata(License="MIT"))
    store.path(damaged.sha256).parent.mkdir(parents=True)
    store.path(damaged.sha256).write_bytes(b"PK\x03\x04 damaged")
    assert sbom.wheel_licences([here, damaged, gone], store) == {here.sha256: ("MIT",)}


def test_a_metadata_file_without_bounds_is_not_read(tmp_path: Path) -> None:
    bomb = metadata(License="MIT") + b"\n" * (sbom.METADATA_LIMIT + 1)
    wheel(tmp_path / "x.whl", bomb)
    assert sbom.read_metadata(tmp_path / "x.whl") == b""
    # Nor is one that only looks like it.
    wheel(tmp_path / "y.whl", b"", name="vendored/y-1.dist-info/METADATA")
    assert sbom.read_metadata(tmp_path / "y.whl") == b""


# --- what is installed


def test_a_prefix_says_what_is_installed_in_it(tmp_path: Path) -> None:
    of_torch = "Name: torch\nVersion: 2.13.0+cpu\nLicense: MIT\n"
    files = {
        "torch-2.13.0+cpu.dist-info/METADATA": of_torch,
        "Jinja2-3.1.6.dist-info/METADATA": "Name: Jinja2\nVersion: 3.1.6\n",
        "broken-1.dist-info/METADATA": b"\xff\xfe",
    }
    lay(tmp_path / "lib/python3.11/site-packages", files)
    found = sbom.installed(tmp_path)
    assert [(c.purl, c.licences) for c in found] == [
        ("pkg:pypi/jinja2@3.1.6", ()),
        ("pkg:pypi/torch@2.13.0%2Bcpu", ("MIT",)),
    ]


def test_what_was_seen_is_added_once(found: Settings) -> None:
    facts = {"lock": "", "platform": "linux/amd64", "python": "3.11"}
    seen = [
        *sbom.of_packages({"g++": "4:12.2.0-3", "base-files": "12.4"}, "bookworm"),
        sbom.Component(
            kind="library", name="pip", version="25.0", purl=sbom.purl("pypi", None, "pip", "25.0")
        ),
    ]
    content = attestations.bill("x", [deb()], None, facts, found, seen)
    assert problems(content) is None
    assert sorted(c["purl"] for c in json.loads(content)["components"]) == [
        "pkg:deb/debian/base-files@12.4?distro=bookworm",
        "pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64&distro=bookworm",
        "pkg:pypi/pip@25.0",
    ]


def test_what_is_only_used_to_build_is_marked() -> None:
    parts = sbom.locked_components([file(kind="tool", name="uv", version="0.13.8"), file()])
    written = json.loads(sbom.document("x", parts, {}))["components"]
    assert {c["name"]: c["scope"] for c in written} == {"uv": "excluded", "torch": "required"}
