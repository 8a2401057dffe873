"""`clean` says what it frees, and asks at a terminal."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest
from filelock import FileLock

from envbuilder.commands import clean, inventory
from envbuilder.core import console, settings
from tests.support.cleaning import (
    DIGEST,
    Labelled,
    image,
    leftover,
    named,
    ours,
    record,
    store,
)
from tests.support.command_line import Command

pytestmark = pytest.mark.usefixtures("fake")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody sits at a terminal; the texts are the questions, each answered by the next one."""
    monkeypatch.setattr(clean, "_is_terminal", lambda: True)
    questions = list[str]()

    def confirm(question: str, *, err: bool) -> bool:
        assert err
        questions.append(question)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    return questions


def test_a_terminal_is_asked_once_after_the_sizes(
    own: settings.Settings, terminal: list[str], envbuilder: Command
) -> None:
    made = [ours(own), leftover(own), record(own, "cpu")]
    assert "at least" in envbuilder("clean").err
    assert terminal == ["Remove all of this?"]
    for p in made:
        assert not p.exists()


@pytest.mark.parametrize("options", [("--yes",), ("--yes", "--json"), ("--dry-run",)])
def test_nobody_is_asked(
    own: settings.Settings,
    fake: Labelled,
    terminal: list[str],
    options: tuple[str, ...],
    envbuilder: Command,
) -> None:
    prefix = ours(own)
    envbuilder("clean", *options)
    assert terminal == []
    assert prefix.exists() == ("--dry-run" in options)
    shutil.rmtree(prefix, ignore_errors=True)
    fake.images = {}
    envbuilder("clean")
    assert terminal == [], "nothing is there"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_terminal_and_consent_all_is_listed_and_nothing_removed(
    own: settings.Settings, fake: Labelled, options: tuple[str, ...], envbuilder: Command
) -> None:
    made = [ours(own), leftover(own), record(own, "cpu")]
    shown = envbuilder("clean", *options, code=2)
    assert "nothing was removed" in shown.err
    assert "To remove the items listed above, add --yes." in shown.err
    for path in made:
        assert str(path) in shown.out
    assert all(path.exists() for path in made)
    assert fake.removed == []


def test_no_removes_nothing(
    own: settings.Settings,
    fake: Labelled,
    terminal: list[str],
    monkeypatch: pytest.MonkeyPatch,
    envbuilder: Command,
) -> None:
    prefix = ours(own)
    record(own, "cpu")
    monkeypatch.setattr(click, "confirm", lambda question, **options: False)
    shown = envbuilder("clean")
    assert prefix.exists()
    assert fake.removed == []
    assert shown.out == ""
    assert "nothing was removed" in shown.err


def test_what_changed_during_the_question_stays(
    own: settings.Settings,
    terminal: list[str],
    monkeypatch: pytest.MonkeyPatch,
    envbuilder: Command,
) -> None:
    """A build that began meanwhile, and one that ended, are not what was shown."""
    shown = ours(own, "cpu")
    begun = ours(own, "xpu")
    lock = FileLock(begun.with_name(f".{begun.name}.partial.lock"))

    def confirm(question: str, *, err: bool) -> bool:
        lock.acquire()
        ours(own, "zendnn")
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    with lock:
        lock.release()
        envbuilder("clean")
        assert begun.exists()
    assert not shown.exists()
    assert (own.envs_dir / "zendnn-py3.11-0123456789ab").exists()


