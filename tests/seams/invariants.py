"""What must hold after each command, whatever came before. None knows of a single fault."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from tests.seams import hints
from tests.seams.commands import locked_versions
from tests.seams.scene import EDITING, STRANGER, Act, Scene, Trouble, normalised
from tests.seams.world import SECRET, STRANGERS

PASSING = frozenset({"run", "shell", "watch", "jupyter"})
"""Commands that return the code of the command that they run."""
PASSED = frozenset({0, 1, 3, 7, 97, 127, 126})
"""Codes that the commands of the walks themselves end with."""
CODES = {
    "check": {0, 2},
    "lock": {0, 1, 2, 4},
    "add": {0, 1, 2, 4},
    "remove": {0, 1, 2, 4},
    "sbom": {0, 2, 3, 5},
    "render": {0, 2, 3, 5},
    "clean": {0, 1, 2},
    "verify-signature": {0, 2, 5},
}
DOCUMENTED = {0, 1, 2, 3, 4, 5}
READING = frozenset({"check", "sbom", "render", "detect", "doctor", "profiles", "compare"})
_CRASH = re.compile(r"Traceback \(most recent|\bunexpected [A-Z]\w+|defect (?:of|in) envbuilder")
_UNREADABLE = re.compile(
    r"expected one line|\.json: not (?:a lock|valid)|\.\w+ +damaged$", re.MULTILINE
)
_INVALID = re.compile(
    r"envbuilder\.yaml(?::\d+)?: (?:.*: )?(?:not valid|not a requirement|unknown key|expected)"
)


def broken(scene: Scene, act: Act) -> Iterator[Trouble]:
    """Yield what must not have happened."""
    checks = (crash, code, said, json_output, foreign, consent, secrets, strangers_code, readable)
    for check in (*checks, edits, asked, told, names, time_limit):
        for message in check(scene, act):
            yield Trouble(check.__name__, _what(act), message)


def _what(act: Act) -> str:
    flags = [word for word in act.words[1:] if word.startswith("--") and len(word) > 2]
    known = {"--check", "--upgrade", "--json", "--dry-run", "--as-of"}
    return " ".join([act.command, *sorted(set(flags) & known)])


def _own_text(act: Act) -> str:
    return act.ended.err if act.command in PASSING else act.text


def crash(scene: Scene, act: Act) -> Iterator[str]:
    """No command ends with a traceback, or calls something unexpected."""
    text = _own_text(act)
    is_theirs = act.command in PASSING and "defect" not in text and "/envbuilder/" not in text
    found = None if is_theirs else _CRASH.search(text)
    if found:
        yield normalised(text[max(0, found.start() - 200) :].strip())[:400]


def code(scene: Scene, act: Act) -> Iterator[str]:
    """Each exit code is documented for its command."""
    allowed = CODES.get(act.command, DOCUMENTED)
    if act.command in PASSING:
        allowed = PASSED | {125}
    if act.stopped:
        allowed = allowed | {1, 129, 130, 137, 141, 143}
    if act.ended.code not in allowed:
        yield f"exit code {act.ended.code}: {normalised(act.ended.err)[-300:]}"


def said(scene: Scene, act: Act) -> Iterator[str]:
    """A failure says something, and its exit code agrees with what it prints."""
    passed = act.command in PASSING and act.ended.code in PASSED
    if act.ended.code and not act.stopped and not passed and not act.text.strip():
        yield f"exit code {act.ended.code} without a word"


def json_output(scene: Scene, act: Act) -> Iterator[str]:
    """What --json prints is JSON, and states its schema."""
    if "--json" not in act.words or act.stopped or "--" in act.words:
        return
    if not act.ended.out.strip():
        if act.ended.code == 0:
            yield "nothing printed"
        return
    try:
        found = json.loads(act.ended.out)
    except ValueError as error:
        yield f"no JSON: {error}"
        return
    if not isinstance(found, dict) or not isinstance(found.get("schema"), int):
        yield "no schema"


def _owned(scene: Scene, path: Path) -> bool:
    world = scene.world
    above = tuple(
        world.project / name for name in (".envbuilder", "envbuilder.lock", "profiles/locks")
    )
    below = (*above, world.home / "cache", world.home / "data", world.home / "config")
    return any(path == folder or path.is_relative_to(folder) for folder in below)


def _changed(act: Act) -> dict[str, tuple[str, str]]:
    paths = {*act.before, *act.after}
    pairs = {path: (act.before.get(path, ""), act.after.get(path, "")) for path in paths}
    return {path: pair for path, pair in sorted(pairs.items()) if pair[0] != pair[1]}


def _is_strange(path: Path, act: Act) -> bool:
    """Whether nothing asked for a new file, in a folder that was there, or for what is in it."""
    asked = path.name == "trip.tar" or any(out.is_relative_to(path) for out in act.outputs)
    return not asked and str(path.parent) in act.before


def foreign(scene: Scene, act: Act) -> Iterator[str]:
    """Files that are not ours stay byte for byte."""
    for name, (old, new) in _changed(act).items():
        path = Path(name)
        shown = normalised(name)
        if old.startswith(f"{STRANGER} "):
            yield f"another user's file is changed: {shown}"
        elif path.is_relative_to(scene.world.folder / "tmp"):
            # What is in a folder that was left is no fault of its own.
            if not act.stopped and new and path.parent == scene.world.folder / "tmp":
                yield f"left in the temporary folder: {shown}"
        elif outs := [out for out in act.outputs if path.is_relative_to(out)]:
            first = outs[0]
            if old and "folder" not in old and scene.made.get(first) != act.command:
                yield f"a file that {act.command} did not make is overwritten: {shown}"
        elif _owned(scene, path):
            reading = act.command in READING and not EDITING & {*act.words}
            if reading and path.suffix == ".json" and "lock" in path.parts[-2]:
                yield f"{act.command} changes a lock: {shown}"
        elif path.name == "envbuilder.yaml":
            if not {"--as-of", *EDITING} & {*act.words}:
                yield f"{act.command} changes envbuilder.yaml"
        elif old or _is_strange(path, act):
            yield f"{'changed' if old else 'made'}: {shown}"


def consent(scene: Scene, act: Act) -> Iterator[str]:
    """Nothing that was built is removed unless that is asked for, here without a terminal."""
    gone = [p for p, (old, new) in _changed(act).items() if old == "an environment" and not new]
    if gone and not {"--yes", "--rebuild"} & set(act.words):
        yield f"{len(gone)} environments are removed without --yes"


def edits(scene: Scene, act: Act) -> Iterator[str]:
    """A command that fails has not edited what it was to edit."""
    path = str(scene.world.project / "envbuilder.yaml")
    changed = act.before.get(path) != act.after.get(path)
    edits = act.command in EDITING and not act.stopped
    if changed and act.ended.code and edits:
        yield f"exit code {act.ended.code}, but envbuilder.yaml is changed"


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if data[:2] == b"PK":
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from map(archive.read, archive.namelist())
        except (zipfile.BadZipFile, NotImplementedError):
            return


def secrets(scene: Scene, act: Act) -> Iterator[str]:
    """No planted secret is in a line that is printed or a file that is written."""
    if SECRET in act.text:
        line = next(line for line in act.text.splitlines() if SECRET in line)
        yield f"printed: {normalised(line.replace(SECRET, '***'))[:200]}"
    for name, (_, new) in _changed(act).items():
        path = Path(name)
        if "file" not in new or path.is_relative_to(scene.world.folder / "tmp"):
            continue
        if any(SECRET.encode() in content for content in _contents(path)):
            yield f"written: {normalised(name)}"


def strangers_code(scene: Scene, act: Act) -> Iterator[str]:
    """Nothing that another user, or the working folder, holds is run."""
    for mark in sorted(scene.ran.iterdir()):
        mark.unlink()
        place, _, name = mark.name.partition("-")
        if place != "project" or act.command not in PASSING or "." not in name:
            yield f"another's {name} in {place} was run"


def readable(scene: Scene, act: Act) -> Iterator[str]:
    """What envbuilder wrote, envbuilder reads."""
    text = act.ended.err if act.command in PASSING else act.text
    found = _UNREADABLE.search(text)
    if found and not scene.locks_touched:
        yield f"its own lock: {normalised(text[max(0, found.start() - 100) :])[:300]}"
    definition = scene.world.project / "envbuilder.yaml"
    if act.command in EDITING and act.ended.code == 0 and definition.is_file():
        scene.ours = definition.read_bytes()
    ours = scene.ours is not None and definition.is_file()
    if ours and definition.read_bytes() == scene.ours and _INVALID.search(text):
        yield f"its own envbuilder.yaml: {normalised(text)[:300]}"


def _requirements(scene: Scene, environment: str) -> list[str]:
    found = scene.yaml() or {}
    own = (found.get("environments") or {}).get(environment, {}) if environment != "default" else {}
    lines: list[str] = []
    for part in (found, own or {}):
        lines += [line for line in part.get("requirements") or () if isinstance(line, str)]
        for name in part.get("requirements_from") or ():
            if isinstance(name, str) and name in scene.lists:
                lines += scene.lists[name].lines
    return lines


def _environment(target: dict[str, Any]) -> dict[str, str]:
    python = target["python"]
    system = "darwin" if target["platform"].startswith("macos") else "linux"
    machine = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}.get(target["platform"], "arm64")
    return {
        "python_version": python,
        "python_full_version": f"{python}.5",
        "sys_platform": system,
        "platform_system": "Darwin" if system == "darwin" else "Linux",
        "platform_machine": machine,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def asked(scene: Scene, act: Act) -> Iterator[str]:
    """A lock that is called fresh has what was asked for."""
    fresh = act.command in ("lock", "add", "remove", "check") and "--profile" not in act.words
    if act.ended.code or not fresh or "--output-dir" in act.words:
        return
    found = scene.yaml() or {}
    left_out = {*(found.get("exclude") or ()), *(found.get("overrides") or {})}
    day = str(found.get("as_of") or "9999")
    for name, lock in scene.locks().items():
        environment = name.split(".")[0]
        if not lock.get("targets") or environment not in _environments(found):
            continue
        if lock.get("profile") not in (found.get("profiles") or [lock.get("profile")]):
            continue  # it is needless, which `check` says, and `lock` removes it
        for target in lock["targets"]:
            where = f"{name} {target['platform']} {target['python']}"
            versions = _versions(target)
            for line in _requirements(scene, environment):
                yield from _unmet(line, versions, left_out, target, where)
            for file in target.get("files", ()):
                wheel = scene.world.index.wheels("default") / file.get("file", "-")
                if file.get("kind") == "wheel" and wheel.is_file() and _came(wheel) > day:
                    yield f"{file['name']} {file['version']} is of {_came(wheel)}, as_of: {day}"
            yield from _pythons(scene, found, environment, target, where)


def _environments(found: dict[str, Any]) -> set[str]:
    environments = found.get("environments")
    return {"default", *(environments if isinstance(environments, dict) else ())}


def _pythons(
    scene: Scene, found: dict[str, Any], environment: str, target: dict[str, Any], where: str
) -> Iterator[str]:
    wish = str(found.get("python") or "")
    own = (found.get("environments") or {}).get(environment) or {}
    for stated in (wish, str(own.get("python") or "")):
        version = re.search(r"\d+\.\d+", stated)
        if version:
            wish = version[0]
    if re.fullmatch(r"\d+\.\d+", wish) and target["python"] != wish:
        yield f"Python {target['python']}, asked for {wish}: {where}"
    from packaging.specifiers import SpecifierSet

    for name in found.get("requirements_from") or ():
        rule = scene.lists[name].requires_python if name in scene.lists else ""
        if rule and not wish and not SpecifierSet(rule).contains(f"{target['python']}.5"):
            yield f"Python {target['python']}, {name} requires {rule}: {where}"


def _versions(target: dict[str, Any]) -> dict[str, str]:
    return locked_versions({"targets": [{**target, "platform": "linux/amd64"}]})


def _came(wheel: Path) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(wheel.stat().st_mtime, datetime.UTC).date().isoformat()


def _unmet(
    line: str,
    versions: dict[str, str],
    left_out: set[str],
    target: dict[str, Any],
    where: str,
) -> Iterator[str]:
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return
    name = wanted.name.lower()
    if name in left_out or wanted.url:
        return
    if wanted.marker and not wanted.marker.evaluate(_environment(target)):
        return
    version = versions.get(name)
    if version is None:
        yield f"{line!r} is asked for, {name} is not locked: {where}"
    elif not wanted.specifier.contains(Version(version).public, prereleases=True):
        yield f"{line!r} is asked for, {name} {version} is locked: {where}"


def told(scene: Scene, act: Act) -> Iterator[str]:
    """`add` and `remove` say which other packages they move."""
    earlier = getattr(scene, "earlier_locks", {})
    if act.command in ("add", "remove") and act.ended.code == 0 and not act.stopped:
        for name, lock in scene.locks().items():
            old = _identities(earlier.get(name, {}))
            for package, identity in _identities(lock).items():
                if (
                    package in old
                    and old[package] != identity
                    and not re.search(rf"^\s+[+~-]?\s*{package} ", act.ended.out, re.MULTILINE)
                ):
                    yield normalised(f"{package} moves from {old[package]} to {identity}, unsaid")
    scene.earlier_locks = scene.locks()  # type: ignore[attr-defined]


def _identities(lock: dict[str, Any]) -> dict[str, str]:
    for target in lock.get("targets", ()):
        return {
            f["name"]: f"{f['version']} {f.get('recipe', {}).get('commit', '')}".strip()
            for f in target.get("files", ())
            if f.get("kind") == "wheel"
        }
    return {}


def names(scene: Scene, act: Act) -> Iterator[str]:
    """No stranger's package is locked that nobody asked for by name."""
    if act.command == "add":
        scene.wished |= set(act.words[1:])
    text = "".join(" ".join(listed.lines) for listed in scene.lists.values())
    written = json.dumps(scene.yaml() or {}, default=str) if scene.ours is None else ""
    changed = {Path(path).stem for path in _changed(act)}
    for name, lock in scene.locks().items():
        if name not in changed:
            continue
        for stranger in sorted(STRANGERS & set(locked_versions(lock))):
            asked_for = stranger in scene.wished and not scene.trial
            if not asked_for and stranger not in written and stranger not in text:
                yield f"a stranger's {stranger} is locked in {name}"


