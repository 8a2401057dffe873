"""`envbuilder init`: write a first envbuilder.yaml for a repository, and lock it.

The module is long because what it writes and reports depends on what can be locked.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date, timedelta
from functools import cache, partial
from itertools import chain, filterfalse, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec
from msgspec import Struct

from envbuilder.builds import import_check
from envbuilder.commands.options import json_option, load_settings
from envbuilder.core import console, settings, types
from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    Hint,
    HostError,
    InvalidError,
    VerifyError,
    counted,
    escaped,
    first,
    with_context,
    wrapped,
)
from envbuilder.core.files import save
from envbuilder.core.settings import DEFAULT
from envbuilder.locks import chooser, compare
from envbuilder.packages.python import indexes
from envbuilder.profiles import (
    frameworks,
    lock as profile_lock,
    profile as profile_files,
    releases,
)
from envbuilder.profiles.frameworks import FRAMEWORKS
from envbuilder.profiles.requirements import SAME, distribution, on_hardware, strangers
from envbuilder.project import code, conda, draft, forms, lines, package, repository
from envbuilder.project.names import distribution_of_module, is_popular, nearest
from envbuilder.project.setup_files import ComputedError
from envbuilder.project.variants import ProjectProfiles, ReleaseOptions, framework_of

if TYPE_CHECKING:
    from envbuilder.locks.blockers import Diagnosis
    from envbuilder.profiles.profile import Profile
    from envbuilder.project.lines import Line
    from envbuilder.project.release import Offered

    Ask = Callable[..., chooser.Chooser]
    """A function that returns a chooser for a profile. Its arguments include the packages that are
    known to have no wheels."""

_OLD = timedelta(days=548)
"""If a repository's last commit is at least this old, `init` uses the package releases of that
time."""
_PATIENCE = 45.0
"""Seconds after which `init` stops querying indexes. `lock` continues from there."""
_BUILDING = 3600.0
"""Seconds after which `init --build` stops querying indexes. The limit is higher than `_PATIENCE`
because `--build` needs the finished lock."""
_MOST_SUGGESTED = 12
_MOST_ASKED = 300
"""Maximum number of a repository's requirements that are suggested in --json or looked up on the
index. The number is limited because the repository is untrusted."""
_MOST_RELEASES = 8
"""Maximum number of framework releases to try, starting with those nearest to the requested one."""
_PYTHONS = range(8, 14)
"""Minor versions of Python 3 to try."""
_SHOWN = 3
_MANY = 6
"""If all sections together have more items than this, most sections show only one item on a
terminal. The output of --json contains all items."""
_ABSENT = "no index has them"
_STRANGERS = "the index has an unrelated package of this name"
_TOO_OLD = "the requested version is too old for Python 3.8 and later"
_CONDAS = "only conda has them"
_NEAREST = "the nearest for which all packages fit together"
_EXCLUDED = {
    _ABSENT: "no index has it, so it is excluded. Correct its name.",
    _CONDAS: "no package index has it: use --backend conda, or remove it from the list.",
    _STRANGERS: (
        f"{_STRANGERS}, so it is excluded. Name the location of the right one, as in"
        " requirements: [NAME @ git+https://HOST/REPOSITORY]"
    ),
    _TOO_OLD: f"{_TOO_OLD}, so it is excluded. Code that imports it will fail.",
}
_UNBUILT = (
    "the index only has its source, and only conda files list it. To build it with its own code"
    " in a sandbox, list it under requirements: and write build_from_source:"
)
_UNSURE = "one index fails, so it is unknown whether the package exists"


class Impossible(Struct, frozen=True):
    """A profile that cannot be combined with the project, and the reason why it cannot."""

    profile: str
    reason: str
    hint: str


class SourceFile(Struct, frozen=True, kw_only=True):
    """A file or other source of packages whose requirements are used in the new envbuilder.yaml."""

    file: str
    why: str
    requirements: tuple[str, ...]


class Report(Struct, frozen=True, kw_only=True):
    """The result of `init`: the text of the new file, and what happened to each requirement."""

    schema: int = 2
    file: str
    written: bool
    """Whether the file was written. It is not written if a non-empty file already exists."""
    text: str
    """The text of the new envbuilder.yaml."""
    taken: tuple[SourceFile, ...]
    changed: tuple[str, ...]
    dropped: tuple[str, ...]
    needs_you: tuple[str, ...]
    suggested: tuple[draft.Suggested, ...]
    others: tuple[str, ...]
    """Files that contain requirements but are not used."""
    impossible: tuple[Impossible, ...]
    locked: str = ""
    """Name of the profile for this machine if it was locked as well; otherwise empty."""
    imports: import_check.Outcome | None = None
    """With --build, the results of trying the imports in the code and of the project's
    requirements."""
    next: tuple[str, ...]
    """The commands that the user should run next."""


@click.command("init")
@click.option("--offline", is_flag=True, help="Do not use any package index.")
@click.option(
    "--build",
    "is_built",
    is_flag=True,
    help="Also build this machine's environment, and try the project's imports.",
)
@json_option
def command(offline: bool, is_built: bool, as_json: bool) -> None:
    """Write an envbuilder.yaml for the repository in this folder, and this machine's lock.

    Uses the requirements in the file that the README names, or else in the best one: {forms}; in
    subfolders if there is none at the top. Adds packages that the programs import but no list has.
    Without any list, uses packages in README, Dockerfiles, scripts, notebooks and code; otherwise
    suggests them in comments. Reports what is used, changed, dropped, and left to you. Runs no code
    of the repository. Looks names up on the package index, and lets uv find versions that fit
    together; if pins conflict, uses the nearest later versions. Never changes an existing file: the
    new one is printed, and nothing is locked. With --build, the exit code is 5 if a package that
    the project requires cannot be imported.

    \b
    Examples:
      envbuilder init
      envbuilder init --build
      envbuilder init --json
    """
    folder = Path.cwd()
    path = folder / settings.PROJECT_FILE
    until = time.monotonic() + (_BUILDING if is_built else _PATIENCE)
    with ExitStack() as stack:
        diagnosis: Diagnosis | None = None
        if not offline:
            from envbuilder.locks import blockers

            diagnosis = stack.enter_context(blockers.Diagnosis(load_settings()))
        report, failure = _report(folder, path, diagnosis, until)
        if report.written:
            save(
                path, report.text.encode(), InvalidError, "Check that you can write to the folder."
            )
            if report.taken and diagnosis and not failure:
                try:
                    with _interrupted(until):
                        report = _locked(report, diagnosis)
                    if is_built and report.locked:
                        report = _built(report)
                except TimeoutError:
                    console.progress().note(
                        "nothing is locked yet, because the package index is slow"
                    )
                except EnvbuilderError as error:
                    failure = error
    if is_built and not report.locked and not failure:
        console.progress().note("nothing was built, since nothing was locked")
    if as_json:
        console.data(report)
    else:
        _print(report)
    if failure:
        raise failure
    if report.imports and report.imports.status == "failed":
        raise VerifyError("some packages that the project requires cannot be imported")


command.help = str(command.help).format(forms=forms.supported())


@contextmanager
def _interrupted(until: float) -> Iterator[None]:
    """Interrupt the block with `TimeoutError` when the monotonic clock reaches `until`."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(until - time.monotonic(), 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _locked(report: Report, diagnosis: Diagnosis) -> Report:
    """Lock the profile that fits this machine, and return the report with that profile added.

    If no profile fits, lock nothing and return the report unchanged, because the envbuilder.yaml
    can still be used on other machines. Raise `InvalidError` if the lock has no target for this
    machine.
    """
    from envbuilder.builds import pipeline
    from envbuilder.builds.request import Request
    from envbuilder.commands.run import lock_profile

    progress = console.progress()
    own_settings = load_settings()
    try:
        build = pipeline.choose(Request(), own_settings, progress, running=False)
    except HostError as error:
        progress.note(f"nothing was locked: {error.message}")
        return report
    lock = lock_profile(build.profile.name, own_settings, progress, diagnosis)
    platform = build.host.platform
    for target in () if profile_lock.first(lock, platform) else lock.missing:
        if target.startswith(f"{platform} "):
            profile_lock.select(lock, *target.split())  # raises, with the reason
    following = report.next[1:]
    return msgspec.structs.replace(report, locked=build.profile.name, next=following)


