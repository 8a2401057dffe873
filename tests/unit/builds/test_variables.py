"""One value for each variable of a command, and what decided it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import variables
from envbuilder.builds.access import NOTHING, Access
from envbuilder.builds.inside import sitecustomize
from envbuilder.builds.variables import Place
from envbuilder.core import console

PLACE = Place(
    given={"VIRTUAL_ENV": "/env"},
    first={"PATH": ("/env/bin",), "PYTHONPATH": ("/own",), "LD_PRELOAD": ("lib.so",)},
)


def decided(
    caller: dict[str, str] | None = None,
    access: Access = NOTHING,
    place: Place = PLACE,
    **of_profile: str,
) -> dict[str, variables.Variable]:
    profile: Any = SimpleNamespace(name="cpu", environment=of_profile)
    return variables.of_command(profile, place, {"GPUS": "0"}, access, caller or {})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, f"/env/bin:{os.defpath}"),
        ("", "/env/bin"),
        ("/usr/bin:", "/env/bin:/usr/bin"),
        (":/usr/bin::/bin", "/env/bin:/usr/bin:/bin"),
    ],
)
def test_no_element_of_the_path_is_empty(path: str | None, expected: str) -> None:
    """It would mean the working folder, whose `git` would run."""
    assert decided({} if path is None else {"PATH": path})["PATH"].value == expected


@pytest.mark.parametrize(
    ("caller", "stated", "of_profile", "expected"),
    [
        ("", None, "", "/own"),
        ("/mine", None, "", "/own:/mine"),
        ("/mine", "/x::/y", "", "/own:/x:/y"),
        ("/mine", "", "", "/own"),
        ("/mine", None, "/p", "/own:/p"),
    ],
)
def test_what_is_imported_first_stays_first(
    caller: str, stated: str | None, of_profile: str, expected: str
) -> None:
    access = NOTHING if stated is None else Access(variables={"PYTHONPATH": stated})
    more = {"PYTHONPATH": of_profile} if of_profile else {}
    assert decided({"PYTHONPATH": caller}, access, **more)["PYTHONPATH"].value == expected


def test_no_library_is_preloaded_where_none_is_stated() -> None:
    assert decided({"LD_PRELOAD": "mine.so"})["LD_PRELOAD"].value == "lib.so:mine.so"
    assert decided({}, Access(variables={"LD_PRELOAD": ""}))["LD_PRELOAD"].value == ""


def test_each_has_its_source() -> None:
    found = decided({"A": "1", "B": "2"}, Access(variables={"C": "3"}, passed=("B",)), D="4")
    sources = {name: each.source for name, each in found.items()}
    assert sources == {
        "OMP_NUM_THREADS": variables.MACHINE,
        "GPUS": "the choice of devices",
        "VIRTUAL_ENV": "the environment",
        "PATH": "the environment's programs come first",
        "PYTHONPATH": "modules of envbuilder and of the project come first",
        "LD_PRELOAD": "libraries that the profile preloads come first",
        "D": "profile cpu",
        "B": variables.STATED,
        "C": variables.STATED,
    }
    assert "D" not in decided(place=Place(sets_profile=True), D="4")
    assert decided({}, Access(variables={"D": "5"}), D="4")["D"].value == "5"


def test_verbose_says_what_was_set_and_why_but_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = decided({"OMP_NUM_THREADS": "1"}, Access(variables={"TOKEN": "c4nary"}), D="4")
    found["WANDB_API_KEY"] = variables.Variable("c4nary-of-a-profile", "profile cpu")
    variables.report(found)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console.VERBOSITY, "verbose", True)
    variables.report(found)
    lines = capsys.readouterr().err.splitlines()
    assert "+ LD_PRELOAD=lib.so (libraries that the profile preloads come first)" in lines
    assert "+ D=4 (profile cpu)" in lines
    assert "+ TOKEN (set by -e)" in lines
    assert "c4nary" not in str(lines)


@pytest.mark.parametrize(
    "how",
    [
        {"caller": {"OMP_NUM_THREADS": "1"}},
        {"access": Access(variables={"OMP_NUM_THREADS": "1"})},
        {"OMP_NUM_THREADS": "1"},
    ],
)
def test_threads_that_are_stated_hold(how: dict[str, Any]) -> None:
    access = replace(how.pop("access", NOTHING), shares_cores=True)
    found = decided(access=access, **how)
    assert "ENVBUILDER_THREADS" not in found
    assert "OMP_NUM_THREADS" not in found or found["OMP_NUM_THREADS"].value == "1"
    assert variables.machine_threads({"OMP_NUM_THREADS": "1"}) == {}


def test_what_divides_the_cores_sees_no_number_that_nobody_stated() -> None:
    found = decided(access=Access(shares_cores=True))
    assert "OMP_NUM_THREADS" not in found
    assert int(found["ENVBUILDER_THREADS"].value) >= 1


@pytest.mark.parametrize(
    ("before", "chosen", "seen", "effective"),
    [
        ("8", "8", None, "2"),  # bound to two CPUs
        (None, "8", None, "2"),
        ("", "8", None, "2"),
        ("1", "8", "1", None),  # as torchrun decided
        ("8", "", "8", None),
        ("8", "many", "8", None),
    ],
)
def test_launchers_divide_the_cores_themselves(
    before: str | None,
    chosen: str,
    seen: str | None,
    effective: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", before or "")
    if before is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("ENVBUILDER_THREADS", chosen)
    kept: dict[str, str] = {}
    monkeypatch.setattr(os, "putenv", kept.__setitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    sitecustomize._share_cores()
    assert os.environ.get("OMP_NUM_THREADS") == seen
    assert kept.get("OMP_NUM_THREADS") == effective
