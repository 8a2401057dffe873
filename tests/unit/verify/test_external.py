"""`verify --python`: the payload in an interpreter that envbuilder did not build."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.build.payload import TIMEOUT_SECONDS
from envbuilder.build.request import Request
from envbuilder.core import process, resources
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import HostError
from envbuilder.core.settings import Configuration
from envbuilder.host import probe
from envbuilder.host.model import Cpu, Host
from envbuilder.payload import start as payload_start
from envbuilder.payload.machine import threads
from envbuilder.payload.start import AS_FOUND
from envbuilder.profiles import profile as profiles
from envbuilder.verify import external

if TYPE_CHECKING:
    from collections.abc import Callable

    from envbuilder.core.settings import Settings

PLAIN = Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.39",
    cpu=Cpu(flags=("avx2",), threads=2),
)
PROGRAM = Path("mine/python")
DRIVERS = "/usr/lib/wsl/lib"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Host], None]:
    """A plain host; `machine(other)` changes it."""

    def become(other: Host) -> None:
        monkeypatch.setattr(probe, "host", lambda *args, **options: other)

    become(PLAIN)
    return become


@pytest.fixture
def notes() -> list[str]:
    return []


def prepare(settings: Settings, notes: list[str], *, inherit: bool = False, **asked: Any) -> Any:
    request = Request(**asked)
    return external.prepare(
        PROGRAM, request, settings, PlainProgress(notes.append), inherit=inherit
    )


def test_an_interpreter_of_the_user_is_taken_as_it_is(found: Settings, notes: list[str]) -> None:
    expects, facts, _ = prepare(found, notes, profile="cpu")
    # Its torch is not ours to demand; everything else is.
    shipped = profiles.load("cpu", (resources.profiles_dir(),)).expects
    assert shipped.version != ""
    values = msgspec.structs.asdict(shipped) | {"version": ""}
    assert expects == profiles.Expected(**values, framework="torch")
    path = str(Path.cwd() / PROGRAM)
    assert facts == {
        "profile": "cpu",
        "backend": "external",
        "artifact": {"kind": "interpreter", "ref": path, "digest": None},
        "fingerprint": None,
        "host": msgspec.to_builtins(PLAIN),
    }


def test_an_interpreter_cannot_make_up_for_the_host(found: Settings, notes: list[str]) -> None:
    with pytest.raises(HostError, match="NVIDIA"):
        prepare(found, notes, profile="cuda")
    expects, _, _ = prepare(found, notes, profile="cuda", force=True)
    assert expects.device == "cuda"


def test_what_the_locked_wheels_need_does_not_count(
    found: Settings, notes: list[str], machine: Callable[[Host], None]
) -> None:
    machine(msgspec.structs.replace(PLAIN, libc="glibc 2.5"))
    prepare(found, notes, profile="cpu")


def test_a_profile_without_a_native_backend_does_not_fit(found: Settings, notes: list[str]) -> None:
    folder = found.config_dir / "profiles"
    folder.mkdir(parents=True)
    (folder / "image.yaml").write_text("description: Mine\nextends: cpu\nbackends: [docker]\n")
    with pytest.raises(HostError, match="it has no backend venv"):
        prepare(found, notes, profile="image")


def test_the_host_decides_for_an_interpreter_too(found: Settings, notes: list[str]) -> None:
    _, facts, _ = prepare(found, notes)
    assert facts["profile"] == "cpu"
    assert any("profile cpu: no accelerator fits this host" in note for note in notes)
    mine = msgspec.structs.replace(found, configuration=Configuration(profile="zendnn"))
    with pytest.raises(HostError, match="avx512"):
        prepare(mine, notes)
    assert "profile zendnn: set in the configuration" in notes[-1]


class Started:
    """A pretended interpreter, and how the payload was started in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.argv: list[str] = []
        self.options: dict[str, Any] = {}
        monkeypatch.setattr(process, "run", self._run)

    def _run(self, argv: list[str], **options: Any) -> process.Completed:
        self.argv, self.options = argv, options
        self.payload = Path(argv[argv.index("--promise") - 1])
        with zipfile.ZipFile(self.payload) as archive:
            self.members = archive.namelist()
        self.work = list(options["cwd"].iterdir())
        options["on_stdout"]("a line of the payload")
        return process.Completed(argv=tuple(argv), returncode=7, stdout="", stderr="", seconds=0.0)

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
    _, _, start = prepare(settings, notes, inherit=inherit, profile="cpu")
    done: process.Completed = start(
        lambda shown: ("verify", "--data", shown["data"]), {"data": Path("digits")}, notes.append
    )
    return done


@pytest.mark.parametrize("inherit", [False, True])
def test_the_payload_is_started_in_a_folder_that_goes(
    found: Settings, notes: list[str], started: Started, inherit: bool
) -> None:
    done = begin(found, notes, inherit=inherit)
    assert done.returncode == 7
    assert notes[-1] == "a line of the payload"
    assert started.argv[0] == str(Path.cwd() / PROGRAM)
    assert started.argv[-3:] == ["verify", "--data", str(Path.cwd() / "digits")]
    assert "payload/verify.py" in started.members
    assert started.options["timeout"] == TIMEOUT_SECONDS
    assert started.options["env"] == {"OMP_NUM_THREADS": str(threads.decide(threads.fetch()))}
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
    assert notes[0] == "note: not passed to the verification: LD_LIBRARY_PATH, PYTHONPATH"
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
    assert started.promise == AS_FOUND