def _built(report: Report) -> Report:
    """Build the environment locked for this machine, and try its imports.

    Return the report with the results of the imports added.
    """
    from envbuilder.builds import pipeline
    from envbuilder.builds.request import Request

    request = Request(profile=report.locked)
    planned = pipeline.prepare(request, load_settings(), console.progress(), running=True)
    outcome = import_check.tried(pipeline.finish(planned))
    return msgspec.structs.replace(report, imports=outcome)


def _report(
    folder: Path, path: Path, diagnosis: Diagnosis | None, until: float
) -> tuple[Report, EnvbuilderError | None]:
    """Read the repository, and return the report and the error of a failed index, if there is one.

    Use indexes only if `diagnosis` is given, and only until the monotonic clock reaches `until`.
    The returned error says why no index could be used to find versions that fit together.
    """
    files = tuple(repository.files(folder))
    hints = repository.install_hints(folder, files)
    choice = draft.choose(folder, files, hints)
    broken = [error for error in choice.errors if not isinstance(error, ComputedError)]
    if broken and not choice.sources:
        advice = chain.from_iterable(error.hints for error in broken)
        raise InvalidError("\n".join(e.message for e in broken), dict.fromkeys(advice))
    lists = [source.main.file for source in choice.sources]
    local_package = _package(folder)
    programs = [*hints.programs, *(local_package.programs if local_package else ())]
    imports = code.imports(folder, files, programs, lists)
    (choice, suggested, unclear), several = _completed(choice, hints, imports, local_package)
    offered = ReleaseOptions().offered
    unsure = dict[str, str]()
    own_settings = load_settings()
    ask: Ask | None = None
    if diagnosis:
        from envbuilder.locks import target_wheels

        ask = partial(chooser.Chooser, settings=own_settings, diagnosis=diagnosis)
        offered = target_wheels.Hashes(own_settings, diagnosis.read)
    facts = draft.Draft(
        is_package=local_package is not None and local_package.is_installed,
        as_of=_day(folder, choice),
        framework=several,
        exclude=dict.fromkeys(
            (line.name for line in choice.lines if line.name in strangers() and not line.source),
            _STRANGERS,
        ),
        suggested=suggested[:_MOST_SUGGESTED],
        system=tuple(hints.system.items())[:_MOST_SUGGESTED],
        indexes=_channels(choice),
    )
    folders = profile_files.search_path(folder, own_settings.config_dir)
    inputs = _Inputs(folder, folders, offered, {}, cache(forms.read), {})
    fit = _fitted(choice, facts, inputs)
    facts = fit.facts
    unbuilt: Sequence[str] = ()
    failure: EnvbuilderError | None = None
    if choice.lines and diagnosis and ask:
        try:
            with _interrupted(until):
                facts, unbuilt = _resolvable(choice, facts, inputs, ask)
            index = diagnosis.index()
            unsure = {n: problem for n, problem in index.problems.items() if not index.releases(n)}
            choice = msgspec.structs.replace(
                choice, unlisted=tuple(u for u in choice.unlisted if u.name not in unbuilt)
            )
        except TimeoutError:
            console.progress().note(
                "the package index is slow, so only a part was checked: `envbuilder lock` checks"
                " the rest"
            )
        except BuildError as error:
            failure = with_context(error, hint=Hint("To skip the index", ("init", "--offline")))
    variants = _variants(choice, facts, inputs)
    text = draft.text(choice, facts)
    settings.decoded(text, path)  # raises if it is not what every command reads
    run = _to_run(folder, files, hints, local_package)
    report = Report(
        file=str(path),
        written=not os.path.lexists(path) or (path.is_file() and not path.stat().st_size),
        text=text,
        taken=tuple(_taken(choice)),
        changed=(
            *fit.notes_of(str),
            *(f"{taken}: {reason}" for taken, reason in facts.overrides.values()),
        ),
        dropped=(
            *fit.notes_of(lines.Dropped),
            *_on_hardware(compare.left_out, variants, fit.possible),
        ),
        needs_you=(
            *dict.fromkeys(
                chain(
                    (f"{e.message}. {e.hint}".rstrip() for e in choice.errors),
                    () if choice.sources else forms.unread(folder),
                )
            ),
            *_excluded(facts.exclude),
            *fit.notes_of(lines.Needed),
            *(f"{name} cannot be locked: {reason}" for name, reason in inputs.obstacles.items()),
            *(f"{name}: {_UNBUILT} [{name}]" for name in unbuilt),
            *draft.of_extras(folder, choice, imports),
            *_on_hardware(compare.other_cuda, variants, fit.possible),
            *unclear,
            *(f"{name}: {_UNSURE} ({problem})." for name, problem in unsure.items()),
        ),
        suggested=suggested,
        others=choice.others,
        impossible=fit.impossible,
        next=tuple(Hint("", command).command_line() for command in (("lock",), run)),
    )
    return report, failure


