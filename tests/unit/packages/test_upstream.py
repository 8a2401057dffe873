"""Offers of named indexes: their pages, local wheels, and claims."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from envbuilder.core import resources, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Configuration, Settings
from envbuilder.packages import upstream
from envbuilder.packages.fetch import Place
from envbuilder.packages.python import indexes
from envbuilder.packages.python.uv import Offer
from envbuilder.packages.store import Store
from envbuilder.profiles import releases

FILE = "torch-9.0+x-cp311-cp311-linux_x86_64.whl"
URL = "https://index.invalid/whl/x/torch/"


def offer(**changes: object) -> Offer:
    fields: dict[str, object] = {
        "distribution": "torch", "version": "9.0+x", "sha256": "a" * 64, "source": "up",
        "file": FILE, "provenance": "claim", "by": "a lock", "requires_dist": ("claimed",),
    }  # fmt: skip
    return Offer(**{**fields, **changes})  # type: ignore[arg-type]


def wheel(folder: Path, name: str = FILE) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch-9.0+x.dist-info/METADATA", "Name: torch\nRequires-Dist: jinja2\n")
        archive.writestr("torch/vendored/y-1.dist-info/METADATA", "Name: y\n")
    return path


def own(folder: Path) -> Settings:
    return Settings(
        project=None, config_dir=folder, cache_dir=folder, data_dir=folder,
        configuration=Configuration(),
    )  # fmt: skip


def test_html_pages() -> None:
    text = f"""<a href="../x/{FILE.replace("+", "%2B")}#sha256={"b" * 64}"
      data-requires-python="&gt;=3.9" data-dist-info-metadata="sha256=c">x</a>
      <a href="https://e.invalid/torch-8.0-cp311-cp311-linux_x86_64.whl">no hash</a>
      <a href="torchvision-1-cp311-cp311-linux_x86_64.whl">other</a><a href="t.tar.gz">s</a>
      <a href="http://[">broken</a><a name="x">none</a>"""
    first, second = upstream.parse_page(text, URL, "torch", "up")
    assert first.file == FILE
    assert first.sha256 == "b" * 64
    assert first.requires_python == ">=3.9"
    assert first.location.startswith("https://index.invalid/whl/x/x/torch-9.0")
    assert first.core_metadata
    assert (second.version, second.sha256, second.core_metadata) == ("8.0", "", False)


def test_a_wheel_on_disk_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path)
    store = Store(tmp_path / "store")
    hashed: list[str] = []
    read = upstream.read_wheel
    monkeypatch.setattr(upstream, "read_wheel", lambda path: hashed.append(path.name) or read(path))
    for changed in (1, 2):
        for _ in range(2):
            [offered] = upstream.local_wheels([str(tmp_path)], "torch", store)
            assert offered.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert len(hashed) == changed
        status = path.stat()
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"more{changed}", "")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "torch-1-py3-none-any.whl").symlink_to("nothing")
    with pytest.raises(InvalidError, match=r"torch-1-py3-none-any\.whl: not a readable wheel"):
        upstream.local_wheels([str(tmp_path)], "torch", store)


@pytest.mark.parametrize("name", [FILE, "nonsense.whl"])
def test_a_damaged_wheel_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK no")
    with pytest.raises(InvalidError, match="not a readable wheel"):
        upstream.read_wheel(tmp_path / name)


def test_only_wanted_wheels_of_local_folders(tmp_path: Path) -> None:
    wheel(tmp_path)
    (tmp_path / "other-1-py3-none-any.whl").write_bytes(b"not looked at")
    places = (str(tmp_path), "https://remote", str(tmp_path / "gone"))
    assert [o.file for o in upstream.local_wheels(places, "torch", Store(tmp_path))] == [FILE]


def test_the_index_wins_over_a_claim_and_says_so() -> None:
    listed = offer(sha256="b" * 64, provenance="read", by="the index in pip", requires_dist=None)
    (merged,), notes = upstream.merge([listed], [], [offer()], "up")
    assert merged.sha256 == "b" * 64
    assert merged.provenance == "read"
    assert merged.requires_dist == ("claimed",)
    assert "differs from public locks" in notes[0]


def test_an_index_without_a_hash_needs_a_claim() -> None:
    listed = offer(sha256="", location="https://x/y", requires_dist=None)
    assert upstream.merge([listed], [], [], "up") == ((), ())
    (merged,), _ = upstream.merge([listed], [], [offer()], "up")
    assert (merged.sha256, merged.location) == ("a" * 64, "https://x/y")
    assert merged.provenance == "claim"


def test_a_local_file_confirms_a_claim() -> None:
    local = offer(provenance="read", by="the file itself", source="", location="/x")
    (merged,), _ = upstream.merge([], [local], [offer()], "up")
    assert (merged.provenance, merged.source, merged.by) == ("read", "up", "the file itself")


def test_a_lock_does_not_depend_on_who_has_the_file() -> None:
    known = offer(provenance="read", by="bytes hashed")
    local = offer(provenance="read", by="the file itself", source="", location="/x")
    (merged,), _ = upstream.merge([], [local], [known], "up")
    assert (merged.by, merged.location) == ("bytes hashed", "/x")


def test_a_local_file_with_other_bytes_is_refused() -> None:
    local = offer(sha256="f" * 64, location="/x/file.whl")
    with pytest.raises(InvalidError, match=r"/x/file\.whl: sha256 is f+, but a lock has a+"):
        upstream.merge([], [local], [offer()], "up")


def test_claims_stand_in_for_an_index_out_of_reach(tmp_path: Path) -> None:
    asked: list[str] = []
    said: list[str] = []

    def read(url: str) -> bytes:
        asked.append(url)
        raise OSError

    wanted = {"torch": "pytorch-xpu", "triton-xpu": "pytorch-xpu"}
    found = upstream.offers(wanted, own(tmp_path), (), said.append, read)
    assert len(asked) == 1
    assert {o.distribution for o in found} == {"torch", "triton-xpu"}
    for o in found:
        assert o.source == "pytorch-xpu"
    assert "unreachable" in said[0]


LINK = '<a href="torch-2.12.1%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={}">x</a>'


@pytest.mark.parametrize(
    ("torch", "torchvision", "claimed", "note"),
    [
        (200, 404, set(), ""),
        (200, 503, {"torchvision"}, "unreachable (HTTP 503"),
        (
            404,
            404,
            {"torch", "torchvision"},
            "no page of torch, so hashes from public locks are used",
        ),
    ],
)
def test_an_index_that_answers_has_what_it_lists_and_no_more(
    tmp_path: Path, torch: int, torchvision: int, claimed: set[str], note: str
) -> None:
    """A mirror of a part: what it lacks cannot be downloaded, whatever public locks state."""
    answers = {"torch": torch, "torchvision": torchvision}
    said: list[str] = []

    def read(url: str) -> bytes:
        response = requests.Response()
        response.status_code = answers[url.split("/")[-2]]
        response.raise_for_status()
        return LINK.format("a" * 64).encode()

    wanted = dict.fromkeys(answers, "pytorch-cpu")
    offers = upstream.offers(wanted, own(tmp_path), (), said.append, read)
    assert {o.distribution for o in offers if o.by != "the index pytorch-cpu"} == claimed
    assert note in "".join(said)
    assert bool(said) == bool(note)


def test_pages_are_read_once_and_a_server_out_of_reach_is_asked_once() -> None:
    asked: list[str] = []

    def read(url: str) -> bytes:
        asked.append(url)
        if "down.invalid" in url:
            raise requests.ConnectionError
        if "absent" in url:
            raise requests.HTTPError
        return url.encode()

    pages = upstream.Pages(read)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(pages.read, ["https://up.invalid/torch/"] * 8)) == {
            b"https://up.invalid/torch/"
        }
    for url in ("https://down.invalid/a/", "https://down.invalid/b/"):
        with pytest.raises(requests.ConnectionError):
            pages.read(url)
    with pytest.raises(requests.HTTPError):
        pages.read("https://up.invalid/absent/")
    assert pages.read("https://up.invalid/other/") == b"https://up.invalid/other/"
    assert asked == [
        "https://up.invalid/torch/",
        "https://down.invalid/a/",
        "https://up.invalid/absent/",
        "https://up.invalid/other/",
    ]


def test_a_release_that_was_yanked_fits_those_who_pin_it() -> None:
    page = b"<a href=a-1.tar.gz></a><a href=a-1.1.tar.gz data-yanked></a><a href=a-2.tar.gz></a>"
    index = upstream.Index([Place(url="https://index.example")], lambda _: page, lambda _: [])
    for allowed, expected in (("==1.1", ["1.1"]), (">=1", ["1", "2"]), ("==1.*", ["1"])):
        assert [*map(str, index.fitting("a", SpecifierSet(allowed)))] == expected


def test_an_index_in_reach_is_read(tmp_path: Path) -> None:
    page = f'<a href="{FILE}#sha256={"b" * 64}">x</a>'.encode()
    found = upstream.offers(
        {"torch": "pytorch-cu126"}, own(tmp_path), (), lambda _: None, lambda _: page
    )
    assert any(o.file == FILE and o.provenance == "read" for o in found)


@pytest.mark.parametrize(
    "text",
    [
        '{"files":' + "[" * 100_000,
        '{"files": [{"filename": ["x-1-py3-none-any.whl"], "url": "x"}]}',
        '{"files": [{"filename": "x-1-py3-none-any.whl", "url": "x", "hashes": {"sha256": 1}}]}',
    ],
)
def test_a_page_that_cannot_be_parsed_lists_nothing(text: str) -> None:
    assert upstream.parse_page(text, "https://h/x/", "x", "default") == []


RELEASES = resources.profiles_dir() / "releases"
ELSEWHERE = {
    "torch-1.13.1-cp310-cp310-manylinux2014_aarch64.whl":  # PyPI
    "d9fe785d375f2e26a5d5eba5de91f89e6a3be5d11efb497e76705fdf93fa3c2e",
    "torch-2.0.0-1-cp311-cp311-manylinux2014_aarch64.whl":  # PyPI
    "bd42db2a48a20574d2c33489e120e9f32789c4dc13c514b0c44272972d14a2d7",
    "torch-2.1.1-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl":  # tianshou
    "61b51b33c61737c287058b0c3061e6a9d3c363863e4a094f804bc486888a188a",
    "torch-2.5.1+cpu-cp311-cp311-linux_x86_64.whl":  # a uv.lock in an issue of uv
    "07d7c9e069123d5af08b0cf0013d74f680b2d8be7d9e2cf561a52c90c55d9409",
    "torch-2.7.1+cu118-cp312-cp312-manylinux_2_28_x86_64.whl":  # cleanrl
    "91454dcfdb81f181fdf216d6d6d9912fbd8795578b90384b3b8b8132737072bb",
}
"""Hashes that PyPI or public lock files state, too."""


def test_the_tables_of_hashes_are_whole_and_agree_with_other_sources() -> None:
    rows = list(csv.DictReader((RELEASES / "hashes.csv").read_text().splitlines()))
    named = {(row["index"], row["file"].partition("-")[0]) for row in rows}
    found = [offer for index, name in named for offer in upstream.claims(name, index)]
    assert len({offer.file for offer in found}) == len(found) == len(rows)
    assert {offer.source for offer in found} <= indexes.upstreams().keys()
    assert {offer.file for offer in found} >= ELSEWHERE.keys()
    known = {(b.release, b.platform, b.build): b.pythons for b in releases.every("torch")}
    for offer in found:
        name, version, _, tags = parse_wheel_filename(offer.file)
        tag = min(tags, key=str)
        assert (str(version), name) == (offer.version, offer.distribution)
        python = tag.interpreter.replace("cp3", "3.")
        assert all(map(Requirement, offer.requires_dist))
        assert SpecifierSet(offer.requires_python).contains(python)
        assert re.fullmatch("[0-9a-f]{64}", offer.sha256)
        assert ELSEWHERE.get(offer.file, offer.sha256) == offer.sha256
        if name == "torch":
            release, _, build = offer.version.partition("+")
            platform: types.Platform = "linux/arm64" if "aarch64" in tag.platform else "linux/amd64"
            assert python in known[release, platform, build or "cpu"]


def test_bytes_checked_by_us_are_read_and_assumed_requirements_make_a_hash_assumed() -> None:
    found = {o.file: o for o in upstream.claims("Torch", "pytorch-cpu")}
    name = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert [file for file, offer in found.items() if offer.provenance == "read"] == [name]
    assert found[name].by.startswith("bytes hashed on")
    assert (found[name].size, found[name].size_about) == (191794682, None)
    other = found["torch-2.4.1+cpu-cp312-cp312-linux_x86_64.whl"]
    assert other.provenance == "assumed"
    assert 'setuptools; python_version >= "3.12"' in (other.requires_dist or ())
    assert "; requirements: " in other.by
    rocm = upstream.claims("torch", "pytorch-rocm72")
    assert {(offer.size, offer.size_about) for offer in rocm} == {(None, 6227849000)}


def test_pages_of_this_machine_are_folders(tmp_path: Path) -> None:
    """A folder for each package, with its page; or all files in one, as find-links has it."""
    name = "low-1.0-py3-none-any.whl"
    (tmp_path / "low").mkdir()
    (tmp_path / "low/index.html").write_text(f'<a href="{name}">{name}</a>')
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/app-3.0-py3-none-any.whl").touch()
    places = [Place(url=tmp_path.as_uri()), Place(url=str(tmp_path / "flat"), flat=True)]
    index = upstream.Index(places, upstream.page, lambda _: [])
    versions = {of: [*map(str, index.releases(of))] for of in ("low", "app", "gone")}
    assert versions == {"low": ["1.0"], "app": ["3.0"], "gone": []}
