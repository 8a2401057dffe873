"""Write a first `envbuilder.yaml` for a repository, from the files that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import decoding, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Definition, Extra, RequirementFile
from envbuilder.core.yaml_files import scalar
from envbuilder.project import forms
from envbuilder.project.conda import read_environment_yml
from envbuilder.project.lines import Line, Listed, joined, read_text, url_path
from envbuilder.project.scripts import has_list
from envbuilder.project.tables import pyproject

if TYPE_CHECKING:
    from envbuilder.project.repository import InstallHints

_MOST_MENTIONED = 5
"""Other files, and extras or groups, that the comments name."""
_MOST_READ = 30
"""Files that are read in order to choose one."""
_CONDA = re.compile(r"^dependencies:\s*(#.*)?$", re.MULTILINE)
_LATE = re.compile(r"docker|binder|demos?|examples?|notebooks?|benchmarks?|eval(uation)?s?|tools")
_NEVER = re.compile(r"docs?|tests?|ci|submodules|third_?party|vendor|external")
"""Folders whose files come last, or only if a README names them."""
_OF_ITSELF = frozenset({*forms.OWN, "requirements.txt", "uv.lock"})
"""What is installed with the project: its list is what most packages read."""
_ASIDE = re.compile(
    r"(?i)(.*[-_.])?(dev|develop|tests?|docs?|lint|style|build|ci|optional|extras?)([-_.].*)?"
)
"""Names of lists of something else than what a project needs in order to run."""
_HARDWARE = re.compile(
    r"(?i)(.*[-_.])?(cpu|gpu|cuda|cu[0-9]+|rocm|[tnx]pu|mps|mac|osx|arm64|win|windows)([-_.].*)?"
)

_HEAD = """\
# What this project needs on any hardware. The framework comes from the profile of each machine.
# To add packages: envbuilder add NAME. After other changes: envbuilder lock
"""
IMPORTED = "imported by "
"""What the place of a package that a file's code imports begins with."""
_NO_LIST = 'requirements: []  # such as [einops, "rich>=13"]\n'
_INSTEAD = "the nearest to what files say that there is"
_TAIL = {
    "framework": "# framework: jax  # or tensorflow; by default what the packages require, else"
    " torch\n",
    "profiles": "# profiles: [cpu, cuda]  # the hardware to support; without it, all\n",
    "python": '# python: "3.12"\n',
}
"""Keys that are often added, as comments."""


class Suggested(Struct, frozen=True, kw_only=True):
    """A package that is named by no list, only by a text or by code."""

    requirement: str
    source: str
    """What names it."""


class Source(Struct, frozen=True, kw_only=True):
    """A file that lists what a project requires."""

    main: RequirementFile
    """The file as it is written down, without what is optional."""
    listed: Listed = Listed()
    optional: RequirementFile | None = None
    """The same with all its extras and groups; None if it has none."""
    why: str = ""
    """Why it is taken, if there are others."""


class Choice(Struct, frozen=True, kw_only=True):
    """The files to take requirements from, and those that are left."""

    sources: tuple[Source, ...] = ()
    others: tuple[str, ...] = ()
    """More files that could be listed."""
    errors: tuple[InvalidError, ...] = ()
    """Why files that would have come first cannot be read."""
    notes: tuple[str, ...] = ()
    """What is said of files at the top that list nothing."""
    unlisted: tuple[Line, ...] = ()
    """What texts install or code imports (`IMPORTED`), and no file lists."""

    @property
    def lines(self) -> tuple[Line, ...]:
        """The requirements in all of them."""
        return (*joined(source.listed for source in self.sources).requirements, *self.unlisted)


def choose(folder: Path, files: Sequence[str], hints: InstallHints) -> Choice:
    """Return what to take requirements from; `files` and `hints` are of `repository`.

    Of several files, the one that the README names, else the best kind nearest to the top. If the
    README installs the repository itself, what that requires is taken, too.
    """
    ordered, usable = _candidates(folder, files, hints)
    stating = [file for file in forms.OWN if file in ordered]
    sources = list[Source]()
    errors = list[InvalidError]()
    notes = list[str]()
    todo = usable[:_MOST_READ]
    while todo:
        file = todo.pop(0)
        try:
            source = _read(folder, file)
        except InvalidError as error:
            errors.append(error)
            continue
        if _is_stub(source):
            todo = [*stating, *todo]
        elif _lists_something(source.listed):
            if file not in hints.files:
                source = _including(folder, file, usable) or source
            file = source.main.file
            sources = [msgspec.structs.replace(source, why=_reason(file, ordered, hints))]
            break
        if "/" not in file:
            notes += source.listed.notes
    if sources and hints.itself and not _is_complete(sources[0]):
        for file in stating:
            try:
                source = _read(folder, file)
            except InvalidError as error:
                errors.append(error)
                continue
            if _lists_something(source.listed):
                why = f"{hints.itself} installs the project itself"
                sources.append(msgspec.structs.replace(source, why=why))
                break
    left_out = {source.main.file for source in sources}
    if any(_form(file).keeps_versions for file in left_out):
        left_out.add("pyproject.toml")  # what the lock was made from
    return Choice(
        sources=tuple(sources),
        others=tuple(file for file in ordered if file not in left_out),
        errors=tuple(errors),
        notes=() if sources else tuple(notes),
    )