def _to_run(
    folder: Path,
    files: Sequence[str],
    hints: repository.InstallHints,
    local_package: package.Package | None,
) -> tuple[str, ...]:
    """Return the arguments of `envbuilder` that start the repository's program or notebooks."""
    program = code.program_arguments(folder, files, hints.programs)
    commands = [*local_package.commands] if local_package else []
    if not program and commands:
        return "run", "--", commands[0]
    endings = {Path(file).suffix for file in files}
    if ".ipynb" in endings and ".py" not in endings:
        return ("jupyter",)
    return "run", "--", "python", *program


def _taken(choice: draft.Choice) -> Iterator[SourceFile]:
    """Yield the files whose requirements are used, then the places that use unlisted packages."""
    for source in choice.sources:
        lines = (*source.listed.requirements, *source.listed.conda)
        texts = tuple(line.text for line in lines)
        yield SourceFile(file=source.main.file, why=source.why, requirements=texts)
    if unlisted := tuple(line.text for line in choice.unlisted):
        places = [li.where.removeprefix(draft.IMPORTED).partition(":")[0] for li in choice.unlisted]
        names = first([*dict.fromkeys(places)], _SHOWN)
        yield SourceFile(file=names, why="no file lists them", requirements=unlisted)


def _excluded(names: Mapping[str, str]) -> Iterator[str]:
    """Yield advice about each excluded package.

    `names` maps each excluded package to the reason why it is excluded.
    """
    for name, reason in names.items():
        meant = nearest(name) if reason == _ABSENT else ""
        yield f"{name}: {_EXCLUDED[reason]}{meant and f' Is it {meant}?'}"