def file(path: Path, size: int = 100_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def blocks(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def freed(*paths: Path) -> list[int | None]:
    """The bytes that the removal of these paths frees, in this order."""
    items = [
        inventory.Item(name=str(p), kind=inventory.WORKING, row="", root=p.parent) for p in paths
    ]
    return [*clean.measured(items, None, console.PlainProgress(lambda line: None)).values()]


def test_a_folder_frees_what_is_on_the_disk(tmp_path: Path) -> None:
    large = file(tmp_path / "env/a/large")
    small = file(tmp_path / "env/small", 1)
    (sparse := tmp_path / "env/sparse").touch()
    with sparse.open("r+b") as stream:
        stream.truncate(1 << 30)
    outside = file(tmp_path / "outside")
    (link := tmp_path / "env/link").symlink_to(outside)
    folders = (tmp_path / "env", tmp_path / "env/a")
    assert freed(tmp_path / "env") == [blocks(large, small, sparse, link, *folders)]
    assert blocks(sparse) < 1 << 20
    assert freed(tmp_path / "gone") == [0]


def test_a_file_with_two_names_is_freed_with_the_last(tmp_path: Path) -> None:
    first = file(tmp_path / "first")
    other = tmp_path / "other"
    other.hardlink_to(first)
    assert freed(first, other) == [0, blocks(first)]
    assert freed(other) == [0], "the first one stays"
    file(tmp_path / "env/third").unlink()
    (tmp_path / "env/third").hardlink_to(first)
    paths = (tmp_path / "env", first, other)
    assert freed(*paths) == [blocks(tmp_path / "env"), 0, blocks(first)]


def test_what_belongs_together_is_one_row(own: settings.Settings, fake: Labelled) -> None:
    prefix = ours(own)
    Path(f"{prefix}.sbom.cdx.json").write_text("{}")
    work = leftover(own)
    store(own, "layers", "index.json", f"blobs/sha256/{DIGEST}")
    record(own, "cpu")
    fake.images.clear()
    fake.add(image("cpu", named("cpu"), "envbuilder/cpu:latest"))
    with inventory.Inventory(own) as listed:
        leftovers = listed.leftovers()
        listed.environments(None)
        listed.downloads()
        recorded = inventory.recorded_images(own)
        listed.images(fake.labelled(), recorded, None)
    rows = [(item.kind, item.row) for item in (*leftovers, *listed.items)]
    assert list(dict.fromkeys(rows)) == [
        (inventory.WORKING, work.name),
        (inventory.ENVIRONMENTS, prefix.name),
        (inventory.DOWNLOADS, "layers"),
        (inventory.IMAGES, f"{named('cpu')}, envbuilder/cpu:latest"),
        (inventory.RECORDS, inventory.RECORDS),
    ]
    assert len(rows) == 7


def lines(*entries: tuple[str, str, int | None]) -> list[str]:
    """The table of what has these kinds, rows and sizes."""
    items = [
        inventory.Item(name=str(n), kind=kind, row=row) for n, (kind, row, _) in enumerate(entries)
    ]
    sizes = {str(n): size for n, (_, _, size) in enumerate(entries)}
    return list(clean.table(items, sizes))


def test_the_table_fits_80_columns_and_shows_the_largest_first() -> None:
    shown = lines(
        (inventory.ENVIRONMENTS, "small", 4096),
        (inventory.ENVIRONMENTS, "n" * 200, 1_310_000_000),
        (inventory.IMAGES, "envbuilder/cpu:latest", 310_000_000),
    )
    for line in shown:
        assert len(line) <= 80
    firsts = ["envir", "nnnnn", "small", "image", "envbu", "total"]
    assert [line.split()[0][:5] for line in shown] == firsts
    assert shown[-1].endswith("1.62 GB")
    assert all(line.endswith("B") for line in shown if line.startswith("  "))


def test_more_may_be_freed_than_is_known() -> None:
    """Sizes that no engine reports, and layers that only removed images share."""
    _, row, total = lines((inventory.IMAGES, "envbuilder/cpu:latest", None))
    assert row.endswith(" ?")
    assert total.startswith("at least")
    several = lines(*((inventory.IMAGES, name, 5) for name in ("a", "b")))
    assert several[-1].startswith("at least")


def test_what_has_no_parts_is_one_line_and_many_rows_are_summed_up() -> None:
    records, total = lines((inventory.RECORDS, inventory.RECORDS, 5000))
    assert records.split() == ["records", "of", "images", "5.00", "kB"]
    assert len(records) == len(total)
    many = lines(*((inventory.WORKING, f"row {n}", n * 1000) for n in range(1, 31)))
    assert len(many) == 1 + 20 + 1 + 1
    assert many[-2].split() == ["and", "10", "more", "55.0", "kB"]
    assert many[-1].split() == ["total", "465", "kB"]