def _including(folder: Path, file: str, usable: Iterable[str]) -> Source | None:
    """Return the environment of conda's whose list for pip includes a file, if there is one."""
    for other in usable:
        if _form(other).read is read_environment_yml:
            with suppress(InvalidError):
                if file in (source := _read(folder, other)).listed.read_from:
                    return source
    return None


def _lists_something(listed: Listed) -> bool:
    return bool(listed.requirements or listed.constraints or listed.conda)


def _is_stub(source: Source) -> bool:
    """Return whether a file lists nothing but the project itself, as `-e .` does."""
    own = (line.where.startswith(f"{source.main.file}:") for line in source.listed.requirements)
    return source.listed.itself is not None and not any(own)


def _is_complete(source: Source) -> bool:
    """Return whether a file has what the project itself requires."""
    name = source.main.file
    is_lock = "/" not in name and _form(name).keeps_versions
    return name in forms.OWN or is_lock or source.listed.itself is not None


def _reason(file: str, ordered: Sequence[str], hints: InstallHints) -> str:
    if where := hints.files.get(file):
        return f"{where} names it"
    if hints.itself and file in forms.OWN:
        return f"{hints.itself} installs the project itself"
    return "the first of its kind" if len(ordered) > 1 else ""


# Which files, and in which order


def _candidates(
    folder: Path, files: Iterable[str], hints: InstallHints
) -> tuple[list[str], list[str]]:
    """Return the files that may list requirements, the best one first, and which of them count."""
    order = {file: number for number, file in enumerate(hints.files)}
    packages = [text.partition("[")[0].lower() for text in hints.requirements]
    ranked = []
    for file in files:
        path = PurePosixPath(file)
        form = forms.form_of(path.name)
        if not form or not (file in order or form.is_usual or _may_list(folder, file)):
            continue
        above = path.parts[:-1]
        stem = path.name.partition(".")[0]
        is_of_itself = hints.itself and file in _OF_ITSELF
        # Of several packages in one repository, the one that is installed first.
        place = next((n for n, p in enumerate(packages) if above and p.endswith(above[-1])), 999)
        is_aside = bool(_ASIDE.fullmatch(stem)) or any(map(_NEVER.fullmatch, above))
        rank = (
            is_aside,
            any(map(_LATE.fullmatch, above)),
            bool(_HARDWARE.fullmatch(stem)),
            file not in order,
            file not in order and not is_of_itself,
            len(above),
            forms.FORMS.index(form),
            order.get(file, place),
            file,
        )
        ranked.append((rank, file))
    ordered = sorted(ranked)
    return [f for _, f in ordered], [f for (aside, *_), f in ordered if not aside or f in order]


def _may_list(folder: Path, file: str) -> bool:
    """Return whether a file of an unusual name lists requirements, as its folder or content shows.

    Any YAML may be conda's; of scripts, those at the top count.
    """
    if file.endswith(".py"):
        return "/" not in file and has_list(folder, file)
    if not file.endswith((".yml", ".yaml")):
        return PurePosixPath(file).parent.name == "requirements"
    try:
        return file.count("/") < 3 and bool(_CONDA.search(read_text(folder, file, 1 << 16)))
    except InvalidError:
        return False


def _form(file: str) -> forms.Form:
    form = forms.form_of(PurePosixPath(file).name)
    assert form is not None, "it is a candidate"
    return form


def _read(folder: Path, file: str) -> Source:
    """Return a file with what it lists. Raises `InvalidError`."""
    main, optional = _entries(folder, file)
    listed = forms.read(folder, file, main.extras, main.groups)
    return Source(main=main, optional=optional, listed=listed)


def _entries(folder: Path, file: str) -> tuple[RequirementFile, RequirementFile | None]:
    """Return a file as it is listed, without and with its extras and groups, if it has any."""
    main = RequirementFile(file=file)
    path = PurePosixPath(file)
    if path.name not in {"pyproject.toml", "uv.lock"}:
        return main, None
    stated = (path.parent / "pyproject.toml").as_posix()
    try:
        tables = pyproject(read_text(folder, stated), stated)
    except InvalidError:
        return main, None
    extras = tuple(islice(_valid(tables.extras, Extra), _MOST_MENTIONED))
    groups = tuple(islice(_valid(tables.groups, Extra), _MOST_MENTIONED))
    optional = RequirementFile(file=file, extras=extras, groups=groups)
    if path.name == "pyproject.toml" and groups and not tables.project and not tables.tool.poetry:
        return optional, None  # nothing but groups
    return main, optional if extras or groups else None


# Its text


