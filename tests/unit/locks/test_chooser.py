"""What is asked of uv in order to choose; what it answers is in tests of `network`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core.settings import load
from envbuilder.locks.blockers import Blocker, Diagnosis, OutdatedError
from envbuilder.locks.chooser import Answer, Chooser
from envbuilder.packages import fetch, upstream
from envbuilder.packages.fetch import Place
from envbuilder.packages.python import uv
from envbuilder.packages.python.uv import UnresolvableError, Uv
from envbuilder.packages.sources import source_locker
from envbuilder.profiles.lock import reason
from envbuilder.profiles.profile import Profile, Source
from envbuilder.project.lines import Line
from tests.support.shipped import shipped_profile

CPU = shipped_profile("cpu")
SETTINGS = load({})


def refusal(proof: str, *names: str) -> UnresolvableError:
    return UnresolvableError(reason("nothing fits", proof=proof), None, frozenset(names))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Profile, str]]:
    """The questions that were asked: each is refused, for a reason of its own."""
    questions: list[tuple[Profile, str]] = []

    def answer(_: Chooser, profile: Profile, python: str, *__: str) -> UnresolvableError:
        questions.append((profile, python))
        return refusal(f"nothing for {python} and torch{profile.constraints[-1][5:]}")

    monkeypatch.setattr(upstream, "offers", lambda *_: ())
    monkeypatch.setattr(Chooser, "answer", answer)
    return questions


def chooser_of(profile: Profile) -> Chooser:
    """Return a chooser that reads no index."""
    return Chooser(profile, SETTINGS, Diagnosis(SETTINGS))


@pytest.mark.parametrize(
    ("name", "day", "expected"),
    [
        ("cpu", "2026-10-30", "3.11 3.10 3.12 3.13 3.14 3.9 3.8"),
        ("cpu", "2026-11-01", "3.11 3.12 3.13 3.14 3.10 3.9 3.8"),
        ("tensorflow-cuda", "2026-11-01", "3.11 3.12 3.13 3.10 3.9"),
    ],
)
def test_pythons_that_the_framework_has_are_asked_for_the_nearest_first_the_unsupported_last(
    asked: list[tuple[Profile, str]], name: str, day: str, expected: str
) -> None:
    profile = shipped_profile(name)
    profile = replace(profile, release=None, resolution=replace(profile.resolution, as_of=day))
    assert not [*chooser_of(profile).alternatives("3.11")]
    assert " ".join(python for _, python in asked) == expected


def test_a_newer_release_is_asked_for_last(asked: list[tuple[Profile, str]]) -> None:
    profile = replace(CPU, release="2.9.0", requirements=("torch==2.9.0+cpu", "rich"))
    pythons = [Line("==3.11.*", "a.yaml")]
    assert not [*chooser_of(profile).alternatives("3.11", ["torch>=2.1"], pythons)]
    newest, *_, oldest = profile.choices()
    for (question, python), bound in zip(asked, ("2.9.0", newest), strict=True):
        assert python == "3.11"
        assert question.requirements == ("torch", "rich")
        assert question.constraints[-2:] == ("torch>=2.1", f"torch>={oldest},<={bound}")


def test_a_refusal_that_no_python_changes_is_the_last(
    asked: list[tuple[Profile, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pythons: list[str] = []

    def answer(_: Chooser, __: Profile, python: str, *___: str) -> UnresolvableError:
        pythons.append(python)
        return refusal("rich==1 needs what rich==2 excludes")

    monkeypatch.setattr(Chooser, "answer", answer)
    assert [*chooser_of(CPU).moved("3.11", [])] == []
    assert pythons == ["3.11", "3.12"] * 2  # uv is asked once


def test_what_is_pinned_becomes_a_lower_bound_and_moves_to_what_uv_takes(
    asked: list[tuple[Profile, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        "torch==1.11.0+cu113",
        "torchtext==0.12",
        "numba[x]~=0.55.1; python_version > '3'",
        "scipy==1.*",
        "rich>=13,<14",
        "attrs",
    ]
    lines = [Line(text, "a.txt:1") for text in texts]
    own = ("torch==1.13.1+cpu", *texts[1:])
    profile = replace(CPU, release="1.13.1", requirements=own, constraints=("scipy==1.2", "six<2"))
    versions = {"torch": "1.13.1+cpu", "torchtext": "0.14.1", "numba": "0.55.2", "scipy": "2.0"}
    questions: list[Profile] = []

    def answer(_: Chooser, question: Profile, python: str, *options: str) -> Answer:
        questions.append(question)
        assert options == ("--resolution", "lowest-direct")
        return Answer(python, versions, frozenset())

    monkeypatch.setattr(Chooser, "answer", answer)
    nearest, *_ = chooser_of(profile).moved("3.11", lines)
    assert nearest[0].release(profile) == "1.13.1"
    assert nearest[1] == {"scipy": "2.0", "torch": "1.13.1+cpu", "torchtext": "0.14.1"}
    kept, question = questions
    assert {*kept.constraints} == {*question.constraints, "torch==1.13.1"}
    assert question.requirements == (
        "torch>=1.11.0",
        "torchtext>=0.12",
        'numba[x]>=0.55.1; python_version > "3"',
        "scipy>=1",
        "rich>=13",
    )
    releases = [*profile.choices()]
    assert question.constraints == ("six<2", f"torch>={releases[-1]},<={releases[0]}")


MOVED = {"scipy": "1.9", "torch": "2.0.0"}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("torch==1.12.0", [("3.10", {"scipy": "1.9"}), ("3.11", MOVED)]),
        ("torch==1.11.0", [("3.11", MOVED)]),
        ("torch>=1.11", [("3.11", {"scipy": "1.9"})]),
    ],
)
def test_what_is_pinned_beside_the_framework_moves_before_its_release(
    asked: list[tuple[Profile, str]],
    monkeypatch: pytest.MonkeyPatch,
    listed: str,
    expected: list[tuple[str, dict[str, str]]],
) -> None:
    def answer(_: Chooser, question: Profile, python: str, *__: str) -> Any:
        taken = "1.12.0" if python == "3.10" else "2.0.0"
        versions = {"torch": taken, "scipy": "1.9"}
        stays = [c for c in question.constraints if "torch==" in c]
        is_refused = stays not in ([], [f"torch=={taken}"])
        return refusal(python) if is_refused else Answer(python, versions, frozenset())

    monkeypatch.setattr(Chooser, "answer", answer)
    release = listed[7:]
    lines = [Line(listed, "a.txt:1"), Line("scipy==1.7", "a.txt:2")]
    nearest = [*chooser_of(replace(CPU, release=release)).moved("3.11", lines)]
    assert [(answer.python, moved) for answer, moved in nearest][: len(expected)] == expected


def test_packages_without_a_wheel_are_those_that_uv_hints_at() -> None:
    printed = (
        "cause: Because nosuch was not found in the package registry and you require nosuch\n"
        "cause: Because old==2.7.4.post1 was not found in the package registry\n"
        "hint: Wheels are required for `some_thing` because building from source is disabled\n"
        "hint: You require CPython 3.11 (`cp311`), but we only found wheels for `tensorflow`"
        " (v2.10.0) with the following Python ABI tags: `cp310`"
    )
    assert uv._named(printed) == {"nosuch", "old", "some-thing", "tensorflow"}


ANCIENT = "cp35-cp35m-manylinux1_x86_64.whl"
PAGES = {
    "ancient": f"<a href=ancient-1.0-{ANCIENT}></a>",
    "sourced": f"<a href=sourced-1.0-{ANCIENT}></a><a href=sourced-1.0.tar.gz></a>",
    "recent": f"<a href=recent-1.0-{ANCIENT}></a><a href=recent-2.0-py3-none-any.whl></a>",
}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [("recent", {"ancient"}), ("recent<2", {"ancient", "recent"})],
)
def test_what_has_neither_a_wheel_for_a_python_of_today_nor_a_source_is_too_old(
    monkeypatch: pytest.MonkeyPatch, listed: str, expected: set[str]
) -> None:
    def read(url: str) -> bytes:
        return PAGES[url.split("/")[-2]].encode()

    index = upstream.Index([Place(url="https://index.example/simple")], read, lambda _: [])
    monkeypatch.setattr(upstream, "opened", lambda *_: nullcontext(index))
    profile = replace(CPU, requirements=("ancient", "sourced", listed))
    questions = chooser_of(profile)
    assert questions.too_old(["ancient", "sourced", "recent"]) == expected


def test_each_question_is_reported_with_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []

    def answer(*_: Any) -> Any:
        raise UnresolvableError("nothing fits")

    monkeypatch.setattr(upstream, "offers", lambda *_: ())
    monkeypatch.setattr(Uv, "compile", answer)
    monkeypatch.setattr(fetch, "places", tuple)
    questions = Chooser(CPU, SETTINGS, Diagnosis(SETTINGS), report=reported.append)
    assert isinstance(questions.answer(CPU, "3.10"), UnresolvableError)
    assert reported == ["cpu: asking for 1 package with Python 3.10"]


def test_what_the_project_has_from_elsewhere_is_not_asked_of_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(_: Uv, requirements: tuple[str, ...], *__: object) -> Any:
        asked.append(requirements)
        raise UnresolvableError("nothing fits")

    monkeypatch.setattr(upstream, "offers", lambda *_: ())
    monkeypatch.setattr(Uv, "compile", answer)
    monkeypatch.setattr(fetch, "places", tuple)
    own = Source(name="lerobot", location="git+https://host.example/a/lerobot")
    resolution = replace(CPU.resolution, sources=(own,))
    profile = replace(CPU, requirements=("rich", "lerobot==0.1.0"), resolution=resolution)
    refused = chooser_of(profile).answer(profile, "3.11")
    assert isinstance(refused, UnresolvableError)
    assert asked == [("rich",)]
    asked.clear()
    assert not [*chooser_of(profile).alternatives("3.11")]
    assert {*asked} == {("rich",)}


def test_what_is_too_old_for_lack_of_a_wheel_has_to_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the lock sees it."""
    too_old = Blocker(name="needed", kind="source", version="2", instead=("asked 1",))

    def passed(_: Diagnosis, asked: Profile, *__: object) -> tuple[Blocker, ...]:
        return () if "needed" in asked.resolution.exclude else (too_old,)

    monkeypatch.setattr(upstream, "offers", lambda *_: ())
    monkeypatch.setattr(fetch, "places", tuple)
    monkeypatch.setattr(Uv, "compile", lambda *_: ())
    monkeypatch.setattr(Diagnosis, "outdated", passed)
    monkeypatch.setattr(Diagnosis, "index", lambda *_: upstream.Index([], bytes, lambda _: []))
    for build, expected in ((True, {"needed"}), (("needed",), {"needed"}), (None, None)):
        profile = replace(CPU, resolution=replace(CPU.resolution, build=build))
        answer = chooser_of(profile).answer(profile, "3.11")
        if expected is None:
            assert isinstance(answer, OutdatedError)
        else:
            assert isinstance(answer, Answer)
            assert answer.sources == expected


