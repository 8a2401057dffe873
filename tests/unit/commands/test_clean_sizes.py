"""The sizes in the table of `clean`: what is really freed, each file and layer once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.commands import clean_sizes
from envbuilder.commands.clean_sizes import Entry
from envbuilder.commands.image_inventory import Removal
from envbuilder.core.text import stored

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings


def file(path: Path, size: int = 100_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def blocks(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def entry(row: str, size: int | None, kind: str = clean_sizes.ENVIRONMENTS) -> Entry:
    return Entry(name=row, kind=kind, row=row, bytes=size)


def test_a_folder_frees_what_is_on_the_disk(found: Settings, tmp_path: Path) -> None:
    large, small = file(tmp_path / "env" / "a" / "large"), file(tmp_path / "env" / "small", 1)
    (sparse := tmp_path / "env" / "sparse").touch()
    with sparse.open("r+b") as stream:
        stream.truncate(1 << 30)
    outside = file(tmp_path / "outside")
    (link := tmp_path / "env" / "link").symlink_to(outside)
    (sized,) = clean_sizes.of_files([tmp_path / "env"], found)
    folders = (tmp_path / "env", tmp_path / "env" / "a")
    assert sized.bytes == blocks(large, small, sparse, link, *folders)
    assert sized.bytes < 1 << 20


def test_a_file_with_two_names_is_freed_with_the_last(found: Settings, tmp_path: Path) -> None:
    first, other = file(tmp_path / "first"), tmp_path / "other"
    other.hardlink_to(first)
    sizes = [e.bytes for e in clean_sizes.of_files([first, other], found)]
    assert sizes == [0, blocks(first)]
    assert [e.bytes for e in clean_sizes.of_files([other], found)] == [0], "the first one stays"
    file(tmp_path / "env" / "third").unlink()
    (tmp_path / "env" / "third").hardlink_to(first)
    sizes = [e.bytes for e in clean_sizes.of_files([tmp_path / "env", first, other], found)]
    assert sizes == [blocks(tmp_path / "env"), 0, blocks(first)]


def test_what_is_gone_or_closed_frees_nothing(found: Settings, tmp_path: Path) -> None:
    (sized,) = clean_sizes.of_files([tmp_path / "gone"], found)
    assert sized.bytes == 0


def test_what_belongs_together_is_one_row(found: Settings) -> None:
    name = "cpu-py3.11-0123456789ab"
    paths = [
        found.envs_dir / name,
        found.envs_dir / f"{name}.sbom.cdx.json",
        found.envs_dir / f"{name}.provenance.json",
        found.envs_dir / f".{name}.partial",
        found.cache_dir / "build" / "cpu-0123456789ab",
        found.cache_dir / "store",
        found.cache_dir / "layers" / "blobs" / "sha256" / "a",
        found.cache_dir / "layers" / "index.json",
        found.reports_dir / "000001-a.json",
        found.records_dir / "a" / "b.json",
    ]
    rows = {(e.kind, e.row) for e in clean_sizes.of_files(paths, found)}
    assert rows == {
        (clean_sizes.ENVIRONMENTS, name),
        (clean_sizes.WORKING, f".{name}.partial"),
        (clean_sizes.WORKING, "cpu-0123456789ab"),
        (clean_sizes.DOWNLOADS, "store"),
        (clean_sizes.DOWNLOADS, "layers"),
        (clean_sizes.REPORTS, clean_sizes.REPORTS),
        (clean_sizes.RECORDS, clean_sizes.RECORDS),
    }


def test_an_image_counts_once_with_its_last_name() -> None:
    removals = [Removal("a", "x:1"), Removal("a", "x:latest"), Removal("b", "y"), Removal("c", "z")]
    shares = {"a": 100, "b": 20}
    entries = clean_sizes.of_images(removals, frozenset("ac"), shares)
    assert [(e.name, e.bytes) for e in entries] == [
        ("x:1", 0),
        ("x:latest", 100),
        ("y", 0),  # keeps another name
        ("z", None),  # not reported
    ]
    assert {e.row for e in entries} == {"x:1, x:latest", "y", "z"}


def test_the_table_fits_80_columns_and_shows_the_largest_first() -> None:
    entries = [entry("small", 4096), entry("n" * 200, 1_310_000_000)]
    entries += [entry("envbuilder/cpu:latest", 310_000_000, clean_sizes.IMAGES)]
    lines = list(clean_sizes.table(entries))
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0][:5] for line in lines] == [
        "envir",
        "nnnnn",
        "small",
        "image",
        "envbu",
        "total",
    ]
    assert lines[-1].endswith("1.62 GB")
    assert all(line.endswith("B") for line in lines if line.startswith("  "))


def test_what_no_engine_reports_is_no_zero() -> None:
    (_, row, total) = clean_sizes.table([entry("envbuilder/cpu:latest", None, clean_sizes.IMAGES)])
    assert row.endswith(" ?")
    assert total.startswith("at least")


def test_two_images_may_free_more_than_their_own_shares() -> None:
    entries = [entry(name, 5, clean_sizes.IMAGES) for name in ("a", "b")]
    assert list(clean_sizes.table(entries))[-1].startswith("at least")


def test_what_has_no_parts_is_one_line() -> None:
    reports, total = clean_sizes.table([entry(clean_sizes.REPORTS, 5000, clean_sizes.REPORTS)])
    assert reports.split() == ["verification", "reports", "5.00", "kB"]
    assert len(reports) == len(total)


def test_many_rows_are_summed_up() -> None:
    entries = [entry(f"row {n}", n * 1000) for n in range(1, 31)]
    lines = list(clean_sizes.table(entries))
    assert len(lines) == 1 + 20 + 1 + 1
    assert lines[-2].split() == ["and", "10", "more", "55.0", "kB"]
    assert clean_sizes.total(entries) == 465_000


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (4096, "4.10 kB"), (1_310_000_000, "1.31 GB")],
)
def test_sizes_are_decimal(size: int, shown: str) -> None:
    assert stored(size) == shown
