"""Draft an `envbuilder.yaml` for a repository from the repository's files.

The module is long because every choice that `init` makes for a key of `envbuilder.yaml` is made
here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from itertools import chain, filterfalse, product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from envbuilder.core import types
from envbuilder.core.errors import InvalidError, first
from envbuilder.core.settings import Definition, Extra, RequirementFile
from envbuilder.core.yaml_files import scalar
from envbuilder.profiles import frameworks
from envbuilder.project import forms
from envbuilder.project.conda import Packages, read_environment_yml
from envbuilder.project.lines import (
    NOWHERE,
    Line,
    Listed,
    Needed,
    exists,
    is_valid,
    joined,
    read_text,
    url_path,
)
from envbuilder.project.names import distribution_of_module
from envbuilder.project.requirements_txt import read_lines
from envbuilder.project.scripts import has_list
from envbuilder.project.tables import pyproject

if TYPE_CHECKING:
    from envbuilder.project.repository import InstallHints

TOOLS = frozenset({"pip", "setuptools", "wheel", "uv", "virtualenv", "conda", "poetry", "mamba"})
"""Packages that commands install only in order to install other packages."""
_MOST_MENTIONED = 5
"""Maximum number of further files that the comments mention, and of extras or groups."""
_MOST_READ = 30
"""Maximum number of files that are read to decide which of them to use."""
_CONDA = re.compile(r"^dependencies:\s*(#.*)?$", re.MULTILINE)
_LATE = re.compile(r"docker|binder|demos?|examples?|notebooks?|benchmarks?|eval(uation)?s?|tools")
_NEVER = re.compile(r"docs?|tests?|ci|submodules|third_?party|vendor|external")
"""Names of folders whose files have low priority.

Files in folders that match `_LATE` are considered last. Files in folders that match `_NEVER` are
considered only if a README names them.
"""
_OF_LISTS = re.compile(r"(requirements?|envs?|environments?|conda|dependencies|deps|configs?)")
"""Names of folders whose requirement lists may apply to the parent folder.

Lists in other folders may belong to separate programs.
"""
_OF_ITSELF = frozenset({*forms.OWN, "uv.lock"})
"""Files that contain the requirements of the package in the same folder."""
_ASIDE = re.compile(
    r"(?i)(.*[-_.])?(dev|develop|tests?|docs?|lint|style|build|ci|optional|extras?)([-_.].*)?"
)
"""Pattern of the names of lists that are not needed to run a project, such as those for tests."""
_HARDWARE = re.compile(
    r"(?i)(.*[-_.])?(cpu|gpu|cuda|cu[0-9]+|rocm|[tnx]pu|mps|mac|osx|arm64|win|windows)([-_.].*)?"
)

_HEAD = """\
# What this project needs on any hardware. The framework comes from the profile of each machine.
# To add packages: envbuilder add NAME. After other changes: envbuilder lock
"""
IMPORTED = "imported by "
"""Prefix of `Line.where` for a package that was found because a file's code imports it."""
OF_CONDA = " (conda)"
"""Suffix of `Line.where` for a package that a documented command installs with conda."""
_NO_LIST = 'requirements: []  # such as [einops, "rich>=13"]\n'
_INSTEAD = "the nearest existing release to the one in files"
_TAIL = {
    "framework": "# framework: jax  # or tensorflow; by default what the packages require, else"
    " torch\n",
    "profiles": "# profiles: [cpu, cuda]  # the hardware to support; without it, all\n",
    "python": '# python: "3.12"\n',
}
"""Keys that users often add. They appear as comments in a draft."""


class Suggested(Struct, frozen=True, kw_only=True):
    """A package that documentation or code mentions but that no list of requirements contains."""

    requirement: str
    source: str
    """The file that names the package."""


class Source(Struct, frozen=True, kw_only=True):
    """A file that lists a project's requirements."""

    main: RequirementFile
    """The entry for the file, with the extras and groups that the README or a tool installs."""
    listed: Listed = Listed()
    notes: tuple[Needed, ...] = ()
    """Notes on extras in the README, and on locks that are not used."""
    optional: RequirementFile | None = None
    """The entry for the file with all extras and groups, or None if that adds nothing to `main`."""
    why: str = ""
    """The reason why this file was chosen. Empty if there was no other file."""