def test_a_build_of_the_framework_that_has_ended_asks_for_the_framework(
    asked: list[tuple[Profile, str]],
) -> None:
    lines = [Line("tensorflow-gpu==2.5.0", "a.txt:1"), Line("pandas==1.4", "a.txt:2")]
    profile = shipped_profile("tensorflow-cpu")
    texts = (*profile.requirements, "pandas==1.4")
    questions = chooser_of(replace(profile, requirements=texts))
    assert not [*questions.moved("3.11", lines)]
    assert asked[-1][0].requirements == ("tensorflow>=2.5.0", "pandas>=1.4")


def test_of_what_others_pin_the_pinned_release_tells_whether_it_has_to_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(_: Uv, requirements: tuple[str, ...], *__: object, **___: object) -> tuple[()]:
        if resolving:
            raise refusal(resolving.pop(), "gdown")
        return ()

    pinned = "gdown==4.4.0 has no usable wheels and all versions of app depend on gdown==4.4.0"
    candidates = f"{pinned} and old<2 depends on gdown==4.3.0 and older depends on gdown"
    resolving = [candidates]
    page = b"<a href=gdown-4.4.0.tar.gz></a><a href=gdown-5.0-py3-none-any.whl></a>"
    index = upstream.Index([Place(url="https://index.example")], lambda _: page, lambda _: [])
    monkeypatch.setattr(source_locker, "requirements", lambda *_: ())
    monkeypatch.setattr(upstream, "offers", lambda *_: ())
    monkeypatch.setattr(upstream, "opened", lambda *_: nullcontext(index))
    monkeypatch.setattr(fetch, "places", tuple)
    monkeypatch.setattr(Uv, "compile", answer)
    resolution = replace(CPU.resolution, build=True)
    profile = replace(CPU, requirements=("app",), resolution=resolution)
    refused = chooser_of(profile).answer(profile, "3.11")
    assert isinstance(refused, UnresolvableError), "what uv might take is not what it has to"
    resolving.append(pinned)
    answered = chooser_of(profile).answer(profile, "3.11")
    assert isinstance(answered, Answer)
    assert answered.sources == {"gdown"}


