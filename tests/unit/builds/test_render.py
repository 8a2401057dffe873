"""Whatever passes validation is data in every rendered file, and nothing of a lock is lost there.

Profiles and locks are made at random from the patterns of `core.types`, read through the same door
as files are, and rendered; the results are read with the parsers of those who will use them.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from msgspec.structs import replace
from packaging.requirements import Requirement

from envbuilder.builds import render
from envbuilder.core import resources, types
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Configuration, Environment, Settings
from envbuilder.packages.python.indexes import override
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.lock import File, Lock, LockedBase, Recipe, Target
from tests.support import make_wheels
from tests.support.random_locks import (
    COMMON,
    CPU,
    LINUX,
    PYTHON,
    cases,
    rendered,
    urls,
    used,
    wheel,
)
from tests.support.shipped import shipped_lock
from tests.support.tools import tools

KEYWORDS = {"ARG", "FROM", "ADD", "RUN", "COPY", "ENV", "LABEL", "USER", "WORKDIR", "ENTRYPOINT"}


# ---- the Dockerfile


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Keyword and rest of each instruction; a heredoc's lines are of the kind `heredoc`."""
    lines = iter(dockerfile.split("\n"))
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        whole = line
        while whole.endswith("\\"):
            whole = whole[:-1] + next(lines)
        keyword, _, rest = whole.partition(" ")
        yield keyword, rest
        if "<<EOF" in rest or "<<'EOF'" in rest:
            for inner in lines:
                if inner == "EOF":
                    break
                yield "heredoc", inner


def tokens(rest: str) -> list[str]:
    """The words that a shell sees; nothing may be left for it to expand or to run."""
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


# The only lines of the template that a shell runs, as the shipped profile has them.
def commands(dockerfile: str) -> list[str]:
    found = [rest for keyword, rest in instructions(dockerfile) if keyword == "RUN"]
    return [re.sub(r' +--extra-index-url "\$\{[A-Z0-9_]+_INDEX\}" ', " ", r) for r in found]


@given(cases(LINUX))
@COMMON
def test_data_in_a_dockerfile_is_words_and_no_instruction(
    case: tuple[profiles.Profile, Lock],
) -> None:
    profile, lock = case
    dockerfile = rendered(case, "dockerfile")["Dockerfile"]
    made = list(instructions(dockerfile))
    check_instructions(profile, lock, dockerfile, made)
    check_words(profile, lock, made)
    check_packages(lock, made)


Instructions = list[tuple[str, str]]


def check_instructions(
    profile: profiles.Profile, lock: Lock, dockerfile: str, made: Instructions
) -> None:
    """No data becomes an instruction."""
    found = used(lock)
    assert {k for k, _ in made} <= {*KEYWORDS, "CMD", "heredoc"}
    debs = [f for t in found for f in t.of_kind("deb")]
    assert sum(k == "ADD" for k, _ in made) == len(debs)
    assert sum(k == "FROM" for k, _ in made) == (3 + 1 + len(found) if debs else 3)
    for keyword in ("ENV", "LABEL", "USER", "WORKDIR", "ENTRYPOINT", "CMD"):
        assert sum(k == keyword for k, _ in made) == 1, keyword
    # What a shell runs is the template's, whatever the data.
    plain = replace(CPU, indexes={}, warnings=())
    target = replace(
        found[0], files=tuple(f for t in found for f in t.files if f.kind == "deb")[:1]
    )
    base = replace(lock, targets=(target,))
    assert commands(dockerfile) == commands(rendered((plain, base), "dockerfile")["Dockerfile"])
    assert profile.indexes == {} or dockerfile.count("--extra-index-url") == 1