class Choice(Struct, frozen=True, kw_only=True):
    """The files chosen as sources of requirements, and the candidates that were not chosen."""

    sources: tuple[Source, ...] = ()
    others: tuple[str, ...] = ()
    """Further files that the user could add to the project's list."""
    errors: tuple[InvalidError, ...] = ()
    """Errors in files that would have been chosen first if they could be read."""
    notes: tuple[str, ...] = ()
    """Notes on the README's recipe and on the chosen files.

    If no file is chosen, these are notes on empty files at the top level.
    """
    unlisted: tuple[Line, ...] = ()
    """Packages that no file lists, but that documentation installs or code imports (`IMPORTED`)."""
    pythons: tuple[Line, ...] = ()
    """The Python versions in the README's recipe. They are only shown as a hint."""

    @property
    def python(self) -> str:
        """A comment for `envbuilder.yaml` that suggests a Python version."""
        for line in self.pythons:
            return f'# python: "{line.text.lstrip("=").removesuffix(".*")}"  # {line.where}\n'
        return _TAIL["python"]

    @property
    def lines(self) -> tuple[Line, ...]:
        """The requirements in all chosen files, and the packages that no file lists."""
        return (*joined(source.listed for source in self.sources).requirements, *self.unlisted)


def choose(folder: Path, files: Sequence[str], hints: InstallHints) -> Choice:
    """Choose the files from which to read a project's requirements.

    `files` and `hints` are results of the `repository` module. If there are several files, prefer
    the file that the README names, then the best kind of file nearest to the top level. If the
    README installs the repository itself, include the repository's own requirements.
    """
    ordered, usable = _candidates(folder, files, hints)
    stating = [name for name in forms.OWN if name in ordered]
    sources = list[Source]()
    errors = list[InvalidError]()
    notes = list[str]()
    todo = usable[:_MOST_READ]
    while todo:
        file = todo.pop(0)
        if sources and not _belongs(file, sources, hints):
            continue
        try:
            source = _read(folder, file, hints)
        except InvalidError as error:
            errors.append(error)
            continue
        if _is_stub(source):
            todo = [*stating, *todo]
        elif _lists_something(source, sources):
            if not sources and file not in hints.files:
                source = _including(folder, file, usable, hints) or source
            reason = _reason(source.main.file, ordered, hints)
            sources.append(msgspec.structs.replace(source, why=reason))
        elif "/" not in file:
            notes += map(Needed, source.listed.notes)
    if not (sources or hints.files) and _has_scripts(folder, files, hints):
        return choose(folder, files, hints)
    if sources:  # the others are for a project without any list
        notes = [*chain.from_iterable(source.notes for source in sources)]
    left_out = {source.main.file for source in sources}
    if any(_form(file).keeps_versions for file in left_out):
        left_out.add("pyproject.toml")  # what the lock was made from
    readme = _of_readme(folder, hints, joined(source.listed for source in sources))
    return Choice(
        sources=tuple(sources),
        others=tuple(name for name in ordered if name not in left_out),
        errors=tuple(errors),
        notes=(*readme.notes, *notes),
        unlisted=readme.requirements,
        pythons=readme.pythons,
    )


def _has_scripts(folder: Path, files: Iterable[str], hints: InstallHints) -> bool:
    """Return whether any of the scripts contains its own list of requirements.

    The scripts that do are added to `hints.files` and `hints.recipe`.
    """
    for file in filter(partial(has_list, folder), files):
        hints.files[file] = hints.recipe[f"-r {file}"] = ""
    return bool(hints.files)


def _belongs(file: str, sources: Iterable[Source], hints: InstallHints) -> bool:
    """Return whether the README's install instructions use this file in addition to `sources`."""
    if file in forms.OWN:
        return bool(hints.itself) and not any(map(_is_complete, sources))
    path = PurePosixPath(file)
    is_aside = _ASIDE.fullmatch(path.stem) or _HARDWARE.fullmatch(path.stem)
    is_for_all = {"docker", "binder"}.isdisjoint(path.parts) and not is_aside
    return f"-r {file}" in hints.recipe and is_for_all


def _including(
    folder: Path, file: str, usable: Iterable[str], hints: InstallHints
) -> Source | None:
    """Return the conda environment file that includes this list for pip, or None if none does."""
    for other in usable:
        if _form(other).read is read_environment_yml:
            with suppress(InvalidError):
                if file in (source := _read(folder, other, hints)).listed.read_from:
                    return source
    return None


