"""`verify --sif`: which images are the profile's, and what the payload is given in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.build import conventions
from envbuilder.build.payload import payload_pyz
from envbuilder.build.request import Request
from envbuilder.containers import apptainer
from envbuilder.core import process, resources
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import HostError, InvalidError, ToolError, VerifyError
from envbuilder.host import probe
from envbuilder.host.model import Cpu, Host
from envbuilder.profiles import lock as locks
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import lock_digest
from envbuilder.verify import sif, start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.profile import Profile

HOST = Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.17",  # too old for the wheels, which the image's glibc serves
    cpu=Cpu(flags=("avx2",), threads=2),
)
FINGERPRINT = "f" * 64


def shipped(name: str = "cpu") -> Profile:
    return profiles.load(name, (resources.profiles_dir(),))


def labels(**changes: str) -> dict[str, str]:
    """The labels of an image of the shipped lock of `cpu`."""
    lock = locks.load(resources.profiles_dir() / "locks" / "cpu.json")
    stated = {"fingerprint": FINGERPRINT, "profile": "cpu", "lock": lock_digest(lock)}
    return {f"io.envbuilder.{key}": text for key, text in (stated | changes).items()}


class Apptainer:
    """An Apptainer that answers with labels, and as whose child the payload ends in some way."""

    def __init__(self) -> None:
        self.labels = labels()
        self.ended = (0, "")
        self.ran: list[tuple[Sequence[str], Mapping[str, Any]]] = []
        self.payload = b""

    def run(self, argv: Sequence[str], **options: Any) -> process.Completed:
        self.ran.append((argv, options))
        (bind,) = (word for word in argv if word.endswith(f"target={conventions.PAYLOAD},readonly"))
        source = bind.removeprefix("type=bind,source=").partition(",")[0]
        self.payload = Path(source).read_bytes()
        code, err = self.ended
        return process.Completed(
            argv=tuple(argv), returncode=code, stdout="", stderr=err, seconds=1
        )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Apptainer:
    program = Apptainer()
    monkeypatch.setattr(apptainer, "require", lambda: None)
    monkeypatch.setattr(apptainer, "labels", lambda image: program.labels)
    monkeypatch.setattr(process, "run", program.run)
    monkeypatch.setattr(probe, "host", lambda *args, **options: HOST)
    return program


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.sif"
    path.write_bytes(b"an image")
    return path


def prepare(image: Path, settings: Settings, **asked: Any) -> Any:
    return sif.prepare(
        image, Request(**{"profile": "cpu", **asked}), settings, PlainProgress(lambda line: None)
    )


def run(started: Any, folders: Mapping[str, Path]) -> process.Completed:
    done: process.Completed = started[2](
        lambda paths: ("verify", *sorted(paths.values())), folders, lambda line: None
    )
    return done


def test_the_report_names_the_image_by_its_bytes(
    image: Path, found: Settings, installed: Apptainer
) -> None:
    expects, facts, _ = prepare(image, found)
    assert expects == shipped().expected("3.11")
    assert facts["backend"] == "apptainer"
    assert facts["fingerprint"] == FINGERPRINT
    assert facts["artifact"] == {
        "kind": "image",
        "ref": str(image),
        "digest": f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}",
    }


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"profile": "zendnn"}, "an image of the profile zendnn, not cpu"),
        ({"profile": ""}, "not an image that envbuilder built"),
        ({"fingerprint": ""}, "not an image that envbuilder built"),
        ({"fingerprint": "../../x"}, "not an image that envbuilder built"),
        ({"lock": "0" * 64}, r"built from another lock of cpu .*\(000000000000 instead of "),
        ({"profile": "\x1b[2J"}, "an image of the profile [^\x1b]*, not cpu"),
    ],
)
def test_another_image_is_refused(
    stated: dict[str, str], message: str, image: Path, found: Settings, installed: Apptainer
) -> None:
    installed.labels = labels(**stated)
    with pytest.raises(InvalidError, match=message) as raised:
        prepare(image, found)
    assert "envbuilder build --profile cpu --backend docker" in raised.value.hint


def test_a_host_that_cannot_run_the_profile_is_refused_first(
    image: Path, found: Settings, installed: Apptainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ToolError("apptainer: not found")

    monkeypatch.setattr(apptainer, "require", missing)
    with pytest.raises(HostError):
        prepare(image, found, profile="cuda")
    with pytest.raises(InvalidError, match=r"no Python 3\.99"):
        prepare(image, found, python="3.99")
    with pytest.raises(ToolError):
        prepare(image, found)


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
    assert run(prepare(image, found), {"data": tmp_path}).returncode == 0
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
    assert inside["LD_LIBRARY_PATH"] == apptainer.DRIVERS
    assert inside["PYTHONPATH"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in inside  # it chooses nothing for the CPU


def test_a_container_that_does_not_start_is_no_signal_of_the_payload(
    image: Path, found: Settings, installed: Apptainer
) -> None:
    installed.ended = (255, "FATAL:   while extracting cpu.sif: no space left on device\n")
    with pytest.raises(VerifyError, match="cannot be started: while extracting") as raised:
        run(prepare(image, found), {})
    assert str(image) in raised.value.hint


@pytest.mark.parametrize("other", [{"backend": "docker"}, {}])
def test_one_thing_is_verified(other: dict[str, str], image: Path, found: Settings) -> None:
    executable = None if other else Path("/usr/bin/python3")
    with pytest.raises(InvalidError, match="leave out --backend and --python"):
        start.prepare(
            Request(profile="cpu", **other),  # type: ignore[arg-type]
            executable,
            found,
            PlainProgress(lambda line: None),
            image=image,
        )