def _package(folder: Path) -> package.Package | None:
    """Return the repository's own package, or None if the repository is not a package."""
    try:
        return package.read(folder)
    except InvalidError:
        return None


_Completed = tuple[draft.Choice, tuple[draft.Suggested, ...], Sequence[str]]


def _completed(
    choice: draft.Choice,
    hints: repository.InstallHints,
    imports: Mapping[str, code.Use],
    itself: package.Package | None,
) -> tuple[_Completed, types.Framework | None]:
    """Return the result of `_with_unlisted`, and the main framework if there are several.

    If there are not several frameworks, the second value is None. `itself` is the repository's own
    package.
    """
    used = [*imports, *map(distribution, hints.requirements)]
    main = _main_framework(choice, used) or framework_of(settings.Definition(), choice.lines)[0]
    with_unlisted = partial(_with_unlisted, choice, hints, imports, itself=itself)
    completed = with_unlisted(main)
    several = _main_framework(completed[0], used)
    if several and several != main:  # which is an ordinary package then
        completed = with_unlisted(several)
    return completed, several


def _with_unlisted(
    choice: draft.Choice,
    hints: repository.InstallHints,
    imports: Mapping[str, code.Use],
    framework: types.Framework,
    itself: package.Package | None,
) -> _Completed:
    """Return the choice with packages added that no file lists, further suggestions, and notes.

    The added packages are those that programs need in order to start, and the companions of the
    framework. If no file lists any requirements, packages are also added from install commands in
    text files such as the README. The notes are for the user. `itself` is the repository's own
    package, which is not added.
    """
    row = FRAMEWORKS[framework]
    seen = {*draft.TOOLS, *(line.name for line in choice.lines)}
    if itself:
        seen.add(types.canonical(itself.name))
    families = (*SAME, *(framework.names for framework in FRAMEWORKS.values()))
    seen.update(*filterfalse(seen.isdisjoint, families))
    # A fork of a package, which no table knows, has its name and brings its module.
    seen.update(n.rpartition("-")[2] for n in tuple(seen) if not is_popular(n))
    taken: list[Line] = []
    suggested: list[draft.Suggested] = []
    unclear: list[str] = []
    unknown: dict[str, str] = {}

    def add(text: str, where: str, is_taken: bool) -> None:
        try:
            lines.parse(text, where)
            line, _ = lines.parse_lenient(text, where)
        except InvalidError as error:
            if seen.isdisjoint(re.split(r"[/@#=]|\.git", text.lower().replace("_", "-"))):
                unclear.append(f"{error.message}. {error.hint}")
            return
        is_limit = line.text != line.name and draft.IMPORTED in where  # pkg_resources
        is_new = is_limit or line.name not in seen or repository.BASE in where
        if line.text not in row.names and is_new:
            seen.add(line.name)
            if is_taken:
                taken.append(line)
            else:
                suggested.append(draft.Suggested(requirement=line.text, source=where))

    for text, where in hints.requirements.items():
        add(text, where, not choice.lines and repository.BASE not in where)
    for module, use in imports.items():
        if name := distribution_of_module(module):
            add(name, f"{draft.IMPORTED}{use.file}", use.at_start or name in row.companions)
        elif use.at_start and types.canonical(module) not in str(seen):
            unknown[module] = use.file
    unclear += _of_unknown(unknown, choice.others)
    choice = msgspec.structs.replace(choice, unlisted=(*choice.unlisted, *taken))
    return choice, tuple(suggested[:_MOST_ASKED]), unclear


def _of_unknown(modules: Mapping[str, str], lists: Iterable[str]) -> Iterator[str]:
    """Yield advice about imported modules whose packages are not in any of envbuilder's tables.

    `modules` maps each module to a file that imports it. `lists` contains the paths of the
    repository's requirements files. If the folder of such a file has the module's name, the advice
    is to build the module from that folder.
    """
    folders = {types.canonical(file.parent.name): file.parent for file in map(Path, lists)}
    strange = []
    for module, file in modules.items():
        name = types.canonical(module)
        if name in folders:
            yield (
                f"{file} imports {module}. To build it from this folder with its own code:"
                f" requirements: [{name} @ ./{folders[name]}], build_from_source: [{name}]"
            )
        else:
            strange.append(module)
    if strange:
        yield (
            f"imported modules whose packages are unknown: {first(strange, 8)}. The index may"
            " have unrelated packages of the same names. To add the right one: `envbuilder add"
            " NAME`"
        )


