"""`check` of requirement files as people really write them: an answer for each, never a defect."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder import cli
from envbuilder.core import settings
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import DEFAULT, Configuration, Definition, RequirementFile, Settings
from envbuilder.locks import entries
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.frameworks import FRAMEWORKS, is_build_extra
from envbuilder.project import draft, environments, repository
from envbuilder.project.environments import Contents
from envbuilder.project.forms import form_of
from envbuilder.project.lines import on_hardware
from envbuilder.project.variants import adapt
from tests.support.shipped import FOLDERS, shipped_profile

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared/corpus"
"""Dependency files of public repositories, read where they lie; they are no part of this one."""
PROFILES = tuple(shipped_profile(name) for name in profiles.names(FOLDERS))
MACHINES = {
    "linux/amd64": ("linux", "Linux", "x86_64"),
    "linux/arm64": ("linux", "Linux", "aarch64"),
    "macos/arm64": ("darwin", "Darwin", "arm64"),
}
VARIABLES = ("sys_platform", "platform_system", "platform_machine")


def definitions(folder: Path) -> Iterator[Definition]:
    """What `init` would write for a repository, then each of its files alone."""
    files = [*repository.files(folder)]
    choice = draft.choose(folder, files, repository.install_hints(folder, files))
    text = draft.text(choice, draft.Draft())
    definition = settings.decoded(text, folder / "envbuilder.yaml")[1]
    yield definition
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (form_of(path.name) or path.name.startswith("setup.")):
            name = path.relative_to(folder).as_posix()
            yield Definition(requirements_from=(RequirementFile(file=name),))


def holds(requirement: Requirement, platform: str, python: str) -> bool:
    """Whether a marker is true there, told without envbuilder's own code."""
    there = {"python_version": python, "python_full_version": f"{python}.0", "os_name": "posix"}
    there |= dict(zip(VARIABLES, MACHINES[platform], strict=True))
    return requirement.marker is None or requirement.marker.evaluate(there)


def meant(contents: Contents, profile: profiles.Profile, platform: str, python: str) -> set[str]:
    """What the lines mean on a target in addition to the framework: PEP 508, and nothing else."""
    framework = FRAMEWORKS[profile.framework]
    left = framework.parts | framework.foreign(profile.accelerator)
    result = set()
    for line in on_hardware(contents.requirements, profile)[0]:
        wish = Requirement(line.text)
        name = canonicalize_name(wish.name)
        if name in left or not holds(wish, platform, python):
            continue
        if name.startswith("nvidia-") and framework.is_library(name):
            continue  # of a frozen list: its builds require them in other versions
        if name in framework.names:
            wish.extras = {e for e in wish.extras if not is_build_extra(canonicalize_name(e))}
            if not wish.extras:
                continue
            wish.name, wish.specifier = "FRAMEWORK", type(wish.specifier)()
        wish.marker = None
        result.add(str(wish))
    return result


def contradicts(contents: Contents, profile: profiles.Profile, platform: str, python: str) -> bool:
    """Whether a line that holds on a target needs another version of the profile's framework."""
    names = FRAMEWORKS[profile.framework].names
    pinned = [
        need for need in map(Requirement, profile.requirements) if holds(need, platform, python)
    ]
    versions = {
        s.version
        for need in pinned
        if canonicalize_name(need.name) in names
        for s in need.specifier
    }
    lines = (*contents.requirements, *(c for c in contents.constraints if not c.locked))
    wishes = (
        wish
        for wish in map(Requirement, (line.text for line in lines))
        if holds(wish, platform, python)
    )
    return any(
        not wish.specifier.contains(version, prereleases=True)
        for wish in wishes
        if canonicalize_name(wish.name) in names
        for version in versions
    )


def require_meaning(contents: Contents, profile: profiles.Profile) -> bool:
    """Compare a variant with what the lines mean; return whether there is one."""
    try:
        variant = adapt(profile, contents)
    except InvalidError as error:
        refusal = error
    else:
        for target in product(variant.platforms, variant.python.supported):
            assert not contradicts(contents, profile, *target)
            added = map(Requirement, variant.requirements[len(profile.requirements) :])
            holding = [requirement for requirement in added if holds(requirement, *target)]
            for requirement in holding:
                requirement.marker = None
                if canonicalize_name(requirement.name) in FRAMEWORKS[profile.framework].names:
                    requirement.name = "FRAMEWORK"
            assert {*map(str, holding)} == meant(contents, profile, *target)
        return True
    assert refusal.hint
    if re.search(rf"profile '{profile.name}' has [a-z_-]+ [0-9]", refusal.message):
        targets = product(profile.platforms, profile.python.supported)
        assert any(contradicts(contents, profile, *target) for target in targets), refusal.message
    return False


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2))])
def test_check_has_an_answer_for_every_repository(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not CORPUS.is_dir():
        pytest.skip("no ../shared/corpus beside this checkout")
    # They do not change between 300 projects.
    monkeypatch.setattr(profiles, "load", functools.cache(profiles.load))
    of_origin = functools.cache(lambda name: entries_lock(shipped_profile(name), FOLDERS))
    entries_lock = entries.lock_of
    monkeypatch.setattr(entries, "lock_of", lambda profile, _: of_origin(profile.name))
    repositories = sorted(path for path in CORPUS.iterdir() if path.is_dir())
    assert len(repositories) >= 90
    readable = variants = 0
    for folder in repositories[part::3]:
        for definition in definitions(folder):
            project = Settings(
                project=folder, config_dir=tmp_path, cache_dir=tmp_path, data_dir=tmp_path,
                configuration=Configuration(), definition=definition,
            )  # fmt: skip
            monkeypatch.setattr(
                "envbuilder.commands.check.load_settings", lambda project=project: project
            )
            with pytest.raises(SystemExit) as ended:
                cli.main(["check", "--json"])
            printed = capsys.readouterr()
            where = f"{folder.name}: {definition.requirements_from}: {printed.err}"
            assert ended.value.code in {None, 0, 2}, where
            assert "unexpected" not in printed.err, where
            if printed.out:
                answer: dict[str, Any] = json.loads(printed.out)
                assert {each["state"] for each in answer["locks"]} <= {"missing", "impossible"}
            try:
                contents = environments.contents(definition, DEFAULT, folder)
            except InvalidError:
                assert printed.err, where
                continue
            readable += 1
            variants += sum(require_meaning(contents, profile) for profile in PROFILES)
    assert readable > 60
    assert variants > 600