def check_words(profile: profiles.Profile, lock: Lock, made: Instructions) -> None:
    """There is nothing to expand."""
    base = used(lock)[0].base
    (given_base,) = [r for k, r in made if k == "ARG" and r.startswith("BASE_IMAGE=")]
    assert tokens(given_base) == [
        f"BASE_IMAGE={base.ref}" + (f"@{base.digest}" if base.digest else "")
    ]
    for keyword, rest in made:
        if keyword == "ARG":
            assert len(tokens(rest)) == 1
            assert "$" not in rest
        elif keyword == "heredoc" and rest:
            name, *options = tokens(rest)
            Requirement(name)
            assert options
            for o in options:
                assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", o)
        elif keyword == "ADD":
            checksum, url, folder = rest.split()
            assert re.fullmatch(r"--checksum=sha256:[0-9a-f]{64}", checksum)
            assert folder == "/debs/"
            variable, _, path = url.partition("}/")
            assert re.fullmatch(r"\$\{[A-Z0-9_]+_MIRROR", variable)
            assert re.fullmatch(r"[A-Za-z0-9._+~%:/-]+", path)
            assert ".." not in path
    (environment,) = [rest for keyword, rest in made if keyword == "ENV"]
    assert [t.partition("=")[::2] for t in shlex.split(environment)] == [
        ("PATH", "/opt/env/bin:$PATH"),
        ("VIRTUAL_ENV", "/opt/env"),
        *sorted(profile.environment.items()),
        *([("LD_PRELOAD", ":".join(profile.preload))] if profile.preload else []),
    ]
    assert environment.count("$") == 1
    (label,) = [rest for keyword, rest in made if keyword == "LABEL"]
    assert tokens(label) == [f"io.envbuilder.profile={profile.name}"]


def check_packages(lock: Lock, made: Instructions) -> None:
    """Every one is added once, for its platform."""
    stages: dict[str, list[tuple[str, str]]] = {}
    stage = ""
    for keyword, rest in made:
        if keyword == "FROM":
            stage = rest
        if keyword == "ADD":
            checksum, url, _ = rest.split()
            place = (checksum.rpartition(":")[2], url.partition("}/")[2])
            stages.setdefault(stage, []).append(place)
    expected = {
        f"scratch AS debs-{t.platform.rpartition('/')[2]}": [
            (f.sha256, f.file) for f in t.of_kind("deb")
        ]
        for t in used(lock)
        if t.of_kind("deb")
    }
    assert stages == expected


BASE = LockedBase(ref="b:1", digest=None, date=None, python_path="/p", python_version="3.11.2")

DEB = File(
    kind="deb", name="libx", version="1", file="pool/x.deb", sha256="a" * 64, size=None,
    source="debian", provenance="read", by="",
)  # fmt: skip


def lock_of(*targets: Target) -> Lock:
    return Lock(
        schema=2, profile="cpu", inputs="0" * 64, state="locked", reason="", tools=tools(),
        targets=targets,
    )  # fmt: skip


def test_a_mac_among_the_platforms_is_no_stage_of_an_image() -> None:
    """Its files would be those of a second `debs-arm64`."""
    mac = Target(platform="macos/arm64", python=PYTHON, base=None, files=())
    arm = Target(platform="linux/arm64", python=PYTHON, base=BASE, files=(DEB,))
    made = list(instructions(rendered((CPU, lock_of(mac, arm)), "dockerfile")["Dockerfile"]))
    assert [r for k, r in made if k == "FROM" and "AS debs-" in r] == ["scratch AS debs-arm64"]
    assert ("ARG", "BASE_IMAGE=b:1") in made


def test_a_base_of_packages_is_no_stage_and_says_where_it_comes_from() -> None:
    base = replace(BASE, ref="envbuilder/debian:bookworm-1", suite="bookworm")
    files = (replace(DEB, role="base"),)
    target = Target(platform="linux/amd64", python=PYTHON, base=base, files=files)
    text = rendered((CPU, lock_of(target)), "dockerfile")["Dockerfile"]
    made = list(instructions(text))
    assert ("ARG", "BASE_IMAGE=envbuilder/debian:bookworm-1") in made
    assert not [r for k, r in made if k == "ADD"]
    assert "Nobody publishes this base" in text


# ---- what no index has


NASTY_PLACE = "https://h.example/x;rm(*){{7*7}}&-1.0"


