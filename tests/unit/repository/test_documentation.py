"""Every link of the documentation leads somewhere, and every page can be found."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.builds import variables
from envbuilder.core import errors, files, settings
from tools import refresh_docs

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def pages(repository: Path) -> list[Path]:
    return [*sorted((repository / "docs").rglob("*.md")), *sorted(repository.glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    found = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def links(page: Path) -> Iterator[str]:
    yield from LINK.findall(CODE.sub("", page.read_text()))


def test_every_link_leads_somewhere(repository: Path) -> None:
    dead = []
    for page in pages(repository):
        for link in links(page):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(repository)}: {link}")
    assert dead == []


def test_every_page_is_in_the_index(repository: Path) -> None:
    docs = repository / "docs"
    linked = {(docs / link.partition("#")[0]).resolve() for link in links(docs / "index.md")}
    lost = {p for p in docs.rglob("*.md") if p.resolve() not in linked} - {docs / "index.md"}
    assert lost == set()


@pytest.mark.parametrize("name", sorted(settings.Configuration.__struct_fields__))
def test_every_key_of_the_configuration_has_a_row(name: str, repository: Path) -> None:
    page = (repository / "docs/reference/configuration.md").read_text()
    assert f"| `{name}` |" in page


def test_every_variable_has_a_row(repository: Path) -> None:
    page = (repository / "docs/reference/configuration.md").read_text()
    named = set(re.findall(r"ENVBUILDER_[A-Z_]+", page))
    source = "".join(p.read_text() for p in (repository / "envbuilder").rglob("*.py"))
    read = set(re.findall(r'(?:environ\.get\(|envvar=|VARIABLE = )"(ENVBUILDER_[A-Z_]+)"', source))
    assert read == {
        "ENVBUILDER_CONFIG_DIR",
        "ENVBUILDER_CACHE_DIR",
        "ENVBUILDER_DATA_DIR",
        "ENVBUILDER_TARGET_HOST",
        files.TRUSTED_VARIABLE,
        variables.DEFAULT_THREADS,
    }
    assert read <= named


def test_every_exit_code_has_a_row(repository: Path) -> None:
    page = (repository / "docs/reference/exit-codes.md").read_text()
    lengths = {"SHOWN", "LONGEST"}
    names = {k for k in vars(errors) if k.isupper() and not k.startswith("_")} - lengths
    codes = {v for v in (getattr(errors, name) for name in names) if isinstance(v, int)}
    assert {0, *codes} == {int(n) for n in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}


def test_generated_pages_are_fresh(repository: Path) -> None:
    for name, made in refresh_docs.pages().items():
        assert (repository / "docs/reference" / name).read_text() == made, f"{name}: run: make docs"


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that are neither code nor a table."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if not code and not line.startswith("|"):
            yield number, line


def test_lines_of_prose_are_wrapped(repository: Path) -> None:
    exempt = {repository / "docs/reference" / name for name in refresh_docs.pages()}
    exempt.add(repository / "CHANGELOG.md")  # every change adds to it
    long = [
        f"{page.relative_to(repository)}:{number}"
        for page in pages(repository)
        if page not in exempt
        for number, line in prose(page)
        if len(line) > 120
    ]
    assert long == []


def test_the_first_change_of_a_contributor_fits_the_invented_vendor(repository: Path) -> None:
    vendor = (repository / "tests/unit/commands/test_vendor.py").read_text().splitlines()
    text = (repository / "CONTRIBUTING.md").read_text()
    (diff,) = re.findall("```diff\n(.*?)```", text, re.DOTALL)
    lines = diff.splitlines()
    before = {line[1:] for line in lines if line[0] in " -"}
    after = {line[1:] for line in lines if line[0] in " +"}
    # Whoever follows the page runs this test afterwards.
    assert before <= {*vendor} or after <= {*vendor}


def test_no_page_links_out_of_the_site(repository: Path) -> None:
    """A page may be read on the site, which holds nothing but docs/."""
    docs = repository / "docs"
    outside = [
        f"{page.relative_to(repository)}: {link}"
        for page in sorted(docs.rglob("*.md"))
        for link in links(page)
        if not re.match(r"[a-z]+:", link)
        and not (page.parent / link.partition("#")[0]).resolve().is_relative_to(docs)
    ]
    assert outside == []


def test_the_readme_fits_two_screens(repository: Path) -> None:
    lines = (repository / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100


def test_no_docstring_says_a_sentence_twice(repository: Path) -> None:
    twice = []
    for path in sorted((repository / "envbuilder").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = " ".join((ast.get_docstring(node) or "").split())
                sentences = [s for s in re.split(r"(?<=\.) ", text) if len(s) > 25]
                if len({*sentences}) < len(sentences):
                    twice.append(f"{path.name}: {getattr(node, 'name', 'the module')}")
    assert twice == []