# What makes it possible to lock


class _Inputs(NamedTuple):
    """The inputs of `init`: a project, its profiles, and the available builds of frameworks."""

    folder: Path
    profiles: Sequence[Path]
    offered: Offered
    loaded: dict[str, Profile]
    """The profiles that have been loaded so far, by name."""
    read: Callable[..., lines.Listed]
    """A function that returns the requirements listed in a file. It reads each file only once."""
    obstacles: dict[str, str]
    """Profile → the reason why uv found no solution for it."""


class _Attempt(NamedTuple):
    """A candidate for the contents of envbuilder.yaml, with notes and the profiles that it fits."""

    facts: draft.Draft
    notes: tuple[str, ...] = ()
    possible: frozenset[str] = frozenset()
    impossible: tuple[Impossible, ...] = ()

    def notes_of(self, kind: type[str]) -> list[str]:
        """Return the notes of one kind, such as changes, dropped lines or open decisions."""
        return [str(note) for note in self.notes if type(note) is kind]


def _fitted(choice: draft.Choice, facts: draft.Draft, inputs: _Inputs) -> _Attempt:
    """Return the attempt that can be combined with the framework's first CPU and CUDA profiles.

    If no attempt can be combined with both profiles, return one that can be combined with as many
    as possible. Prefer the Python version and the framework release that the repository's files
    request. Otherwise, use the nearest ones.
    """
    framework, _ = framework_of(facts.definition(choice), choice.lines)
    usual = frozenset(frameworks.first_profile(framework, kind) for kind in ("cpu", "cuda"))
    best = _Attempt(facts)
    for release, python in _alternatives(choice, framework):
        changed = msgspec.structs.replace(facts, framework_version=release, python=python)
        fit = _tried(choice, changed, inputs, usual)
        best = max(best, fit, key=lambda fit: len(fit.possible))
        if fit.possible == usual:
            break
    return _tried(choice, best.facts, inputs)


def _resolvable(
    choice: draft.Choice, facts: draft.Draft, inputs: _Inputs, ask: Ask
) -> tuple[draft.Draft, Sequence[str]]:
    """Return a draft for which uv finds a solution, and the packages that need the user's consent.

    A package needs consent if it would have to be built from source and is requested only by
    conda's lists or by imports, because the package of the same name on the index may then be an
    unrelated one.
    """
    progress = console.progress()
    unasked = _not_asked_for(choice)
    ask = partial(ask, report=progress.note, unasked=unasked)
    with progress.task("find versions that fit together"):
        lines = [*choice.lines]
        for source in choice.sources:
            lines += source.listed.constraints
        pins = any(chooser.is_pin(line.text) for line in lines)
        # Pins of libraries may not fit those that CUDA's builds bring.
        kind: types.Accelerator = "cuda" if pins else _reference(_variants(choice, facts, inputs))
        facts, sources = _fitting(choice, facts, inputs, kind, ask)
        if pins:
            ask = partial(ask, sources=sources)
            facts, more = _fitting(choice, facts, inputs, "mps", ask)
            sources |= more
    unbuilt = sources & unasked
    return msgspec.structs.replace(facts, build=tuple(sorted(sources - unbuilt))), sorted(unbuilt)


def _reference(variants: ProjectProfiles) -> types.Accelerator:
    """Return the accelerator whose package versions are used for all machines.

    The result is CUDA if the project requires packages that exist only for CUDA, otherwise the CPU.
    """
    names = {line.name for line in variants.contents.requirements}
    compilers = FRAMEWORKS[variants.framework[0]].foreign("cpu")
    if names & compilers or any(on_hardware(name, "cpu") != name for name in names):
        return "cuda"
    return "cpu"