def of_no_index(kind: types.SourceKind, built: bool = True, **more: Any) -> File:
    """A package that is built, from such a place; the wheel of one by its URL."""
    recipe = {"kind": kind, "location": NASTY_PLACE, "sha256": "a" * 64, **more}
    file = {
        "kind": "wheel" if built else "source", "name": "x", "version": "1.0",
        "file": "x-1.0-py3-none-any.whl", "sha256": "b" * 64 if built else "a" * 64, "size": 1,
        "source": "url" if kind == "wheel" else "built", "provenance": "read", "by": "",
        "recipe": recipe,
    }  # fmt: skip
    file |= {"sha256": "a" * 64} if kind == "wheel" else {}
    return msgspec.convert(file, File)


def with_file(file: File, *needs: File) -> tuple[profiles.Profile, Lock]:
    lock = shipped_lock("cpu")
    target = lockfile.select(lock, "linux/amd64", PYTHON)
    target = replace(target, files=(*target.files, file), build_files=needs)
    return CPU, replace(lock, targets=(target,))


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("framework", [True, False])
@pytest.mark.parametrize("kind", ["sdist", "git", "path"])
def test_a_dockerfile_builds_what_no_index_has(
    kind: types.SourceKind, built: bool, framework: bool
) -> None:
    commit = "c" * 40 if kind == "git" else ""
    need = replace(wheel("80.0", "d"), name="setuptools", file="setuptools-80.0-py3-none-any.whl")
    more = {"subdirectory": "a;b(c)&d", "commit": commit, "requires": [need.sha256]}
    file = of_no_index(kind, built, with_framework=framework, **more)
    files = rendered(with_file(file, need), "dockerfile")
    assert "\nx==" not in files["requirements.txt"]
    made = list(instructions(files["Dockerfile"]))
    (building,) = [rest for _, rest in made if "run build" in rest]
    assert building.startswith("--network=none ")
    assert tokens(building)[-1] == "/forge/source/a;b(c)&d"
    listed = [rest for keyword, rest in made if keyword == "heredoc"]
    assert f"setuptools==80.0 --hash=sha256:{'d' * 64}" in listed
    assert framework == any(line.startswith("torch==") for line in listed)
    added = [rest.split() for keyword, rest in made if keyword == "ADD" and "/sources/x" in rest]
    fetched = [tokens(rest) for _, rest in made if "/fetch.py x" in rest]
    if kind == "sdist":
        assert added == []
        assert fetched[0][fetched[0].index("x") + 1 :][:2] == [NASTY_PLACE, "a" * 64]
    else:
        place = f"{NASTY_PLACE}.git#{commit}" if kind == "git" else f"sources/x-{'a' * 12}.tar"
        assert added == [[place, "/sources/x/source"]]
    assert files["Dockerfile"].count(" AS built\n") == 1
    ends = [files["Dockerfile"].count(end) for end in ("\nEOF\n", "\nEOF\n\n")]
    assert ends[0] == ends[1], "hadolint cannot read on otherwise"


def test_a_wheel_by_its_url_is_fetched_by_its_hash() -> None:
    case = with_file(of_no_index("wheel"))
    line = f"x @ {NASTY_PLACE} --hash=sha256:{'a' * 64}"
    files = rendered(case, "dockerfile")
    assert " AS built" not in files["Dockerfile"]
    assert ("heredoc", line) in [*instructions(files["Dockerfile"])]
    assert "\nx==1.0 " in files["requirements.txt"], "it is there by then"
    listed = rendered(case, "requirements")["requirements.txt"]
    assert line in listed.replace(" \\\n   ", "")