def _of_readme(folder: Path, hints: InstallHints, before: Listed) -> Listed:
    """Return the packages that the README installs and that no file describes more precisely.

    `before` contains the requirements in the chosen files.
    """
    conda = Packages()
    parts = list[Listed]()
    notes = list[str]()
    for text, where in hints.recipe.items():
        try:
            if text.startswith("conda::"):
                conda.take(text.removeprefix("conda::"), f"{where}{OF_CONDA}")
            elif not text.startswith("-r "):
                parts.append(read_lines(folder, "", [(where, text)]))
        except InvalidError as error:
            notes.append(Needed(f"{error.message}. {error.hint}"))
    known_lines = (*before.requirements, *before.constraints)
    bounded = {_family(line.name) for line in known_lines if is_bounded(line)}
    have = {line.name for line in before.requirements} | TOOLS
    builds = tuple(map("{}-".format, hints.names))  # such as thing-nightly
    lines = dict[str, Line]()
    requirements = conda.listed("README", joined(parts))
    hints.system.update(dict.fromkeys(requirements.system, "README"))
    for line in requirements.requirements:
        parts_of_itself = {line.name.rpartition("-")[2], line.name, line.name.replace("-", "_")}
        is_part = any((folder / part / "pyproject.toml").is_file() for part in parts_of_itself)
        is_part = is_part or line.name.startswith(builds)
        is_own = line.name in hints.names or (not line.source and is_part)
        # It would stand in the way of each lock. A submodule's folder is there.
        is_missing = line.source.startswith("./") and not exists(folder, line.source)
        is_new = NOWHERE not in line.text and (is_bounded(line) or line.name not in have)
        if is_new and not (is_own or is_missing) and _family(line.name) not in bounded:
            lines.setdefault(line.name, line)
    notes += requirements.notes
    return msgspec.structs.replace(
        requirements, requirements=tuple(lines.values()), notes=tuple(notes)
    )


def _written(line: Line) -> str:
    """Format a requirement, including its source, as a line of a requirements file."""
    location = f" @ {line.source}" if line.source else ""
    return re.sub(r"\A[^;]*", lambda matched: f"{matched[0]}{location}", line.text)


def _family(name: str) -> str:
    """Return the title of the framework whose version a package must match.

    If the package need not match a framework, return the name of the package itself.
    """
    return getattr(frameworks.of_build(name), "title", name)


def is_bounded(line: Line) -> bool:
    """Return whether a line sets an upper bound on the version, or specifies a direct source."""
    versions = line.text.partition(";")[0]
    return bool(line.source or re.search(r"(?<![>!])=|[<~]", versions))


def _lists_something(source: Source, sources: Iterable[Source]) -> bool:
    """Return whether a file lists enough packages that the chosen files do not list.

    At least half of its packages must be new, unless the file is one of `forms.OWN`.
    """
    requirements = source.listed
    have = {line.name for line in joined(source.listed for source in sources).requirements}
    names = {line.name for line in requirements.requirements}
    is_new = source.main.file in forms.OWN or 2 * len(names & have) <= len(names)
    return is_new and bool(names or requirements.constraints or requirements.conda)


def _is_stub(source: Source) -> bool:
    """Return whether a file lists nothing but the project itself, for example as `-e .`."""
    own = (line.where.startswith(f"{source.main.file}:") for line in source.listed.requirements)
    return source.listed.itself is not None and not any(own)


def _is_complete(source: Source) -> bool:
    """Return whether a file includes the project's own requirements."""
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
    """Return two lists: all files that may list requirements, and those that are worth reading.

    Each list is sorted with the best file first.
    """
    order = {file: number for number, file in enumerate(hints.files)}
    packages = [*hints.names]
    packages += (text.partition("[")[0].lower() for text in hints.requirements)
    ranked = []
    for file in files:
        path = PurePosixPath(file)
        form = forms.form_of(path.name)
        if not form or not (file in order or form.is_usual or _may_list(folder, file)):
            continue
        above = path.parts[:-1]
        stem = path.name.partition(".")[0]
        # Of several packages in one repository, the one that is installed first.
        depth = next((n for n, p in enumerate(packages) if above and p.endswith(above[-1])), 999)
        # Where the README names another list, such as one for each hardware, it needs more.
        is_installed = depth < 999 if above else hints.by_readme and not hints.files
        is_aside = bool(_ASIDE.fullmatch(stem)) or any(map(_NEVER.fullmatch, above))
        rank = (
            is_aside,
            any(map(_LATE.fullmatch, above)),
            bool(_HARDWARE.fullmatch(stem)),
            file not in order,
            file not in order and not (is_installed and path.name in _OF_ITSELF),
            len(above),
            forms.FORMS.index(form),
            order.get(file, depth),
            file,
        )
        ranked.append((rank, file))
    ranked.sort()
    usable = [f for (aside, *_), f in ranked if not aside or f in order]
    if any("/" not in file for file in usable):
        usable = [
            f for f in usable if f in order or all(map(_OF_LISTS.fullmatch, f.split("/")[:-1]))
        ]
    return [file for _, file in ranked], usable


