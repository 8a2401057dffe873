"""What `detect` says of a profile is what `build` and `verify` do: on every host of the corpus.

A verdict of "no" is exit code 3 and the other way round; what works in an image only is told with
the same sentence everywhere.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.builds.pipeline import prepare
from envbuilder.builds.request import Request
from envbuilder.containers.engine import connection, interface
from envbuilder.core.errors import EnvbuilderError, HostError, ToolError
from envbuilder.core.settings import Settings
from envbuilder.host import probe
from envbuilder.host.model import Containers, Engine, Host
from envbuilder.profiles import choice
from envbuilder.profiles.choice import choose_best
from envbuilder.profiles.fit import findings, judge, judge_backends
from envbuilder.project import variants
from tests.support import host_trees
from tests.support.engines import FakeEngine
from tests.support.progress import SILENT
from tests.support.recorded import replaced
from tests.support.shipped import LIBRARY

PROFILES = LIBRARY.candidates()
LOCKS = LIBRARY.locks(PROFILES)
DOCKER = Containers(engines=(Engine(name="docker", socket="/run/docker.sock", state="usable"),))
BACKENDS = (None, "docker", "venv", "conda")


class Planned(Exception):  # noqa: N818 (it is no error)
    """Everything up to the plan was passed; with the backend that it would be for."""


def once(function: Any) -> Any:
    """Keep what a function returned for each profile, host, backend and lock: nothing changes."""
    answers: dict[Any, Any] = {}

    def ask(*arguments: Any, **named: Any) -> Any:
        key = (*map(id, arguments), *named, *map(id, named.values()))
        if key not in answers:
            # The arguments stay, so that no other gets the id of one.
            answers[key] = (function(*arguments, **named), arguments, named)
        return answers[key][0]

    return ask


@pytest.fixture(autouse=True)
def nothing_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read or found twice on a host, and the engine is what the host says."""
    replaced(monkeypatch, variants, "library", LIBRARY)
    monkeypatch.setattr("envbuilder.profiles.fit.findings", once(findings))
    for place, name in (
        (pipeline, "require_own"),
        (choice, "judge"),
        (choice, "judge_backends"),
        (LIBRARY, "advice"),
        (LIBRARY, "names"),
    ):
        monkeypatch.setattr(place, name, once(getattr(place, name)))

    def planned(module: str) -> Any:
        raise Planned(module.rpartition(".")[2])

    monkeypatch.setattr(pipeline, "import_module", planned)


def on(monkeypatch: pytest.MonkeyPatch, here: Host) -> None:
    answers = any(e.state == "usable" for e in here.containers.engines)

    def connect() -> Any:
        if not answers:
            raise ToolError("no container engine answers", "Use --backend venv.")
        return FakeEngine()

    replaced(monkeypatch, probe, "host", here)
    monkeypatch.setattr(interface, "configured_docker", lambda: answers)
    monkeypatch.setattr(connection, "connect", connect)


def outcome(found: Settings, *, running: bool = True, **asked: Any) -> str | EnvbuilderError:
    """The backend of the environment that would be planned, or the error."""
    try:
        prepare(Request(**asked), found, SILENT, running=running)
    except Planned as planned:
        return str(planned)
    except EnvbuilderError as error:
        return error
    raise AssertionError("it came to an end without a plan")