def test_extras_bring_the_libraries_of_the_hardware_whatever_moves(
    asked: list[tuple[Profile, str]],
) -> None:
    questions = chooser_of(shipped_profile("jax-cuda"))
    assert not [*questions.moved("3.12", [Line("jax==0.9.2", "requirements.txt:1")])]
    list(questions.alternatives("3.12"))
    assert asked[0][0].requirements == ("jax[cuda13]>=0.9.2",)
    assert asked[-1][0].requirements == ("jax[cuda13]",)


def test_what_the_source_of_a_package_requires_is_asked_for_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions: list[tuple[str, ...]] = []

    def answer(_: Uv, requirements: tuple[str, ...], *__: object) -> tuple[()]:
        questions.append(requirements)
        for name in ("sourced", "deep"):
            if any(line.startswith(name) for line in requirements):
                raise refusal("", name)
        return ()

    pages = {"sourced": b"<a href=sourced-1.tar.gz></a>", "deep": b"<a href=deep-2.tar.gz></a>"}
    index = upstream.Index(
        [Place(url="https://index.example")], lambda url: pages[url.split("/")[-2]], lambda _: []
    )
    needs = {"sourced-1.tar.gz": ("deep>=2", "leaf"), "deep-2.tar.gz": ()}
    monkeypatch.setattr(source_locker, "requirements", lambda sdist, _: needs[sdist.file])
    monkeypatch.setattr(upstream, "offers", lambda *_: ())
    monkeypatch.setattr(upstream, "opened", lambda *_: nullcontext(index))
    monkeypatch.setattr(fetch, "places", tuple)
    monkeypatch.setattr(Uv, "compile", answer)
    resolution = replace(CPU.resolution, build=True)
    profile = replace(CPU, requirements=("sourced",), resolution=resolution)
    answered = chooser_of(profile).answer(profile, "3.11")
    assert isinstance(answered, Answer)
    assert answered.sources == {"sourced", "deep"}
    assert questions == [("sourced",), ("deep>=2", "leaf"), ("leaf",)]
    questions.clear()
    without_consent = Chooser(
        profile, SETTINGS, Diagnosis(SETTINGS), unasked=frozenset({"sourced"})
    ).answer(profile, "3.11")
    assert isinstance(without_consent, Answer)
    assert without_consent.sources == {"sourced"}
    assert questions == [("sourced",), ()]


def test_what_a_source_requires_for_its_extras_and_its_target_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = ("rich>=13", "of-de; extra == 'de'", "of-fr; extra == 'fr'", "x; os_name == 'nt'")
    monkeypatch.setattr(Diagnosis, "required_by_source", lambda *_: needs)
    profile = replace(CPU, requirements=("torch", "gruut[de]==2"))
    chooser = chooser_of(profile)
    question = replace(profile, requirements=("torch",))
    asked = chooser._with_needs(question, profile, ["gruut"], ("linux/amd64", "3.11"))
    assert asked.requirements == ("torch", "rich>=13", "of-de")
