"""Where packages come from that are from no index, and whether that is as it was locked."""

from __future__ import annotations

from pathlib import Path

from envbuilder.profiles.profile import Resolution, Source
from envbuilder.project import sources
from tests.support.repositories import lay


def test_a_folder_has_the_digest_of_its_files_and_nothing_else_has_one(tmp_path: Path) -> None:
    lay(tmp_path, {"ops/x.py": "1", "ops/envbuilder.lock/default.cpu.json": "2"})
    (tmp_path / "outside").symlink_to("/")
    locations = ("./ops", "./missing", "./outside", "git+https://example.org/x", "https://x/x.whl")
    said = Resolution(sources=tuple(Source(name="ops", location=each) for each in locations))

    def digests() -> list[str]:
        return [each.digest for each in sources.with_digests(said, tmp_path).sources]

    first, *others = digests()
    assert len(first) == 64
    assert others == ["", "", "", ""]
    lay(tmp_path, {"ops/envbuilder.lock/default.cpu.json": "3"})
    assert digests()[0] == first
    lay(tmp_path, {"ops/x.py": "2"})
    assert digests()[0] != first