def test_a_wheel_without_some_files_is_made_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"kind": "wheel", "location": "x-1.0-py3-none-any.whl", "sha256": "a" * 64}
    file = replace(of_no_index("sdist"), source="pruned")
    without = ("tests/__init__.py", "x/some.txt")
    file = replace(file, recipe=msgspec.convert({**recipe, "without": without}, Recipe))
    files = rendered(with_file(file), "dockerfile")
    made = [*instructions(files["Dockerfile"])]
    assert ("heredoc", f"x==1.0 --hash=sha256:{'a' * 64}") in made
    assert "\nx==" not in files["requirements.txt"]
    (making,) = [rest for _, rest in made if "/prune.py /source" in rest]
    assert tokens(making)[-2:] == [*without]

    content = {"x/__init__.py": b"1", "x/some.txt": b"2", "x-1.0.data/purelib/x/some.txt": b"3"}
    make_wheels.write(tmp_path, "x", content)
    (tmp_path / "out").mkdir()
    script = resources.folder("templates") / "docker/prune.py.j2"
    monkeypatch.setattr("sys.argv", ["", str(tmp_path), str(tmp_path / "out"), *without])
    runpy.run_path(str(script))
    with zipfile.ZipFile(tmp_path / "out/x-1.0-py3-none-any.whl") as wheel:
        record = wheel.read("x-1.0.dist-info/RECORD").decode()
        assert sorted(line.split(",")[0] for line in record.splitlines()) == sorted(
            wheel.namelist()
        )
        assert not [name for name in wheel.namelist() if "some.txt" in name]


def test_code_for_cuda_is_compiled_inside() -> None:
    file = of_no_index("sdist", built=False, cuda_architectures="8.0;9.0+PTX")
    dockerfile = rendered(with_file(file), "dockerfile")["Dockerfile"]
    assert " TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX' " in dockerfile


def test_an_installer_builds_an_sdist_itself_and_other_sources_are_refused() -> None:
    case = with_file(of_no_index("sdist", built=False, location="x-1.0.tar.gz"))
    assert (
        f"x==1.0 \\\n    --hash=sha256:{'a' * 64}"
        in rendered(case, "requirements")["requirements.txt"]
    )
    with pytest.raises(InvalidError, match=r"is built from .* --target script") as caught:
        rendered(with_file(of_no_index("git", built=False, commit="c" * 40)), "script")
    assert "--target dockerfile" in caught.value.hint


# ---- compose and dev containers


SCRIPT = "compose-override.sh"


@given(cases(LINUX))
@COMMON
def test_compose_and_dev_containers_say_the_same_whatever_the_data(
    case: tuple[profiles.Profile, Lock],
) -> None:
    files = rendered(case, "compose")
    image = {"image/Dockerfile", "image/requirements.txt", "image/compile_bytecode.py"}
    assert set(files) == {"compose.yaml", SCRIPT, *image}
    service = yaml.safe_load(files["compose.yaml"])["services"]["env"]
    arguments = service["build"].pop("args")
    declared = re.findall(r"^ARG ([A-Z0-9_]+)(?:=|$)", files["image/Dockerfile"], re.MULTILINE)
    assert set(arguments) == set(declared) - {"SOURCE_DATE_EPOCH"}
    plain = rendered((CPU, case[1]), "compose")
    other = yaml.safe_load(plain["compose.yaml"])["services"]["env"]
    del other["build"]["args"]
    assert service == other
    assert code(files[SCRIPT]) == code(plain[SCRIPT])
    check_dev_container(case)
    check_stated(case)


def check_dev_container(case: tuple[profiles.Profile, Lock]) -> None:
    """It is JSON with comments."""
    files = rendered(case, "devcontainer")
    text = files[".devcontainer/devcontainer.json"]
    read = json.loads("\n".join(code(text, "//")))
    assert read.pop("name") == case[0].name
    assert read["dockerComposeFile"] == ["compose.yaml", "compose.override.yaml"]
    service = yaml.safe_load(files[".devcontainer/compose.yaml"])["services"][read["service"]]
    assert service["working_dir"] == read["workspaceFolder"] == "/work"
    assert service["volumes"] == [{"type": "bind", "source": "..", "target": "/work"}]
    assert read["initializeCommand"][1] in files


STATED = Environment(
    command=("python", "serve.py", 'it\'s: "a" & #b', "{}"),
    ports=(8000, 1),
    volumes={"models": "/models", "./my data, ä": "/data/x"},
    python_path=("src", "lib/it's"),
)


