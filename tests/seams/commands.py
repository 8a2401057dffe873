"""Steps that run commands, and those that compare what several of them say."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.seams import world as worlds
from tests.seams.edits import STEPS, step
from tests.seams.scene import EDITING, STRANGER, Act, Scene, normalised

VERSIONS = """
import importlib.metadata as m, json, os, sys
names = {d.metadata["Name"]: d.version for d in m.distributions()}
values = {}
for name in ("ops", "six", "g", "thing"):
    try:
        values[name] = getattr(__import__(name), "VALUE", None)
    except ImportError:
        values[name] = "cannot be imported"
files = [getattr(x, "__file__", None) for x in list(sys.modules.values())]
print(json.dumps({"versions": names, "values": values, "python": sys.version_info[:2],
    "prefix": sys.prefix, "path": sys.path[1:], "PATH": os.environ.get("PATH", ""),
    "files": sorted(filter(None, files))}))
"""
OUTPUTS = ("-o", "--output", "--output-dir")


@step
def command(
    scene: Scene, words: list[str], variables: dict[str, str] | None = None, cwd: str = ""
) -> None:
    """Run a command to its end."""
    folder = scene.world.path(cwd) if cwd else scene.world.project
    if folder.is_dir():
        run(scene, words, variables=variables, cwd=folder)


def run(scene: Scene, words: Sequence[str], **options: Any) -> Act:
    """Run a command; the files that it is told to write are its outputs."""
    outputs = _outputs(words, options.get("cwd") or scene.world.project)
    return scene.envbuilder(*words, outputs=outputs, **options)


def _outputs(words: Sequence[str], below: Path) -> list[Path]:
    """Return the files that a command is told to write."""
    outputs = [
        below / words[i + 1]
        for i, word in enumerate(words[:-1])
        if word in OUTPUTS and words[i + 1] != "--"
    ]
    if words and words[0] == "sign":
        outputs += [below / f"{w}.intoto.jsonl" for w in words[1:] if not w.startswith("-")]
    return outputs


@step
def interrupted(scene: Scene, words: list[str], seconds: float) -> None:
    """Kill a command; the next call must do what an undisturbed one does."""
    with scene.tried():
        run(scene, words)
        wanted = scene.acts[-1]
        locks = scene.lock_bytes()
    run(scene, words, kill_after=seconds)
    again = run(scene, words)
    if again.ended.code != wanted.ended.code:
        message = f"killed, then {again.ended.code} instead of {wanted.ended.code}: "
        scene.trouble("retry", words[0], message + normalised(again.ended.err)[-300:])
    elif scene.lock_bytes() != locks:
        scene.trouble("retry", words[0], "killed, then other locks than without")


@step
def stopped(scene: Scene, words: list[str], number: int, seconds: float) -> None:
    """Send SIGINT or SIGTERM; the command must end within seconds, and leave nothing half-made."""
    before = scene.files()
    world = scene.world
    argv = (str(world.program), *words)
    child = subprocess.Popen(
        argv,
        cwd=world.project,
        env=world.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    timer = threading.Timer(seconds, child.send_signal, (number,))
    timer.start()
    began = time.monotonic()
    try:
        out, err = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        scene.trouble("signal", words[0], f"signal {number} does not end it")
    timer.cancel()
    ended = worlds.Ended(
        argv=argv,
        code=child.returncode if child.returncode >= 0 else 128 - child.returncode,
        out=out.decode(errors="replace"),
        err=err.decode(errors="replace"),
        seconds=time.monotonic() - began,
    )
    world.history.append(f"timeout -s {number} {seconds} envbuilder {' '.join(words)}")
    if ended.seconds > seconds + 10:
        scene.trouble("signal", words[0], f"ended {ended.seconds:.0f} s after signal {number}")
    scene.note(words, ended, before, _outputs(words, world.project), stopped=True)


@step
def together(scene: Scene, first: list[str], second: list[str]) -> None:
    """Run two commands at once; each must end as it would after the other."""
    alone = []
    for words in (first, second):
        with scene.tried():
            alone.append(run(scene, words).ended.code)
    before = scene.files()
    ended: dict[int, worlds.Ended] = {}

    def start(position: int, words: Sequence[str]) -> None:
        ended[position] = scene.world.envbuilder(*words)

    threads = [threading.Thread(target=start, args=a) for a in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    scene.world.history[-2:] = [f"{' & '.join(scene.world.history[-2:])} & wait"]
    allowed = {"--yes", "--rebuild", *EDITING} & {*first, *second}
    places = [*_outputs(first, scene.world.project), *_outputs(second, scene.world.project)]
    for position, words in enumerate((first, second)):
        # The other may write its lock last; the next command then finds that it is stale.
        editing = words[0] in EDITING
        scene.note((*words, *allowed), ended[position], before, places, stopped=editing)
    for position, words in enumerate((first, second)):
        # `clean` may take what the other is about to use; the other then says so.
        code = ended[position].code
        if code != alone[position] and "clean" not in (first[0], second[0]):
            text = f"alone {alone[position]}, beside {(first, second)[1 - position][0]} "
            text += f"{code}: {normalised(ended[position].err)[-300:]}"
            scene.trouble("together", words[0], text)


@step
def full_disk(scene: Scene, words: list[str], place: str, kilobytes: int) -> None:
    """Run a command while a folder has no room; then again with room."""
    folder = {
        "data": scene.world.home / "data",
        "cache": scene.world.home / "cache",
        "tmp": scene.world.folder / "tmp",
        "locks": scene.world.project / "envbuilder.lock",
    }[place]
    folder.mkdir(parents=True, exist_ok=True)
    with scene.tried():
        wanted = run(scene, words).ended.code
    aside = scene.world.folder / "aside"
    shutil.copytree(folder, aside, symlinks=True)
    # A tmpfs holds whole pages of 4 KiB.
    used = sum(-(-p.lstat().st_size // 4096) * 4 for p in aside.rglob("*") if p.is_file())
    size = f"size={used + kilobytes}k"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        shutil.rmtree(aside)
        return
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=False)
        scene.world.history.append(f"mount -t tmpfs -o {size} none {folder}")
        run(scene, words, stopped=True)
        shutil.rmtree(aside)
        shutil.copytree(folder, aside, symlinks=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
    shutil.rmtree(folder)
    aside.rename(folder)
    scene.world.history.append(f"umount {folder}")
    again = run(scene, words)
    if again.ended.code != wanted:
        text = f"after a full disk {again.ended.code} instead of {wanted}: "
        scene.trouble("retry", words[0], text + normalised(again.ended.err)[-300:])


def locked_versions(lock: dict[str, Any], python: str = "") -> dict[str, str]:
    """Return the wheels of a lock for this machine: name → version."""
    for target in lock.get("targets", ()):
        if target.get("platform") == "linux/amd64" and python in ("", target.get("python")):
            files = (f for f in target.get("files", ()) if f.get("kind") == "wheel")
            return {_name(f["name"]): f["version"] for f in files}
    return {}


def _asking(scene: Scene) -> Path:
    """Return a program that prints what it finds where it runs."""
    path = scene.world.folder / "ask.py"
    path.write_text(VERSIONS)
    return path


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@step
def inside(
    scene: Scene, environment: str = "", options: list[str] | None = None, by: str = "run"
) -> None:
    """Ask inside an environment what runs there."""
    environment = _named(scene, environment)
    words = [
        "run",
        *(("--environment", environment) if environment not in ("", "default") else ()),
        *(options or []),
    ]
    act = run(scene, [*words, "--", "python", str(_asking(scene))])
    if act.ended.code:
        return
    lines = [line for line in act.ended.out.splitlines() if line.startswith('{"versions"')]
    if not lines:
        scene.trouble("inside", by, "what the command printed does not come out")
        return
    found = json.loads(lines[-1])
    is_project = scene.yaml() is not None
    name = f"{environment or 'default'}.{_profile(scene)}"
    lock = scene.locks().get(name) if is_project else None
    python = ".".join(map(str, found["python"]))
    for message in (
        *_other_versions(lock, found["versions"], python),
        *_other_values(scene, lock, found["values"]),
        *_other_places(scene, found),
    ):
        scene.trouble("inside", by, message)
    asked = re.search(r"\d+\.\d+", str((scene.yaml() or {}).get("python") or ""))
    if asked and environment in ("", "default") and asked[0] != python:
        scene.trouble("inside", "run", f"Python {python}, asked for {asked[0]}")


def _other_versions(
    lock: dict[str, Any] | None, versions: dict[str, str], python: str
) -> Iterator[str]:
    ignored = {"thing", "pip"}
    got = {_name(n): v for n, v in versions.items() if _name(n) not in ignored}
    wanted = {n: v for n, v in locked_versions(lock or {}, python).items() if n not in ignored}
    if lock and got != wanted:
        differs = sorted(set(got.items()) ^ set(wanted.items()))
        yield f"runs other versions than the lock has: {differs[:6]}"


def _other_values(
    scene: Scene, lock: dict[str, Any] | None, values: dict[str, str | None]
) -> Iterator[str]:
    for name, value in values.items():
        wanted = scene.values.get(name)
        if wanted and value not in (wanted, None) and name != "thing" and _is_local(lock, name):
            yield f"{name}: runs {value!r}, not what the project has"
    is_installed = (scene.yaml() or {}).get("install_project") is True
    if is_installed and values["thing"] != scene.values.get("thing", values["thing"]):
        yield f"own package: {values['thing']!r}"


def _other_places(scene: Scene, found: dict[str, Any]) -> Iterator[str]:
    usual = scene.world.variables["PATH"].split(":")
    for entry in (*found["path"], *found["PATH"].split(":")):
        if not entry.startswith("/") and entry not in usual:
            yield f"looks for programs in {entry!r}, the working folder"
    for entry in {*found["path"], *(str(Path(f).parent) for f in found["files"])}:
        for folder in (Path(entry), *Path(entry).parents):
            if folder.exists() and folder.stat().st_uid == STRANGER:
                yield f"code from another user's {normalised(str(folder))}"


def _is_local(lock: dict[str, Any] | None, name: str) -> bool:
    recipes = [
        f.get("recipe", {}).get("kind")
        for target in (lock or {}).get("targets", ())
        for f in target.get("files", ())
        if _name(f.get("name", "")) == name
    ]
    return "path" in recipes or name == "thing"


def _profile(scene: Scene) -> str:
    profiles = (scene.yaml() or {}).get("profiles")
    return profiles[0] if isinstance(profiles, list) and profiles else "cpu"


@step
def agree(scene: Scene, profile: str = "cpu", environment: str = "default") -> None:
    """Ask several commands one thing: each must say the same."""
    environment = _named(scene, environment)
    chosen = ["--profile", profile, "--environment", environment]
    check = run(scene, ["check", "--json"])
    plan = run(scene, ["build", *chosen, "--backend", "venv", "--dry-run"])
    sbom = run(scene, ["sbom", *chosen])
    render = run(scene, ["render", *chosen, "--target", "requirements"])
    pylock = run(scene, ["render", *chosen, "--target", "pylock"])
    state = _state(check, environment, profile)
    acts = {"build": plan, "sbom": sbom, "render": render, "pylock": pylock}
    codes = {name: act.ended.code for name, act in acts.items()}
    text = normalised("".join(act.ended.err for act in acts.values()))[-600:]
    if "is not used" in text:
        return  # another user's folder is in the way
    # 3: the profile is for other hardware, whatever its lock is.
    failed = any(code not in (0, 3) for code in codes.values())
    if failed and 0 in codes.values():
        scene.trouble("agree", "build", f"{codes}, one lock: {text}")
    if state is not None and not state and plan.ended.code in (1, 2):
        scene.trouble("agree", "check", f"check: fresh, build {plan.ended.code}: {text}")
    if state and plan.ended.code == 0:
        scene.trouble(
            "agree", "check", f"check: not fresh, build 0: {normalised(check.text)[-400:]}"
        )
    if any(codes.values()):
        return
    lock = scene.locks().get(f"{environment}.{profile}")
    python = json.loads(plan.ended.out)["python"]
    said = {
        "lock": locked_versions(lock or {}, python) if lock else None,
        "build": _wheels(json.loads(plan.ended.out)["files"]),
        "sbom": _purls(sbom.ended.out),
        "render": dict(re.findall(r"^([\w.-]+)==(\S+)", render.ended.out, re.MULTILINE)),
        "pylock": dict(
            re.findall(r'^name = "(.*)"\nversion = "(.*)"', pylock.ended.out, re.MULTILINE)
        ),
    }
    by_name = {who: {_name(n): v for n, v in say.items()} for who, say in said.items() if say}
    for who, say in by_name.items():
        if say != by_name["build"]:
            differs = sorted(set(say.items()) ^ set(by_name["build"].items()))
            scene.trouble("agree", who, f"build and {who} name other versions: {differs[:6]}")


def _wheels(files: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {f["name"]: f["version"] for f in files if f["kind"] == "wheel"}


def _purls(text: str) -> dict[str, str]:
    parts = [p for p in json.loads(text).get("components", ()) if p["name"] != "uv"]
    return {p["name"]: p["version"] for p in parts if p.get("purl", "").startswith("pkg:pypi")}


def _named(scene: Scene, environment: str) -> str:
    """Return the environment that is meant; "another" is the last of the project."""
    names = (scene.yaml() or {}).get("environments")
    if environment == "another":
        return list(names)[-1] if isinstance(names, dict) and names else "default"
    return environment


def _state(check: Act, environment: str, profile: str) -> bool | None:
    """Return whether `check` found a fault in this lock; None if it does not say."""
    try:
        locks = json.loads(check.ended.out)["locks"]
    except (ValueError, KeyError, TypeError):
        return None
    for lock in locks:
        if (lock.get("environment"), lock.get("profile")) == (environment, profile):
            return bool(lock["failed"])
    return None


def _fresh(scene: Scene) -> bool:
    """Lock the project; return whether `check` then finds nothing."""
    return run(scene, ["lock"]).ended.code == 0 and run(scene, ["check"]).ended.code == 0


@step
def works(scene: Scene, words: list[str]) -> None:
    """Where `check` says all is well, what it is about must build and run."""
    if not _fresh(scene):
        return
    chosen = ["--profile", _profile(scene), "--backend", "venv"]
    built = run(scene, ["build", *chosen])
    act = run(scene, [*words, *chosen, "--", "python", "-c", "raise SystemExit(7)"])
    if built.ended.code == 2 and "is not used" not in built.ended.err:
        scene.trouble("works", "check", f"check 0, build 2: {normalised(built.ended.err)[-300:]}")
    if built.ended.code == 0 and act.ended.code != 7:
        text = f"check 0, build 0, {words[0]} {act.ended.code}: "
        scene.trouble("works", words[0], text + normalised(act.ended.err)[-300:])
    if built.ended.code and act.ended.code not in (7, 125):
        text = f"build {built.ended.code}, {words[0]} {act.ended.code}: "
        scene.trouble("works", words[0], text + normalised(act.ended.err)[-300:])


@step
def shared(scene: Scene, how: str) -> None:
    """Do what reaches environments by what they share; a build must make the lock's own again.

    `how`: an edit and back, as a branch is switched; a second project with the same lock, which is
    cleaned; or what happens to the files.
    """
    build = ["build", "--profile", _profile(scene), "--backend", "venv"]
    if not _fresh(scene) or run(scene, build).ended.code:
        return
    world = scene.world
    current = (world.project / ".envbuilder/default").resolve()
    if not current.is_dir():
        return  # another user's folder is in the way
    modules = _modules(current)
    world.history.append(f"# {current}: {how}")
    if how == "twin":
        twin = world.home / "twin"
        shutil.copytree(world.project, twin, symlinks=True)
        for words in (build, ["clean", "--yes"]):
            world.envbuilder(*words, cwd=twin)
        shutil.rmtree(twin)
    elif how.startswith(EDITS):
        files = (world.path("envbuilder.yaml"), *world.path("envbuilder.lock").glob("*.json"))
        contents = {path: path.read_bytes() for path in files}
        run(scene, how.split())
        run(scene, build)
        for path, content in contents.items():
            path.write_bytes(content)
    for path in modules if "changed" in how else ():
        path.chmod(0o644)
        with path.open("r+b") as file:  # in place: the name of each environment that shares it
            file.write(b"raise ")
    if "unshared" in how:
        shutil.rmtree(world.home / "data/unpacked", ignore_errors=True)
    if "removed" in how:
        shutil.rmtree(current)
    ended = run(scene, build).ended
    differing = sorted({*modules.items()} ^ {*_modules(current).items()})
    if ended.code or differing:
        what = [normalised(str(path)) for path, _ in differing[:3]]
        text = f"{how}, then build {ended.code}: {what} {normalised(ended.err)[-300:]}"
        scene.trouble("shared", "build", text)


EDITS = ("add ", "remove ")


def _modules(environment: Path) -> dict[Path, bytes]:
    found = environment.glob("lib/python*/site-packages/*/__init__.py")
    return {path: path.read_bytes() for path in found}


@step
def settled(scene: Scene, words: list[str]) -> None:
    """`lock`, then `check`: both must say the same; a second `lock` must change nothing."""
    locked = run(scene, ["lock", *words])
    locks = scene.lock_bytes()
    check = run(scene, ["check"])
    said = normalised(check.text + locked.ended.err)[-500:]
    # Only `lock` learns what a user's uv.toml allows.
    uv_toml = scene.world.home / ".config/uv/uv.toml"
    if (locked.ended.code, check.ended.code) == (2, 0) and not uv_toml.exists():
        scene.trouble("settled", "check", f"lock 2, then check 0: {said}")
    if locked.ended.code:
        return
    if check.ended.code:
        scene.trouble("settled", "check", f"lock 0, then check {check.ended.code}: {said}")
    run(scene, ["lock"])
    if scene.lock_bytes() != locks:
        scene.trouble("settled", "lock", "a second lock writes other bytes")


@step
def decides(scene: Scene, name: str, arguments: dict[str, Any]) -> None:
    """What decides has changed: `check` must say so."""
    if not _fresh(scene):
        return
    STEPS[name](scene, **arguments)
    if scene.world.index.is_away or not scene.repository.folder.exists():
        return
    if run(scene, ["check"]).ended.code:
        return
    before = _decisions(scene)
    with scene.tried():
        act = run(scene, ["lock"])
        after = _decisions(scene)
    said = f"check 0 after {name} {arguments.get('key', arguments.get('form', ''))}, "
    if act.ended.code:
        said += f"lock {act.ended.code}: {normalised(act.text)[-300:]}"
        scene.trouble("decides", "check", said)
    elif before != after:
        differs = sorted(map(str, before ^ after))
        scene.trouble("decides", "check", f"{said}lock moves {differs[:4]}")


def _decisions(scene: Scene) -> set[tuple[str, ...]]:
    """Return what the locks have decided."""
    return {
        (name, target["platform"], target["python"], file["name"], file["version"], file["sha256"])
        for name, lock in scene.locks().items()
        for target in lock.get("targets", ())
        for file in target.get("files", ())
        if file["kind"] == "wheel"
    }


@step
def history_does_not_matter(scene: Scene) -> None:
    """`lock --upgrade` here, and in the same project without any past, must be the same."""
    here = run(scene, ["lock", "--upgrade"])
    locks = scene.lock_bytes()
    with scene.tried():
        for folder in (scene.world.home / "cache", scene.world.home / "data"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(scene.world.project / "envbuilder.lock", ignore_errors=True)
        there = run(scene, ["lock", "--upgrade"])
        fresh = scene.lock_bytes()
    if here.ended.code != there.ended.code:
        text = f"lock --upgrade {here.ended.code}, without a past {there.ended.code}: "
        said = normalised(here.ended.err)[-300:] + " | " + normalised(there.ended.err)[-300:]
        scene.trouble("history", "lock", text + said)
    elif here.ended.code == 0 and locks != fresh:
        scene.trouble("history", "lock", "lock --upgrade gives other bytes than without a past")


@step
def clone(scene: Scene) -> None:
    """In a clone, `check` must say what it says here."""
    here = run(scene, ["check"])
    files = scene.world.run(("git", "init", "-q")) and scene.world.run(
        ("git", "ls-files", "-co", "--exclude-standard", "-z")
    )
    with scene.tried():
        there = scene.world.home / "a clone"
        for name in filter(None, files.out.split("\0")):
            source = scene.world.project / name
            if source.is_file() and not name.startswith(".envbuilder/"):
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, there / name)
        there.mkdir(exist_ok=True)
        act = run(scene, ["check"], cwd=there)
    if here.ended.code != act.ended.code:
        text = f"check {here.ended.code}, in a clone {act.ended.code}: "
        said = normalised(here.text)[-300:] + " | " + normalised(act.text)[-300:]
        scene.trouble("clone", "check", text + said)


@step
def upgrade_one(scene: Scene, name: str) -> None:
    """`--upgrade-package` moves what `--upgrade` would move, or names it."""
    with scene.tried():
        if run(scene, ["lock", "--upgrade"]).ended.code:
            return
        wanted = {file: locked_versions(lock).get(name) for file, lock in scene.locks().items()}
    before = {file: locked_versions(lock).get(name) for file, lock in scene.locks().items()}
    act = run(scene, ["lock", "--upgrade-package", name])
    after = {file: locked_versions(lock).get(name) for file, lock in scene.locks().items()}
    if act.ended.code == 0 and before and after == before != wanted and name not in act.ended.out:
        text = "0 and silent, though --upgrade moves the package"
        scene.trouble("upgrade", "lock --upgrade-package", text)


@step
def bundle_trip(scene: Scene, options: list[str]) -> None:
    """Bundle, and run offline in empty folders of another machine, in a clone."""
    if not _fresh(scene):
        return
    path = scene.world.project / "trip.tar"
    path.unlink(missing_ok=True)
    if run(scene, ["bundle", "--profile", "cpu", "-o", "trip.tar", *options]).ended.code:
        path.unlink(missing_ok=True)
        return
    with scene.tried():
        for folder in (scene.world.home / "cache", scene.world.home / "data"):
            shutil.rmtree(folder, ignore_errors=True)
        away = scene.world.index.is_away
        scene.world.index.is_away = True
        try:
            _arrive(scene, path)
        finally:
            scene.world.index.is_away = away
    path.unlink(missing_ok=True)


def _arrive(scene: Scene, path: Path) -> None:
    act = run(scene, ["unbundle", path.name])
    if act.ended.code:
        text = f"unbundle {act.ended.code}: {normalised(act.ended.err)[-400:]}"
        scene.trouble("bundle", "unbundle", text)
        return
    done = run(
        scene,
        ["run", "--profile", "cpu", "--backend", "venv", "--", "python", str(_asking(scene))],
        variables={"PIP_NO_INDEX": "1"},
    )
    # A bundle brings a Python only where it is `managed`; not every machine has 3.12.
    if done.ended.code and not re.search("cpython-|is not used", done.ended.err):
        text = f"offline {done.ended.code}: {normalised(done.ended.err)}"
        scene.trouble("bundle", "run", text)


def _plain_uv(scene: Scene) -> Path:
    """Return uv, from the index's wheel."""
    path = scene.world.folder / "uv"
    if not path.exists():
        wheel = next(scene.world.index.wheels("default").glob("uv-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith("scripts/uv"))
            path.write_bytes(archive.read(name))
        path.chmod(0o755)
    return path


@step
def rendered(scene: Scene) -> None:
    """Install what `render` printed with plain uv: the lock's versions must come."""
    act = run(scene, ["render", "--profile", "cpu", "--target", "requirements"])
    lock = scene.locks().get("default.cpu")
    withdrawn = "leaves the index" in str(scene.world.history)
    is_printed = act.ended.code == 0 and "# Made from" not in act.ended.out
    if not is_printed or withdrawn or not (lock and lock["targets"]):
        return
    target = scene.world.folder / "plain"
    shutil.rmtree(target, ignore_errors=True)
    (scene.world.folder / "plain.txt").write_text(act.ended.out)
    torch = scene.world.index.page_url("torch")
    done = scene.world.run(
        (
            str(_plain_uv(scene)),
            "pip",
            "install",
            "--no-config",
            "--require-hashes",
            "--no-deps",
            "--target",
            str(target),
            "--python-version",
            lock["targets"][0]["python"],
            "--python-platform",
            "linux",
            "--index-strategy",
            "unsafe-best-match",
            "--extra-index-url",
            torch,
            "-r",
            str(scene.world.folder / "plain.txt"),
        ),
        variables={"UV_CACHE_DIR": str(scene.world.folder / "plain-cache")},
    )
    if done.code and "No solution" in done.err:
        scene.trouble("rendered", "render", f"plain uv: {normalised(done.err)[-300:]}")
    found = {
        _name(p.name.split("-")[0]): p.name.split("-")[1].removesuffix(".dist")
        for p in target.glob("*.dist-info")
    }
    wanted = locked_versions(lock, lock["targets"][0]["python"])
    if done.code == 0 and found != wanted:
        differs = sorted(set(found.items()) ^ set(wanted.items()))
        scene.trouble("rendered", "render", f"plain uv installs {differs[:6]}")