def time_limit(scene: Scene, act: Act) -> Iterator[str]:
    """No command of a small world takes minutes."""
    if act.ended.seconds > 120:
        yield f"takes {act.ended.seconds:.0f} s"


def suggested(scene: Scene, act: Act, known: set[str]) -> Iterator[Trouble]:
    """Each command that a message or a written file suggests works in that very state."""
    if act.stopped or scene.trial:
        return
    texts = [act.ended.err, "" if act.command in PASSING | {"init"} else act.ended.out]
    for name, (_, new) in _changed(act).items():
        if "file" in new and _small_text(Path(name)):
            texts.append(Path(name).read_text(errors="replace")[:5000])
    for hint in dict.fromkeys(h for text in texts for h in hints.found_in(text)):
        key = f"{act.command} {act.ended.code} {normalised(hint.text)}"
        if key in known or not hint.words or hint.words[1] in hints.SLOW:
            continue
        known.add(key)
        yield from _tried(scene, act, hint)


def _small_text(path: Path) -> bool:
    return (
        path.is_file()
        and path.stat().st_size < 100_000
        and path.suffix not in (".tar", ".pyc", ".py")
    )


def _tried(scene: Scene, act: Act, hint: hints.Hint) -> Iterator[Trouble]:
    world = scene.world
    with scene.tried():
        before = scene.files()
        programs = world.folder / "programs"
        programs.mkdir(exist_ok=True)
        link = programs / "envbuilder"
        if not link.is_symlink():
            link.symlink_to(world.program)
        path = {"PATH": f"{programs}:{world.variables['PATH']}"}
        ended = world.run(("sh", "-c", hint.text), variables=path)
        done = scene.note(hint.words[1:], ended, before, _redirected(scene, hint))
        # What a shell writes to a file that the hint names is as much our doing.
        for trouble in [*broken(scene, done)]:
            message = f"{hint.text}: {trouble.message}"
            yield Trouble(f"hint, {trouble.invariant}", act.command, normalised(message))
        if hints.is_usage_error(ended.code, ended.err):
            text = f"{hint.text}: {normalised(ended.err)[-200:]}"
            yield Trouble("hint, usage", act.command, normalised(text))
        reads = hint.words[1] in hints.READING or "--help" in hint.words
        if reads or "--help" in act.words or (act.ended.code == 0 and act.command != "check"):
            return
        if world.index.is_away or "there, then lock:" in act.text:
            return  # the command itself says what to wait for, or what to edit first
        if (
            hint.words[1] in ("add", "lock")
            and ended.code
            and hint not in hints.found_in(ended.out + ended.err)
        ):
            return  # it says what to change in the project first
        again = scene.envbuilder(*act.words)
        same = _last_line(again) == _last_line(act) and hint in hints.found_in(again.text)
        if again.ended.code == act.ended.code and same:
            text = f"{hint.text} ends with {ended.code}, then again: "
            yield Trouble("hint, circle", act.command, text + normalised(act.text)[-300:])


def _last_line(act: Act) -> str:
    lines = normalised(act.text).strip().splitlines()
    return lines[-1] if lines else ""


def _redirected(scene: Scene, hint: hints.Hint) -> tuple[Path, ...]:
    pairs = zip(hint.words, hint.words[1:], strict=False)
    return tuple(scene.world.project / b for a, b in pairs if a in (">", "-o", "--output"))


def remember(scene: Scene, act: Act) -> None:
    """Note what later checks need."""
    for output in act.outputs:
        if act.ended.code == 0:
            scene.made[output] = act.command
    if act.command in ("lock", "check") and "--profile" not in act.words and not scene.trial:
        if act.ended.code == 0:
            scene.keep_good()
        elif act.ended.code == 2:
            scene.refused = True
    if act.command == "init" and act.ended.code == 0 and not scene.trial:
        _take_lists(scene)


def _take_lists(scene: Scene) -> None:
    with contextlib.suppress(subprocess.SubprocessError):
        scene.refused = scene.yaml() is None