class Draft(Struct, frozen=True, kw_only=True):
    """What the file says in addition to the files that are listed."""

    is_package: bool = False
    as_of: date | None = None
    framework: types.Framework | None = None
    """Which of several frameworks the profiles bring."""
    framework_version: str | None = None
    """The release, instead of the one that files ask for; `python` likewise."""
    python: str | None = None
    python_why: str = _INSTEAD
    build: tuple[str, ...] = ()
    """Packages of which the index has the source only."""
    exclude: dict[str, str] = {}
    """Packages that cannot be had → why."""
    overrides: dict[str, tuple[str, str]] = {}
    """Packages → what is taken, whatever they require of each other, and why."""
    suggested: tuple[Suggested, ...] = ()
    system: tuple[tuple[str, str], ...] = ()
    indexes: dict[str, str] = {}
    """Channels of conda that envbuilder does not know → their URLs."""

    def definition(self, choice: Choice) -> Definition:
        """Return the project that the text with these files defines."""
        built = [
            line.name
            for line in choice.lines
            if line.source and not url_path(line.source).endswith(".whl")
        ]
        return Definition(
            requirements=tuple(line.text for line in choice.unlisted),
            requirements_from=tuple(source.main for source in choice.sources),
            install_project=self.is_package,
            build_from_source=tuple(
                _valid(dict.fromkeys((*built, *self.build)), types.Distribution)
            ),
            as_of=self.as_of,
            framework=self.framework,
            framework_version=self.framework_version,
            python=self.python,
            exclude=tuple(self.exclude),
            overrides={name: text for name, (text, _) in self.overrides.items()},
            system_packages=tuple(
                dict.fromkeys(joined(source.listed for source in choice.sources).system)
            ),
        )


def text(choice: Choice, draft: Draft) -> str:
    """Return the text of an `envbuilder.yaml` that lists files, with the rest in comments."""
    chosen = draft.definition(choice)
    parts = [_HEAD, *_requirements(choice)]
    if chosen.install_project:
        parts.append("install_project: true  # importable from any folder, with its commands\n")
    if isinstance(chosen.build_from_source, tuple) and chosen.build_from_source:
        names = _items(chosen.build_from_source)
        parts.append(f"build_from_source: {names}  # their own code runs while they are built\n")
    if chosen.as_of:
        parts.append(f"as_of: {chosen.as_of}  # the last commit's day: no later release is taken\n")
    if chosen.framework:
        parts.append(f"framework: {chosen.framework}  # others are ordinary packages\n")
    if chosen.framework_version:
        parts.append(
            f'framework_version: "{chosen.framework_version}"  # instead of what files say\n'
        )
    if chosen.python:
        parts.append(f'python: "{chosen.python}"  # {draft.python_why}\n')
    if chosen.exclude:
        why = "; ".join(dict.fromkeys(draft.exclude.values()))
        parts.append(f"exclude: {_items(chosen.exclude)}  # {why}\n")
    parts += _mappings(draft)
    if chosen.system_packages:
        parts.append(f"system_packages: {_items(chosen.system_packages)}  # in images\n")
    if draft.suggested:
        parts.append("# Suggested; uncomment what is needed:\n# requirements:\n")
    for each in draft.suggested:
        parts.append(f"#   - {scalar(each.requirement, in_flow=False)}  # {each.source}\n")
    if draft.system:
        names = _items(dict(draft.system))
        parts.append(f"# system_packages: {names}  # {draft.system[0][1]}\n")
    parts += [line for key, line in _TAIL.items() if not getattr(chosen, key)]
    return "".join(parts)


def _mappings(draft: Draft) -> Iterator[str]:
    if draft.overrides:
        yield "overrides:  # whatever packages require of each other\n"
    for name, (text, why) in draft.overrides.items():
        yield f'  {name}: "{text}"  # {why}\n'
    if draft.indexes:
        yield "indexes:  # where the list's channels are\n"
    for name, url in draft.indexes.items():
        yield f"  {name}: {url}\n"


def _requirements(choice: Choice) -> Iterator[str]:
    """Yield the lines that list files, and packages that none of them has."""
    more = choice.others[:_MOST_MENTIONED]
    if choice.unlisted:
        yield "requirements:\n"
    for line in choice.unlisted:
        yield f"  - {scalar(line.text, in_flow=False)}  # {line.where}\n"
    if not choice.sources:
        yield "" if choice.unlisted else _NO_LIST
        yield f"# requirements_from: {_items(more or ['requirements.txt'])}\n"
        return
    yield "requirements_from:\n"
    for source in choice.sources:
        yield f"  - {_entry(source.main)}\n"
        if source.optional:
            yield f"  # - {_entry(source.optional)}\n"
    for name in more:
        yield f"  # - {scalar(name, in_flow=False)}\n"


def _entry(file: RequirementFile) -> str:
    """Return a file as it is written in `requirements_from:`."""
    chosen = ""
    if file.extras:
        chosen += f", extras: {_items(file.extras)}"
    if file.groups:
        chosen += f", groups: {_items(file.groups)}"
    name = scalar(file.file, in_flow=bool(chosen))
    return f"{{file: {name}{chosen}}}" if chosen else name


def _items(values: Iterable[str]) -> str:
    """Return a list as it is written in brackets."""
    return f"[{', '.join(scalar(value, in_flow=True) for value in values)}]"


def _valid(values: Iterable[str], kind: Any) -> Iterator[str]:
    for value in values:
        try:
            yield decoding.convert(value, kind)
        except msgspec.ValidationError:
            continue
