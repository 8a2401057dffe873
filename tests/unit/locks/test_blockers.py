"""What stands in the way of a target: what uv names, by the pages of an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from envbuilder.core.settings import Settings
from envbuilder.locks.blockers import Blocker, Diagnosis, explained
from envbuilder.packages import upstream
from envbuilder.packages.fetch import Place
from envbuilder.packages.python.uv import Found, UnresolvableError
from envbuilder.packages.sources import source_locker
from envbuilder.profiles.lock import File, reason
from envbuilder.profiles.profile import Profile
from envbuilder.profiles.requirements import distribution
from tests.support.shipped import shipped_profile
from tests.support.user_index import refused

WHEEL = File(
    kind="wheel", name="x", version="1", file="x-1-py3-none-any.whl", sha256="a" * 64, size=1,
    source="default", provenance="read", by="a test",
)  # fmt: skip
LINUX: upstream.Target = ("linux/amd64", "3.11")
ANY = "py3-none-any"
PYTHON_310 = "cp310-cp310-manylinux2014_x86_64"
PAGES = {
    "old": ["old-0.9.tar.gz", "old-1.0.tar.gz", "old-1.5.tar.gz"],
    "deep": ["deep-3.0.tar.gz"],
    "compiled": [f"compiled-1.0-{PYTHON_310}.whl", "compiled-1.0.tar.gz"],
    "binary": [f"binary-1.0-{PYTHON_310}.whl"],
    "good": [f"good-1.0-{ANY}.whl"],
    # Of these, what is too old alone has a wheel, or requires nothing that has none.
    "moved": [f"moved-1.9-{ANY}.whl", "moved-2.0.tar.gz", "moved-3.1.tar.gz"],
    "early": [f"early-0.3.dev5-{ANY}.whl", "early-0.3.tar.gz"],
    "hydra": [f"hydra-{version}-{ANY}.whl" for version in ("0.9", "1.3", "1.4rc3")],
    # Of these it is not too old.
    "minor": [f"minor-1.9-{ANY}.whl", "minor-1.10.tar.gz"],
    "native": [f"native-1.9-{ANY}.whl", "native-2.0-cp312-cp312-manylinux2014_x86_64.whl"],
}
READ: list[str] = []


def page(url: str) -> bytes:
    name = url.rstrip("/").rpartition("/")[2]
    READ.append(name)
    if name == "failing":
        raise refused(503)
    if name not in PAGES:
        raise refused(404)
    day = {"upload-time": "2021-01-01T00:00:00Z", "hashes": {}}
    files = [{"filename": file, "url": f"../{file}", **day} for file in PAGES[name]]
    return json.dumps({"files": files}).encode()


def profile(*requirements: str, constraints: tuple[str, ...] = ()) -> Profile:
    cpu = shipped_profile("cpu")
    return replace(cpu, requirements=requirements, constraints=constraints, indexes={})


@pytest.fixture
def diagnosis(found: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Diagnosis]:
    READ.clear()
    index = upstream.Index([Place(url="https://index.example/simple")], page, lambda _: [])
    monkeypatch.setattr(upstream, "opened", lambda *_: nullcontext(index))
    monkeypatch.setattr(
        source_locker, "requirements", lambda link, _: ("deep>=2",) if "old" in link.file else ()
    )
    with Diagnosis(found) as opened:
        yield opened


def refusal(proof: str, *names: str) -> UnresolvableError:
    return UnresolvableError(reason("no", proof=proof), LINUX, frozenset(names))


def uv(
    needs: dict[str, str], proof: str = ""
) -> Callable[[Profile], tuple[Found, ...] | UnresolvableError]:
    """Return a uv that names the first package of a question that has no wheel: name → its own."""

    def ask(asked: Profile) -> tuple[Found, ...] | UnresolvableError:
        names = [distribution(line) for line in asked.requirements]
        names += filter(None, map(needs.get, names))
        lacking = [n for n in names if n not in {"good", "hydra", *asked.resolution.exclude}]
        return refusal(proof, lacking[0]) if lacking else ()

    return ask


def test_all_that_has_no_wheel_is_named_and_what_sources_require(diagnosis: Diagnosis) -> None:
    asked = profile("old<1.5", "good", "compiled", "binary", "gone", "failing")
    ask = uv({"good": "transitive"})
    first = ask(asked)
    assert isinstance(first, UnresolvableError)
    places = {"old<1.5": "requirements.txt:1"}
    blockers, rest = diagnosis.blockers(asked, LINUX, first, ask, places)
    assert [(b.name, b.kind, b.version, b.pythons) for b in blockers] == [
        ("old", "source", "1.0", ()),
        ("compiled", "source", "1.0", ("3.10",)),
        ("binary", "wheel", "1.0", ("3.10",)),
        ("gone", "absent", "", ()),
        ("failing", "unknown", "", ()),
        ("deep", "source", "3.0", ()),
        ("transitive", "absent", "", ()),
    ]
    assert blockers[0].by == ("requirements.txt:1",)
    assert blockers[5].by == ("old 1.0",)
    assert rest is None
    text = str(explained(blockers, LINUX))
    assert "7 packages block the lock" in text
    assert "old 1.0 (requirements.txt:1): has no wheel for Python 3.11, only its source" in text
    assert "nor a source, but there is one for Python 3.10. Use one of these Pythons, or" in text
    assert "build_from_source: [compiled, deep, old]" in text


def test_who_requires_a_package_and_in_which_versions_is_in_the_words_of_uv(
    diagnosis: Diagnosis,
) -> None:
    proof = (
        "Because old==0.9 has no usable wheels and app==2.0 depends on old>=0.5,<1, we can"
        " conclude that app==2.0 cannot be used. And because older depends on older-old==3"
        " and mof>=0.9.6 depends on old, and all of mlx<=0 mlx>=0.2,<=0.3 depend on old"
    )
    asked = profile("app")
    standing, _ = diagnosis.blockers(asked, LINUX, refusal(proof, "old"), lambda _: ())
    (blocker,) = standing
    assert blocker.version == "0.9"
    assert blocker.by == ("app 2.0", "mof", "mlx")


def test_a_package_may_lack_wheels_in_each_of_the_versions_that_are_required(
    diagnosis: Diagnosis,
) -> None:
    proof = "Because app==1.0 depends on moved==2.* and app==2.0 depends on moved==3.*, no"
    standing, _ = diagnosis.blockers(profile("app"), LINUX, refusal(proof, "moved"), lambda _: ())
    assert [(each.name, each.kind, each.version) for each in standing] == [
        ("moved", "source", "3.1")
    ]


def test_what_has_a_wheel_that_fits_is_not_to_blame_and_uv_keeps_its_own_reason(
    diagnosis: Diagnosis,
) -> None:
    ask = uv({"hydra": "good"})
    conflict = refusal("good<1 and good>1", "good")
    blockers, rest = diagnosis.blockers(profile("hydra"), LINUX, conflict, lambda _: conflict)
    assert blockers == ()
    assert rest is conflict
    assert ask(profile("hydra")) == ()


def old_wheel(name: str, version: str, **changes: str) -> Found:
    file = replace(WHEEL, name=name, version=version)
    return Found(file=file, **{"url": "https://i/x", "uploaded": "2020-01-01", **changes})


def test_a_wheel_is_too_old_if_newer_releases_fail_for_lack_of_one(diagnosis: Diagnosis) -> None:
    limits: list[str] = []

    def ask(asked: Profile) -> tuple[Found, ...] | UnresolvableError:
        limits.extend(asked.constraints)
        limit = distribution(asked.constraints[-1])
        lacking = {"hydra": "old"}.get(limit, limit)
        excluded = lacking in asked.resolution.exclude
        return () if excluded else refusal("", lacking)

    names = {"moved": "1.9", "early": "0.3.dev5", "hydra": "0.9", "minor": "1.9", "native": "1.9"}
    wheels = [old_wheel(name, version) for name, version in names.items()]
    wheels.append(old_wheel("recent", "1.0", uploaded="2999-01-01"))
    wheels.append(old_wheel("own", "1.0", url="file:///own-1.0.whl"))
    blockers = diagnosis.outdated(profile(*names), LINUX, wheels, ask)
    assert [(b.name, b.version, b.instead) for b in blockers] == [
        ("moved", "3.1", ("moved 1.9",)),
        ("early", "0.3", ("early 0.3.dev5",)),
        ("old", "1.5", ("hydra 0.9",)),
    ]
    # A pre-release that nothing asks for would be no answer.
    assert {*limits} == {"moved<=3.1,>=2", "early==0.3", "hydra<=1.3,>=1"}
    assert not {"recent", "own"} & {*READ}
    text = str(explained(blockers, LINUX))
    assert (
        "To accept such old versions, require them: early==0.3.dev5, hydra==0.9, moved==1.9" in text
    )


@pytest.mark.parametrize("answer", [(), refusal("good>2 and good<2")])
def test_a_wheel_is_not_too_old_if_others_limit_it(
    diagnosis: Diagnosis, answer: tuple[Found, ...] | UnresolvableError
) -> None:
    wheels = [old_wheel("hydra", "0.9")]
    assert diagnosis.outdated(profile("hydra"), LINUX, wheels, lambda _: answer) == ()


def test_what_an_answer_settles_is_not_asked_again(diagnosis: Diagnosis) -> None:
    limits: list[str] = []

    def ask(asked: Profile) -> tuple[Found, ...]:
        limits.append(asked.constraints[-1])
        return old_wheel("moved", "2.0"), old_wheel("early", "0.3.dev5")

    names = {"hydra": "0.9", "moved": "1.9", "early": "0.3.dev5"}
    wheels = [old_wheel(name, version) for name, version in names.items()]
    assert diagnosis.outdated(profile(*names), LINUX, wheels, ask) == ()
    assert limits == ["hydra<=1.3,>=1", "early==0.3"]


def test_an_index_that_fails_makes_no_package_absent() -> None:
    unknown = Blocker(name="a", kind="unknown", problem="unknown, because an index fails (x)")
    assert "a (required by others): unknown" in str(explained([unknown], LINUX))


def test_a_name_that_no_index_has_comes_with_a_similar_one() -> None:
    mistyped = Blocker(name="einop", kind="absent")
    assert "no index has it (similar: einops). Correct the name" in str(
        explained([mistyped], LINUX)
    )