def _may_list(folder: Path, file: str) -> bool:
    """Return whether a file may list requirements even though its name is unusual.

    Such a file is a top-level script with its own list, a YAML file that looks like a conda
    environment, or a file in a folder named `requirements`.
    """
    if "/" not in file and has_list(folder, file):
        return True
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


def _read(folder: Path, file: str, hints: InstallHints) -> Source:
    """Read the requirements that a file lists; raise `InvalidError` if the file is invalid."""
    main, optional = _entries(folder, file, hints)
    notes = list[str]()
    try:
        requirements = forms.read(folder, file, main.extras, main.groups)
    except InvalidError as error:
        if not main.extras:
            raise
        notes.append(f"{error.message}, which the README installs. {error.hint}")
        main = RequirementFile(file=file, groups=main.groups)
        requirements = forms.read(folder, file, (), main.groups)
    if file == "pyproject.toml":
        notes += forms.unread(folder, forms.LOCKS)
    return Source(
        main=main, optional=optional, listed=requirements, notes=tuple(map(Needed, notes))
    )


def _entries(
    folder: Path, file: str, hints: InstallHints
) -> tuple[RequirementFile, RequirementFile | None]:
    """Return two `requirements_from` entries for a file: the default one and a complete one.

    The first entry has the extras and groups that the README or the project's own tool installs.
    The second entry has all extras and groups, and is None if it would add nothing to the first.
    """
    path = PurePosixPath(file)
    names = [*hints.chosen] if file in {*forms.OWN, "uv.lock"} else []
    main = RequirementFile(file=file, extras=tuple(_valid(names, Extra)))
    if path.name not in {"pyproject.toml", "uv.lock"}:
        return main, None
    beside = (path.parent / "pyproject.toml").as_posix()
    try:
        tables = pyproject(read_text(folder, beside), beside)
    except InvalidError:
        return main, None
    extras = tuple(_valid(tables.extras, Extra))
    groups = tuple(_valid(tables.groups, Extra))
    optional = RequirementFile(file=file, extras=extras, groups=groups)
    if path.name == "pyproject.toml" and groups and not tables.project and not tables.tool.poetry:
        return optional, None  # nothing but groups
    installed = [group for group in groups if group in tables.default_groups]
    usual = [*filterfalse(_ASIDE.fullmatch, installed)]
    if not (usual or tables.is_poetry or tables.about.dependencies):
        usual = installed
    taken = tuple(g for g in groups if g in usual or "--all-groups" in names or g in names)
    others = {*groups, "--all-groups", "--all-extras"}
    chosen = [name for name in names if name not in others]
    main = RequirementFile(
        file=file, extras=extras if "--all-extras" in names else tuple(chosen), groups=taken
    )
    return main, optional if (extras or groups) and main != optional else None


def of_extras(folder: Path, choice: Choice, modules: Iterable[str]) -> Iterator[str]:
    """Yield notes on the extras and groups that provide modules imported by the code.

    Modules whose packages are already among the chosen requirements are ignored.
    """
    brought = {distribution_of_module(name) or types.canonical(name) for name in modules}
    brought -= {line.name for line in choice.lines}
    for source in choice.sources:
        main = source.main
        optional = source.optional or main
        kinds = [*product(["extra"], optional.extras), *product(["group"], optional.groups)]
        for kind, name in kinds:
            names = (*getattr(main, f"{kind}s"), name)
            more = msgspec.structs.replace(main, **{f"{kind}s": names})
            with suppress(InvalidError):
                requirements = forms.read(folder, main.file, more.extras, more.groups)
                if shared := sorted(
                    brought.intersection(li.name for li in requirements.requirements)
                ):
                    yield (
                        f"code also imports {first(shared, 8)}: {kind} `{name}` of {main.file}"
                        f" lists it. To use it: requirements_from: [{_entry(more)}]"
                    )


# Its text


