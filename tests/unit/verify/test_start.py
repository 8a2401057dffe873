"""Preparing the start of the payload: what is built, what is refused, and how it is started."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.builds import conventions, execute
from envbuilder.builds.backends import integrity
from envbuilder.builds.payload import TIMEOUT_SECONDS, payload_pyz
from envbuilder.builds.plan import Plan
from envbuilder.builds.request import Request
from envbuilder.containers import apptainer
from envbuilder.core import process
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import HostError, InvalidError, ToolError, VerifyError
from envbuilder.core.settings import Settings
from envbuilder.host import interpreters, probe
from envbuilder.host.model import Host
from envbuilder.packages import fetch
from envbuilder.payload import start as payload_start
from envbuilder.payload.machine import threads
from envbuilder.profiles import lock as locks, profile as profiles
from envbuilder.verify import start
from tests.support.pipeline import PLAIN, PYTHON
from tests.support.programs import completed
from tests.support.progress import SILENT
from tests.support.recorded import replaced
from tests.support.shipped import shipped_lock, shipped_profile


def test_another_framework_is_refused_in_a_sentence() -> None:
    start.require_torch("`tune`", "cpu", profiles.Expected(device="cpu", version=""))
    expected = profiles.Expected(device="cpu", version="", framework="jax")
    with pytest.raises(InvalidError) as raised:
        start.require_torch("`tune`", "jax-cpu", expected)
    assert raised.value.message == ("`tune` only supports PyTorch, but profile 'jax-cpu' has JAX")
    assert raised.value.exit_code == 2


PROGRAM = Path("mine/python")
DRIVERS = "/usr/lib/wsl/lib"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Host], None]:
    """A plain host; `machine(other)` changes it."""

    def become(other: Host) -> None:
        replaced(monkeypatch, probe, "host", other)

    become(PLAIN)
    return become


@pytest.fixture
def notes() -> list[str]:
    return []


def prepare(settings: Settings, notes: list[str], *, inherit: bool = False, **asked: Any) -> Any:
    request = Request(**asked)
    return start.prepare_interpreter(
        PROGRAM, request, settings, PlainProgress(notes.append), inherit=inherit
    )


def test_an_interpreter_of_the_user_is_taken_as_it_is(found: Settings, notes: list[str]) -> None:
    subject = prepare(found, notes, profile="cpu")
    # Its torch is not ours to demand; everything else is.
    shipped = shipped_profile("cpu").expects
    assert shipped.version != ""
    values = msgspec.structs.asdict(shipped) | {"version": ""}
    assert subject.expects == profiles.Expected(**values, framework="torch")
    path = str(Path.cwd() / PROGRAM)
    assert subject.facts == {
        "profile": "cpu",
        "backend": "external",
        "artifact": {"kind": "interpreter", "ref": path, "digest": None},
        "fingerprint": None,
        "host": msgspec.to_builtins(PLAIN),
    }


def test_an_interpreter_cannot_make_up_for_the_host(found: Settings, notes: list[str]) -> None:
    with pytest.raises(HostError, match="NVIDIA"):
        prepare(found, notes, profile="cuda")
    assert prepare(found, notes, profile="cuda", force=True).expects.device == "cuda"


def test_what_the_locked_wheels_need_does_not_count(
    found: Settings, notes: list[str], machine: Callable[[Host], None]
) -> None:
    machine(msgspec.structs.replace(PLAIN, libc="glibc 2.5"))
    prepare(found, notes, profile="cpu")


class Started:
    """A pretended interpreter, and how the payload was started in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.argv: list[str] = []
        self.options: dict[str, Any] = {}
        monkeypatch.setattr(process, "run", self._run)

    def _run(self, argv: list[str], **options: Any) -> process.Completed:
        self.argv = argv
        self.options = options
        self.payload = Path(argv[argv.index("--promise") - 1])
        with zipfile.ZipFile(self.payload) as archive:
            self.members = archive.namelist()
        self.work = list(options["cwd"].iterdir())
        options["on_stdout"]("a line of the payload")
        return completed(7)

    @property
    def promise(self) -> payload_start.Start:
        return payload_start.parse(self.argv[self.argv.index("--promise") + 1])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    monkeypatch.setenv("PYTHONPATH", "/opt/modules")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/modules/lib:{DRIVERS}")
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    return Started(monkeypatch)