def _fitting(
    choice: draft.Choice,
    facts: draft.Draft,
    inputs: _Inputs,
    kind: types.Accelerator,
    ask: Ask,
) -> tuple[draft.Draft, frozenset[str]]:
    """Return a draft with versions that fit together on one accelerator.

    Also return the packages that must be built from source. If no versions fit together, return the
    draft with its versions unchanged.
    """
    from envbuilder.locks import entries, resolve

    variants = _variants(choice, facts, inputs)
    adapted = _to_ask(variants, kind)
    if adapted is None:
        return facts, frozenset()
    python = facts.python or adapted.python.default
    questions = ask(adapted, settled=python if kind == "mps" else "")
    # As the lock asks: its answer is at hand unless it has constraints of its own.
    own = entries.lock_of(variants.unadapted(adapted.name), inputs.profiles)
    before = resolve.preferred(own, (), adapted.platforms[0], python)
    known_sources = questions.sources
    answer = questions.answer(adapted, python, before=before)
    if isinstance(answer, chooser.Answer):
        pins = {line.name for line in choice.lines if chooser.is_pin(line.text)}
        if kind == "mps" and pins & (answer.sources - known_sources):
            # A Mac rather has the next version with a wheel than a build of an old one.
            questions = ask(adapted, settled=python)
            moved = _first_moved(choice, facts, inputs, kind, ask, questions, adapted)
            if moved and moved[1] < answer.sources:
                return moved
        return facts, answer.sources
    exclude = _absent(choice, facts, questions, answer.named)
    if kind != "mps" and not exclude:
        others = filter(frameworks.of_name, {line.name for line in choice.lines})
        old = questions.too_old({*others} - {*facts.exclude})
        exclude = dict.fromkeys(sorted(old), _TOO_OLD)
    if exclude:
        less = msgspec.structs.replace(facts, exclude=facts.exclude | exclude)
        return _fitting(choice, less, inputs, kind, ask)
    if kind != "mps":
        limits = variants.limits
        way = next(questions.alternatives(python, limits.constraints, limits.pythons), None)
        if way:
            reason = _NEAREST
            if way.wheels:
                reason = f"there are wheels of {first(way.wheels, 3)} for it"
            facts = _with_python(facts, python, way.python, reason)
            if way.release:
                facts = msgspec.structs.replace(
                    facts,
                    framework_version=way.release.text.partition("==")[2],
                    version_why=f"needed by {way.release.where}",
                )
            return facts, way.sources
    moved = _first_moved(choice, facts, inputs, kind, ask, questions, adapted)
    if moved is None:
        inputs.obstacles[adapted.name] = " ".join(answer.reason.printed().split())
    return moved or (facts, questions.sources)


def _first_moved(
    choice: draft.Choice,
    facts: draft.Draft,
    inputs: _Inputs,
    kind: types.Accelerator,
    ask: Ask,
    questions: chooser.Chooser,
    adapted: Profile,
) -> tuple[draft.Draft, frozenset[str]] | None:
    """Return the first draft from `_moved` that has a solution.

    Also return the packages that must be built from source. Return None if none of the drafts has a
    solution.
    """
    pythons = _variants(choice, facts, inputs).limits.pythons
    # Lines without a version took no part in that question.
    for candidate in _moved(choice, facts, kind, questions, adapted, pythons):
        tried = _to_ask(_variants(choice, candidate, inputs), kind)
        if tried:
            python = tried.python.default
            settled = python if kind == "mps" else ""
            later = ask(tried, sources=questions.sources, settled=settled).answer(tried, python)
            if isinstance(later, chooser.Answer):
                return candidate, later.sources
    return None


def _moved(
    choice: draft.Choice,
    facts: draft.Draft,
    kind: types.Accelerator,
    questions: chooser.Chooser,
    adapted: Profile,
    pythons: Sequence[Line],
) -> Iterator[draft.Draft]:
    """Yield drafts in which pinned packages have the nearest later versions that fit together.

    Yield nothing if no such versions exist. The solution is found with lower bounds, so it contains
    the oldest release of the framework that fits. Therefore, drafts with the profile's default
    release are yielded first.
    """
    from envbuilder.locks.blockers import replaced

    python = facts.python or adapted.python.default
    required = [line for line in choice.lines if line.name not in facts.exclude]
    if kind == "mps":
        pythons = (lines.Line(f"=={python}.*", ""),)
    reason = (
        "the nearest with wheels for Macs"
        if kind == "mps"
        else "the nearest version that fits the others"
    )
    line_of = {line.name: line for line in required}
    for answer, versions in questions.moved(python, required, pythons):
        overrides = {**facts.overrides}
        for name in sorted(versions.keys() - FRAMEWORKS[adapted.framework].names):
            line = line_of[name]
            text = replaced(line.text, versions[name].partition("+")[0], adapted.platforms[0])
            overrides[name] = (text, f"{reason}, instead of {line.text} in {line.where}")
        candidate = msgspec.structs.replace(facts, overrides=overrides)
        candidate = _with_python(candidate, python, answer.python, _NEAREST)
        yield candidate
        release = answer.release(adapted)
        if kind != "mps" and release != adapted.release:
            yield msgspec.structs.replace(candidate, framework_version=release)


def _with_python(facts: draft.Draft, before: str, python: str, reason: str) -> draft.Draft:
    """Return the draft with its Python version set to `python`, for the given reason.

    If `before`, the previous version, equals `python`, return the draft unchanged.
    """
    if python == before:
        return facts
    return msgspec.structs.replace(facts, python=python, python_why=reason)