class Draft(Struct, frozen=True, kw_only=True):
    """The content of an `envbuilder.yaml`, apart from the list of requirement files."""

    is_package: bool = False
    as_of: date | None = None
    framework: types.Framework | None = None
    """The framework to use if the project requires several of them."""
    framework_version: str | None = None
    version_why: str = "differs from the one in files"
    """The reason why the framework's release differs from the one in the project's files.

    The reason for the Python version is in `python_why`.
    """
    python: str | None = None
    python_why: str = _INSTEAD
    build: tuple[str, ...] = ()
    """Packages that the index offers only as source code."""
    exclude: dict[str, str] = {}
    """Reason for each excluded package, which is not available."""
    overrides: dict[str, tuple[str, str]] = {}
    """Replacement and reason for each overridden package, regardless of what requires the
    package."""
    suggested: tuple[Suggested, ...] = ()
    system: tuple[tuple[str, str], ...] = ()
    indexes: dict[str, str] = {}
    """URL of each conda channel that envbuilder does not know."""

    def definition(self, choice: Choice) -> Definition:
        """Return the project definition that results from this draft and the chosen files."""
        built = [
            line.name
            for line in choice.lines
            if line.source and not url_path(line.source).endswith(".whl")
        ]
        return Definition(
            requirements=tuple(map(_written, choice.unlisted)),
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
    """Return the content of an `envbuilder.yaml` that lists the chosen files, with comments."""
    chosen = draft.definition(choice)
    parts = [_HEAD, *_requirements(choice)]
    built = _items(chosen.build_from_source) if isinstance(chosen.build_from_source, tuple) else ""
    reasons = "; ".join(dict.fromkeys(draft.exclude.values()))
    written = {
        "install_project": "true  # importable from any folder, with its commands",
        "build_from_source": f"{built}  # their own code runs while they are built",
        "as_of": f"{chosen.as_of}  # the last commit's day: no later release is taken",
        "framework": f"{chosen.framework}  # others are ordinary packages",
        "framework_version": f'"{chosen.framework_version}"  # {draft.version_why}',
        "python": f'"{chosen.python}"  # {draft.python_why}',
        "exclude": f"{_items(chosen.exclude)}  # {reasons}",
        "system_packages": f"{_items(chosen.system_packages)}  # in images",
    }
    parts += [f"{key}: {value}\n" for key, value in written.items() if getattr(chosen, key)]
    parts += _mappings(draft)
    if draft.suggested:
        parts.append("# Suggested; uncomment what is needed:\n# requirements:\n")
    for suggestion in draft.suggested:
        parts.append(
            f"#   - {scalar(suggestion.requirement, in_flow=False)}  # {suggestion.source}\n"
        )
    if draft.system:
        names = _items(dict(draft.system))
        parts.append(f"# system_packages: {names}  # {draft.system[0][1]}\n")
    tail = {**_TAIL, "python": choice.python}
    parts += [line for key, line in tail.items() if not getattr(chosen, key)]
    return "".join(parts)


def _mappings(draft: Draft) -> Iterator[str]:
    if draft.overrides:
        yield "overrides:  # whatever packages require of each other\n"
    for name, (text, reason) in draft.overrides.items():
        yield f'  {name}: "{text}"  # {reason}\n'
    if draft.indexes:
        yield "indexes:  # where the list's channels are\n"
    for name, url in draft.indexes.items():
        yield f"  {name}: {url}\n"


def _requirements(choice: Choice) -> Iterator[str]:
    """Yield the YAML lines for the chosen files and for the packages that no file lists."""
    more = choice.others[:_MOST_MENTIONED]
    if choice.unlisted:
        yield "requirements:\n"
    for line in choice.unlisted:
        yield f"  - {scalar(_written(line), in_flow=False)}  # {line.where}\n"
    if not choice.sources:
        yield "" if choice.unlisted else _NO_LIST
        yield f"# requirements_from: {_items(more or ['requirements.txt'])}\n"
        return
    yield "requirements_from:\n"
    for source in choice.sources:
        yield f"  - {_entry(source.main)}\n"
        if source.optional:
            yield f"  # - {_entry(source.optional, _MOST_MENTIONED)}\n"
    for name in more:
        yield f"  # - {scalar(name, in_flow=False)}\n"


def _entry(file: RequirementFile, most: int | None = None) -> str:
    """Format an entry of `requirements_from:`, with at most `most` extras and `most` groups."""
    chosen = ""
    if file.extras:
        chosen += f", extras: {_items(file.extras[:most])}"
    if file.groups:
        chosen += f", groups: {_items(file.groups[:most])}"
    name = scalar(file.file, in_flow=bool(chosen))
    return f"{{file: {name}{chosen}}}" if chosen else name


def _items(values: Iterable[str]) -> str:
    """Format the values as a YAML list in brackets."""
    return f"[{', '.join(scalar(value, in_flow=True) for value in values)}]"


def _valid(values: Iterable[str], kind: Any) -> Iterator[str]:
    for value in values:
        if is_valid(value, kind):
            yield value