def check_stated(case: tuple[profiles.Profile, Lock]) -> None:
    """Both say what the project states."""
    path = "/work/src:/work/lib/it's"
    for target, above, folder in (("compose", ".", ""), ("devcontainer", "..", ".devcontainer/")):
        files = rendered(case, target, STATED)  # type: ignore[arg-type]
        read = yaml.safe_load(files[f"{folder}compose.yaml"])
        service = read["services"]["env"]
        assert service["environment"]["PYTHONPATH"] == path
        assert service["volumes"][1:3] == [
            {"type": "volume", "source": "models", "target": "/models"},
            {"type": "bind", "source": f"{above}/my data, ä", "target": "/data/x"},
        ]
        assert read["volumes"] == {"models": {}}
        assert "--mode=1777 /models\n" in files[f"{folder}image/Dockerfile"]
        if target == "compose":
            assert service["command"] == [*STATED.command]
            assert service["ports"] == ["127.0.0.1:8000:8000", "127.0.0.1:1:1"]
        else:
            shown = "\n".join(code(files[".devcontainer/devcontainer.json"], "//"))
            assert json.loads(shown)["forwardPorts"] == [8000, 1]


def code(shown: str, comment: str = "#") -> list[str]:
    """The lines that are no comments."""
    return [line for line in shown.split("\n") if not line.strip().startswith(comment)]


# ---- scripts and conda


@given(cases(types.PLATFORMS))
@COMMON
def test_scripts_and_conda_files_say_the_same_whatever_the_data(
    case: tuple[profiles.Profile, Lock],
) -> None:
    profile, _ = case
    script = rendered(case, "script")["setup-venv.sh"]
    plain = replace(profile, description="", warnings=(), name="cpu")
    other = rendered((plain, case[1]), "script")["setup-venv.sh"]
    assert code(script.replace(f"./{profile.name}-env", "./cpu-env")) == code(other)
    assert shlex.split(f"x={profile.name}-env") == [f"x={profile.name}-env"]
    check_conda(case)


def check_conda(case: tuple[profiles.Profile, Lock]) -> None:
    """It says what the profile says."""
    profile, _ = case
    files = rendered(case, "conda")
    assert set(files) == {"environment.yml", "requirements.txt"}
    pip = ["pip", {"pip": ["--require-hashes", "--requirement requirements.txt"]}]
    assert yaml.safe_load(files["environment.yml"]) == {
        "name": profile.name,
        "channels": [*(f"https://{c}.invalid/x" for c in profile.conda.channels), "nodefaults"],
        "dependencies": [
            f"python {PYTHON}.*",
            *profile.conda.packages,
            *pip,
        ],
        **({"variables": profile.environment} if profile.environment else {}),
    }


# ---- the door


@pytest.mark.parametrize(
    "hostile",
    [
        "https://a/$(id)", "https://a/`id`", "https://a b", "https://a\nRUN id", "https://a/'x",
        'https://a/"x', "https://a/\\x", "--trusted-host x", "a.example", "", "https://",
    ],
)  # fmt: skip
def test_a_url_that_could_be_more_is_refused(hostile: str, found: Settings) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"indexes": {"x": hostile}}, Configuration)
    if hostile:
        with pytest.raises(InvalidError, match="ENVBUILDER_INDEX_X"):
            override("x", found, {"ENVBUILDER_INDEX_X": hostile})


@given(urls)
def test_a_url_may_be_remote_or_a_folder(url: str) -> None:
    assert msgspec.convert({"indexes": {"x": url}}, Configuration).indexes == {"x": url}


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\x00", "\x85", "\u2028", "\u2029", "\ud800", "\ufffe"]
)
def test_no_comment_and_no_value_ends_its_line(end: str) -> None:
    for change in (
        {"description": f"a{end}b"},
        {"warnings": [f"a{end}b"]},
        {"environment": {"A": end}},
    ):
        with pytest.raises((msgspec.ValidationError, UnicodeEncodeError)):
            msgspec.convert({**profiles.canonical(CPU), **change}, profiles.Profile)


def test_a_python_that_the_lock_lacks_is_named() -> None:
    with pytest.raises(InvalidError) as caught:
        list(render.render(CPU, lock_of(), "requirements", "3.11", {}))
    assert "(nothing)" in caught.value.hint