def _to_ask(variants: ProjectProfiles, kind: types.Accelerator) -> Profile | None:
    """Return the project's variant of the first profile for an accelerator.

    The variant is allowed to build any package from source. Return None if the project and the
    profile cannot be combined.
    """
    try:
        profile = variants.unadapted(frameworks.first_profile(variants.framework[0], kind))
        adapted = variants.of(profile)
    except InvalidError:
        return None
    resolution = msgspec.structs.replace(adapted.resolution, build=True)
    return msgspec.structs.replace(adapted, resolution=resolution)


def _not_asked_for(choice: draft.Choice) -> frozenset[str]:
    """Return the packages that are required only by conda's lists or by imports."""
    lines = _condas(choice)
    places = {line.where for line in lines}
    imported = {
        line.name
        for line in choice.unlisted
        if draft.IMPORTED in line.where or draft.OF_CONDA in line.where
    }
    own = {line.name for line in choice.lines if line.where not in places}
    return (conda.distributions(lines) - own) | imported


def _condas(choice: draft.Choice) -> list[Line]:
    """Return all requirements that conda's lists contain."""
    return [*chain.from_iterable(source.listed.conda for source in choice.sources)]


def _main_framework(choice: draft.Choice, used: Sequence[str]) -> types.Framework | None:
    """Return the main framework of a project that uses several, or None if it uses at most one.

    The main framework is the first one in `used`, which contains the imported modules, the most
    frequently imported first, followed by the packages from install commands in text files. If
    `used` contains no framework, the main framework is the one with the largest number of packages.
    TensorFlow does not count if the project uses another framework, because TensorFlow is often
    used only to read data.
    """
    names = [line.name for line in choice.lines]
    used_frameworks = {f for name in names if (f := frameworks.of_name(name))}
    used_frameworks = used_frameworks or {f for name in names if (f := frameworks.of_user(name))}
    by_use = [f for name in used if (f := frameworks.of_name(name))]
    required = used_frameworks.union(by_use[:1])
    if len(required) < 2:
        return None if required <= (used_frameworks or {frameworks.DEFAULT}) else by_use[0]
    required.discard("tensorflow")
    belonging = Counter(map(frameworks.of_user, names))
    return next((name for name in by_use if name in required), None) or max(
        required, key=lambda f: (belonging[f], f)
    )


def _day(folder: Path, choice: draft.Choice) -> date | None:
    """Return the date of the last commit, or None if requirements need not be limited to that date.

    The result is a date only if the last commit is old and at least half of the requirements have
    no upper bound.
    """
    free = [*filterfalse(draft.is_bounded, choice.lines)]
    day = repository.last_commit(folder) if 2 * len(free) >= len(choice.lines) else None
    return day if day and date.today() - day > _OLD else None


def _alternatives(
    choice: draft.Choice, framework: types.Framework
) -> Iterator[tuple[str | None, str | None]]:
    """Yield pairs of a framework release and a Python version to try.

    The pairs that are nearest to the requested versions come first. In a pair, None stands for the
    version that the files request. The releases are the newest one of each series, and the oldest
    one overall.
    """
    from packaging.version import Version

    lines = chain(*(source.listed.pythons for source in choice.sources), choice.pythons)
    asked = re.search(r"[0-9]+(?:\.([0-9]+))?", " ".join(line.text for line in lines))
    pythons: list[str | None] = [None]
    if asked:
        wish = int(asked[1] or 11)
        pythons += [f"3.{minor}" for minor in sorted(_PYTHONS, key=lambda minor: abs(minor - wish))]
    texts = (line.text for line in choice.lines if frameworks.of_name(line.name) == framework)
    release = re.search(r"[0-9]+\.[0-9]+", " ".join(texts))
    every = sorted(map(Version, releases.table_of(framework)))
    versions = [str(every[0]), *dict.fromkeys(f"{v.major}.{v.minor}" for v in every)]
    # What only a companion asks for and no table has, is older.
    index = sum(Version(version) < Version(release[0]) for version in versions) if release else 0
    nearest = sorted(range(len(versions)), key=lambda number: abs(number - index))
    yield from product([None], pythons)
    yield from product(map(versions.__getitem__, nearest[:_MOST_RELEASES]), pythons[:4])


def _tried(
    choice: draft.Choice, facts: draft.Draft, inputs: _Inputs, names: Collection[str] = ()
) -> _Attempt:
    """Try to combine the project with profiles, and return the result as an attempt.

    The profiles to try are those in `names` or, if `names` is empty, all profiles.
    """
    variants = _variants(choice, facts, inputs)
    try:
        framework, _ = variants.framework
        notes = (*choice.notes, *variants.contents.notes)
    except InvalidError as error:
        return _Attempt(facts, impossible=(Impossible("any profile", error.message, error.hint),))
    impossible = []
    possible = []
    for name in names or profile_files.names(inputs.profiles):
        profile = variants.unadapted(name)
        if profile.opt_in or profile.framework != framework:
            continue
        try:
            variants.of(profile)
            possible.append(name)
        except InvalidError as error:
            impossible.append(Impossible(name, error.message, error.hint))
    return _Attempt(facts, notes, frozenset(possible), tuple(impossible))