@pytest.fixture(params=["as recorded", "an engine"])
def here(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The recorded host of that name, with its own engine or with Docker."""
    recorded = host_trees.recorded(name)
    if request.param == "an engine":
        recorded = replace(recorded, containers=DOCKER)
    on(monkeypatch, recorded)
    return recorded


@pytest.mark.parametrize("name", host_trees.EACH)
def test_detect_verify_and_build_agree(name: str, here: Host, found: Settings) -> None:
    choice = choose_best(PROFILES, here, locks=LOCKS)
    shown = {fit.profile: fit for fit in choice.fits}
    for profile in PROFILES:
        usable = LOCKS[profile.name] is not None and LOCKS[profile.name].state != "unlocked"
        for backend in (b for b in BACKENDS if b is None or b in profile.backends):
            what = (name, profile.name, backend)
            fit = judge(profile, here, lock=LOCKS[profile.name], backend=backend)
            did = outcome(found, profile=profile.name, backend=backend)
            assert isinstance(did, HostError) == (fit.verdict == "no"), (what, fit, did)
            if isinstance(did, HostError):
                assert did.exit_code == 3
                for reason in fit.reasons:
                    assert reason in did.message, what
                assert not fit.workaround or did.hint == fit.workaround, (what, did.hint)
            elif backend is not None or not usable:
                assert isinstance(did, EnvbuilderError) or did == backend
            else:
                # It is the backend that the verdict is about, or another one that works as well.
                working = [way.backend for way in judge_backends(profile, here, LOCKS[profile.name])
                           if way.works]  # fmt: skip
                assert did in working, (what, did)
            if backend is None and usable:
                assert replace(fit, backend=None) == replace(shown[profile.name], backend=None)
                # A build makes what cannot run here, but nothing that cannot be.
                built = outcome(found, running=False, profile=profile.name)
                assert isinstance(built, HostError) == fit.impossible, (what, built)


@pytest.mark.parametrize("name", host_trees.EACH)
def test_without_a_profile_it_is_the_one_that_detect_chose(here: Host, found: Settings) -> None:
    """As `bootstrap.py` does it, too, which asks for a native environment."""
    choice = choose_best(PROFILES, here, locks=LOCKS)
    did = outcome(found)
    native = outcome(found, backend="venv")
    if choice.profile is None:
        assert isinstance(did, HostError)
        assert isinstance(native, HostError)
        return
    assert isinstance(did, str), did
    profile = LIBRARY.profile(choice.profile)
    fit = judge(profile, here, lock=LOCKS[profile.name], backend="venv")
    assert isinstance(native, HostError) == (fit.verdict == "no")
    if isinstance(native, HostError):
        assert "work" in native.hint
        assert " here in a Docker image" in native.hint
        assert "See `envbuilder doctor`." in native.hint
        assert "--profile cpu" not in native.hint


def test_a_native_environment_is_refused_with_the_way_out(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    forky = {"containers": DOCKER, "os_version": "Debian GNU/Linux forky/sid"}
    on(monkeypatch, replace(host_trees.recorded("lunar-lake"), **forky))
    refused = outcome(found, backend="venv")
    assert isinstance(refused, HostError)
    assert refused.message.startswith(
        "profile 'xpu' cannot run on this host with --backend venv: Level Zero"
    )
    assert refused.hint == (
        "xpu works here in a Docker image, or natively once Level Zero is installed."
        " See `envbuilder doctor`."
    )
    assert outcome(found) == "docker"
    assert outcome(found, profile="xpu") == "docker"
    assert outcome(found, profile="xpu", running=False) == "docker"


def test_without_the_engine_the_way_out_is_the_hint(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 4, and no advice to take the backend that does not work either."""
    here = host_trees.recorded("lunar-lake")
    on(monkeypatch, here)

    def module(name: str) -> Any:
        assert name.endswith(".docker")
        return SimpleNamespace(prepare=lambda build: connection.connect())

    monkeypatch.setattr(pipeline, "import_module", module)
    for running in (True, False):
        error = outcome(found, profile="xpu", running=running)
        assert isinstance(error, ToolError)
        assert error.exit_code == 4
        assert error.hint.startswith("xpu works here in a Docker image once a container engine")
        assert "--backend venv" not in error.hint


def test_an_image_that_was_asked_for_is_of_the_accelerators_profile(found: Settings) -> None:
    """Who asks for an image has an engine where it will run."""
    here = host_trees.recorded("lunar-lake")
    image = choice.choose(LIBRARY, found, here, backend="docker").profile
    assert (image.name, choice.choose(LIBRARY, found, here).profile.name) == ("xpu", "cpu")