def begin(settings: Settings, notes: list[str], *, inherit: bool = False) -> process.Completed:
    subject = prepare(settings, notes, inherit=inherit, profile="cpu")
    done: process.Completed = subject.run(
        lambda shown: ("verify", "--data", shown["data"]), {"data": Path("digits")}, notes.append
    )
    return done


@pytest.mark.parametrize("inherit", [False, True])
def test_the_payload_is_started_in_a_folder_that_goes(
    found: Settings,
    notes: list[str],
    started: Started,
    inherit: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert begin(found, notes, inherit=inherit).returncode == 7
    assert notes[-1] == "a line of the payload"
    assert started.argv[0] == str(Path.cwd() / PROGRAM)
    assert started.argv[-3:] == ["verify", "--data", str(Path.cwd() / "digits")]
    assert "payload/verify.py" in started.members
    assert started.options["timeout"] == TIMEOUT_SECONDS
    assert started.options["env"] == {"OMP_NUM_THREADS": str(threads.decide(threads.fetch()))}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    begin(found, notes, inherit=inherit)
    assert started.options["env"] == {}
    assert started.options["base"]["OMP_NUM_THREADS"] == "1"
    assert started.payload.name == "payload.pyz"
    assert started.payload.parent.name.startswith("envbuilder-")
    # Its working directory holds no module that could be imported, and nothing is left of it.
    assert started.work == []
    assert not started.payload.exists()
    assert not started.options["cwd"].exists()


def test_the_payload_is_isolated_and_promised_to_be(
    found: Settings, notes: list[str], started: Started
) -> None:
    begin(found, notes)
    assert notes[0] == "note: variables not passed to the verification: LD_LIBRARY_PATH, PYTHONPATH"
    program, isolated, option, bytecode, payload, *_ = started.argv
    assert (isolated, option) == ("-I", "-X")
    folder = bytecode.removeprefix("pycache_prefix=")
    assert Path(folder).parent == Path(payload).parent
    base = started.options["base"]
    assert "PYTHONPATH" not in base
    assert base["LD_LIBRARY_PATH"] == DRIVERS
    assert started.promise == payload_start.Start(
        as_found=False,
        executable=program,
        bytecode=folder,
        variables={"LD_LIBRARY_PATH": DRIVERS},
    )


def test_with_inherit_it_gets_everything_and_promises_nothing(
    found: Settings, notes: list[str], started: Started
) -> None:
    begin(found, notes, inherit=True)
    assert notes == ["a line of the payload"]
    assert started.argv[1] == str(started.payload)
    base = started.options["base"]
    assert base["PYTHONPATH"] == "/opt/modules"
    assert base["LD_LIBRARY_PATH"] == f"/opt/modules/lib:{DRIVERS}"
    assert started.promise == payload_start.AS_FOUND


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that were executed, each of which left an environment without a payload."""
    executed: list[Plan] = []

    def execute_plan(plan: Plan, *rest: Any) -> bool:
        executed.append(plan)
        program = Path(plan.artifact.ref) / "bin/python"
        program.parent.mkdir(parents=True)
        program.touch()
        integrity.close(Path(plan.artifact.ref), {"fingerprint": plan.fingerprint})
        return True

    replaced(monkeypatch, interpreters, "find", PYTHON)
    replaced(monkeypatch, fetch, "fetch", 0)
    monkeypatch.setattr(execute, "execute", execute_plan)
    return executed


def verify_venv(settings: Settings, plans: list[Plan]) -> dict[str, Any]:
    """Return what a report says of an environment on `cpu`; planning it builds nothing."""
    request = Request(profile="cpu", backend="venv")
    before = len(plans)
    planned = start.prepare(request, None, settings, SILENT)
    assert len(plans) == before
    subject, _ = planned.built()
    assert subject.expects == shipped().expected("3.11")
    with pytest.raises(VerifyError, match=r"payload\.pyz was changed after the build"):
        subject.run(lambda paths: (), {}, SILENT.note)
    return subject.facts


def test_an_environment_is_built_once_and_verified_as_it_is(
    found: Settings, plans: list[Plan]
) -> None:
    facts = verify_venv(found, plans)
    (plan,) = plans
    prefix = Path(plan.artifact.ref)
    artifact = {"kind": "venv", "ref": str(prefix), "digest": integrity.portable_digest(prefix)}
    assert facts == {
        "profile": "cpu",
        "backend": "venv",
        "artifact": artifact,
        "fingerprint": plan.fingerprint,
        "host": msgspec.to_builtins(PLAIN),
    }
    assert verify_venv(found, plans) == facts
    # One that lost files is not repaired: the report states what is wrong.
    (prefix / "bin/python").unlink()
    assert verify_venv(found, plans) == facts | {"artifact": artifact | {"digest": None}}
    assert plans == [plan]


def test_what_a_first_verification_does_is_said_before(
    found: Settings, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    request = Request(profile="cpu", backend="venv")
    assert re.fullmatch(
        r"first: fetch 2\d\d MB, build the environment and train MNIST:"
        r" about 2 min on 2 cores beside the download",
        start.prepare(request, None, found, SILENT).outlook(found, quick=False),
    )
    quick = start.prepare(request, None, found, SILENT).outlook(found, quick=True)
    assert "about 1 min on 2 cores" in quick
    verify_venv(found, plans)
    assert start.prepare(request, None, found, SILENT).outlook(found, quick=False) == ""


def test_what_is_built_to_be_run_is_attested_by_build_alone(
    found: Settings, plans: list[Plan]
) -> None:
    prefix = Path(verify_venv(found, plans)["artifact"]["ref"])
    earlier = prefix.with_name(f"{prefix.name}.provenance.json")
    assert not earlier.exists()
    earlier.touch()
    shutil.rmtree(prefix)
    verify_venv(found, plans)
    assert not earlier.exists()


def test_what_cannot_run_here_is_not_built(found: Settings, plans: list[Plan]) -> None:
    request = Request(profile="cuda", backend="venv")
    with pytest.raises(HostError, match="NVIDIA"):
        start.prepare(request, None, found, SILENT)
    assert plans == []


# Too old for the wheels, which the image's glibc serves.
HOST = msgspec.structs.replace(PLAIN, libc="glibc 2.17")
FINGERPRINT = "f" * 64


def shipped(name: str = "cpu") -> profiles.Profile:
    return shipped_profile(name)


def labels(**changes: str) -> dict[str, str]:
    """The labels of an image of the shipped lock of `cpu`."""
    lock = shipped_lock("cpu")
    stated = {"fingerprint": FINGERPRINT, "profile": "cpu", "lock": locks.lock_digest(lock)}
    return {f"io.envbuilder.{key}": text for key, text in (stated | changes).items()}


class Apptainer:
    """An Apptainer that answers with labels, and as whose child the payload ends in some way."""

    def __init__(self) -> None:
        self.labels = labels()
        self.ended = (0, "", "")
        self.ran: list[tuple[Sequence[str], Mapping[str, Any]]] = []
        self.payload = b""

    def run(self, argv: Sequence[str], **options: Any) -> process.Completed:
        self.ran.append((argv, options))
        (bind,) = (word for word in argv if word.endswith(f"target={conventions.PAYLOAD},readonly"))
        source = bind.removeprefix("type=bind,source=").partition(",")[0]
        self.payload = Path(source).read_bytes()
        return completed(*self.ended)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Apptainer:
    program = Apptainer()
    monkeypatch.setattr(apptainer, "require", lambda: None)
    monkeypatch.setattr(apptainer, "labels", lambda image: program.labels)
    monkeypatch.setattr(process, "run", program.run)
    replaced(monkeypatch, probe, "host", HOST)
    return program


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.sif"
    path.write_bytes(b"an image")
    return path


def prepare_image(image: Path, settings: Settings, **asked: Any) -> Any:
    return start.prepare_image(image, Request(**{"profile": "cpu", **asked}), settings, SILENT)


def run(started: Any, folders: Mapping[str, Path]) -> process.Completed:
    done: process.Completed = started.run(
        lambda paths: ("verify", *sorted(paths.values())), folders, lambda line: None
    )
    return done


def test_the_report_names_the_image_by_its_bytes(
    image: Path, found: Settings, installed: Apptainer
) -> None:
    expects, facts, *_ = prepare_image(image, found)
    assert expects == shipped().expected("3.11")
    assert (facts["backend"], facts["fingerprint"]) == ("apptainer", FINGERPRINT)
    assert facts["artifact"] == {
        "kind": "image",
        "ref": str(image),
        "digest": f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}",
    }


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"profile": "zendnn"}, "the image is for profile zendnn, not cpu"),
        ({"profile": ""}, "envbuilder did not build this image"),
        ({"fingerprint": ""}, "envbuilder did not build this image"),
        ({"fingerprint": "../../x"}, "envbuilder did not build this image"),
        (
            {"lock": "0" * 64},
            r"not built from the current lock of cpu .*\(000000000000 instead of ",
        ),
        ({"profile": "\x1b[2J"}, "the image is for profile [^\x1b]*, not cpu"),
    ],
)
def test_another_image_is_refused(
    stated: dict[str, str], message: str, image: Path, found: Settings, installed: Apptainer
) -> None:
    installed.labels = labels(**stated)
    with pytest.raises(InvalidError, match=message) as raised:
        prepare_image(image, found)
    assert "envbuilder build --profile cpu --backend docker" in raised.value.hint


def test_a_host_that_cannot_run_the_profile_is_refused_first(
    image: Path, found: Settings, installed: Apptainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ToolError("apptainer not found")

    monkeypatch.setattr(apptainer, "require", missing)
    with pytest.raises(HostError):
        prepare_image(image, found, profile="cuda")
    with pytest.raises(InvalidError, match=r"no Python 3\.99"):
        prepare_image(image, found, python="3.99")
    with pytest.raises(ToolError):
        prepare_image(image, found)


def test_the_payload_is_this_envbuilders_and_started_as_promised(
    image: Path,
    found: Settings,
    installed: Apptainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("APPTAINER_BIND", "/mine:/opt/env")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    assert run(prepare_image(image, found), {"data": tmp_path}).returncode == 0
    ((argv, options),) = installed.ran
    assert installed.payload == payload_pyz()
    assert f"type=bind,source={tmp_path},target=/data,readonly" in argv
    assert argv[-2:] == ("verify", "/data")
    begin = argv.index(str(image)) + 1
    assert argv[begin : begin + 2] == ("/opt/env/bin/python", "-I")
    base = options["base"]
    assert not {"PYTHONPATH", "APPTAINER_BIND"} & {*base}
    # What Apptainer unpacks goes where the user wants it, and is removed if it cannot do that.
    assert Path(base["APPTAINER_TMPDIR"]).parent == tmp_path
    assert not Path(base["APPTAINER_TMPDIR"]).exists()
    inside = {
        k.removeprefix("APPTAINERENV_"): v for k, v in base.items() if k.startswith("APPTAINERENV_")
    }
    assert inside["LD_PRELOAD"] == ":".join(shipped().preload)
    assert (inside["LD_LIBRARY_PATH"], inside["PYTHONPATH"]) == (apptainer.DRIVERS, "")
    assert "CUDA_VISIBLE_DEVICES" not in inside  # it chooses nothing for the CPU


def test_a_container_that_does_not_start_is_no_signal_of_the_payload(
    image: Path, found: Settings, installed: Apptainer
) -> None:
    installed.ended = (255, "", "FATAL:   while extracting cpu.sif: no space left on device\n")
    with pytest.raises(VerifyError, match="cannot be started: while extracting") as raised:
        run(prepare_image(image, found), {})
    assert str(image) in raised.value.hint


@pytest.mark.parametrize(
    "option", [{"backend": "venv"}, {"base_image": "debian:12"}, {"python": "3.11"}]
)
def test_an_interpreter_takes_no_option_of_a_build(option: dict[str, str], found: Settings) -> None:
    request = Request(profile="cpu", **option)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="cannot be combined with build options"):
        start.prepare(request, Path("python"), found, PlainProgress())


@pytest.mark.parametrize("other", [{"backend": "docker"}, {}])
def test_one_thing_is_verified(other: dict[str, str], image: Path, found: Settings) -> None:
    executable = None if other else Path("/usr/bin/python3")
    with pytest.raises(InvalidError, match="cannot be combined with --backend or --python"):
        start.prepare(
            Request(profile="cpu", **other),  # type: ignore[arg-type]
            executable,
            found,
            SILENT,
            image=image,
        )


def test_a_measurement_may_refuse_what_an_interpreter_has(found: Settings) -> None:
    subject = start.prepare(Request(profile="jax-cpu"), PROGRAM, found, SILENT)
    with pytest.raises(InvalidError, match=r"tune.* only supports PyTorch.*'jax-cpu' has JAX"):
        start.require_torch("`tune`", subject.facts["profile"], subject.expects)


def test_variables_are_passed_to_an_interpreter_of_the_user_alone(found: Settings) -> None:
    with pytest.raises(InvalidError, match="--inherit-environment requires --python"):
        start.prepare(Request(profile="cpu"), None, found, PlainProgress(), inherit=True)