def _variants(choice: draft.Choice, facts: draft.Draft, inputs: _Inputs) -> ProjectProfiles:
    """Return the project's variants of profiles for the envbuilder.yaml that `facts` describes."""
    definition = facts.definition(choice)
    options = ReleaseOptions(inputs.offered)
    return ProjectProfiles(
        definition,
        DEFAULT,
        inputs.folder,
        inputs.profiles,
        options,
        loaded=inputs.loaded,
        read=inputs.read,
    )


def _absent(
    choice: draft.Choice,
    facts: draft.Draft,
    questions: chooser.Chooser,
    suspected: Collection[str],
) -> dict[str, str]:
    """Return the packages that are not on any index, each mapped to the reason to exclude it.

    Return an empty mapping if all of the `suspected` packages exist, or if no package at all was
    found on an index.
    """
    asked = [li for li in choice.lines if not (li.source or lines.NOWHERE in li.text)]
    names = [line.name for line in asked[:_MOST_ASKED] if line.name not in facts.exclude]
    if not questions.absent([name for name in names if name in suspected]):
        return {}
    with console.progress().task(f"look up {counted(len(names), 'package')} on the index"):
        absent = questions.absent(names)
    condas = conda.distributions(_condas(choice))
    whys = {name: _CONDAS if name in condas else _ABSENT for name in sorted(absent)}
    return whys if absent < {*names} else {}


def _channels(choice: draft.Choice) -> dict[str, str]:
    """Return the listed conda channels that envbuilder does not know, mapped to their URLs."""
    upstreams = indexes.upstreams()
    base = upstreams["conda-forge"].url.removesuffix("conda-forge")
    channels = chain.from_iterable(source.listed.channels for source in choice.sources)
    return {name: f"{base}{name}" for name in channels if name not in upstreams}


# What is printed


def _print(report: Report) -> None:
    done = f"wrote {report.file}:"
    if not report.written:
        done = f"{report.file} already exists and was not changed. A new one would be:"
    console.result(done)
    for line in report.text.splitlines():
        if not line.lstrip().startswith("#"):
            console.result(f"  {line}")
    for taken in report.taken:
        reason = f" ({taken.why})" if taken.why else ""
        console.result(
            f"used: {counted(len(taken.requirements), 'package')} of {taken.file}{reason}"
        )
    if report.others:
        console.result(f"not used: {first(report.others, 4)}")
    parts = {
        "changed": report.changed,
        "dropped": report.dropped,
        "needs you": report.needs_you,
        "not for all hardware": _by_profile((i.profile, i.reason) for i in report.impossible),
    }
    names = [s.requirement for s in report.suggested if repository.BASE not in s.source]
    hidden = len(names[_MOST_SUGGESTED:])
    is_long = sum(map(len, parts.values())) > _MANY
    for title, items in parts.items():
        most = 1 if is_long and title != "needs you" else _SHOWN
        hidden += len(items[most:])
        _print_part(title, items[:most])
    if hidden:
        console.result(f"and {hidden} more: `envbuilder init --json`")
    if names:
        console.hints([Hint("suggested, in comments", ("add", *names[:_MOST_SUGGESTED]))])
    if report.locked:
        console.result(f"locked: {report.locked}, for this machine. Others: `envbuilder lock`")
    if report.imports:
        console.result(f"imports: {report.imports.detail}")
    console.result("Next:")
    for line in report.next:
        console.result(f"  {line}")


def _on_hardware(
    notes: Callable[[Profile, Iterable[str]], Iterator[str]],
    variants: ProjectProfiles,
    names: Iterable[str],
) -> tuple[str, ...]:
    """Return what `notes` yields for the project's requirements on each profile in `names`.

    Each note appears only once, prefixed with its profiles. Profiles that cannot be combined with
    the project are skipped.
    """
    texts = [line.text for line in variants.contents.requirements]
    pairs = []
    for name in sorted(names):
        with suppress(InvalidError):
            adapted = variants.of(variants.unadapted(name))
            pairs += [(name, words) for words in notes(adapted, texts)]
    return _by_profile(pairs)


def _by_profile(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return each note once, prefixed with the profiles to which it applies.

    `pairs` contains pairs of a profile and a note.
    """
    profiles: dict[str, list[str]] = {}
    for profile, words in pairs:
        profiles.setdefault(words, []).append(profile)
    return tuple(f"{', '.join(names)}: {words}" for words, names in profiles.items())


def _print_part(title: str, items: Sequence[str]) -> None:
    if items:
        console.result(f"{title}:")
    for item in items:
        for line in wrapped(
            escaped(item, console.LONGEST_LINE), console.width(), "  ", "    "
        ).splitlines():
            console.result(line)
