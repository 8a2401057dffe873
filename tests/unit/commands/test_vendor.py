"""A vendor of accelerators is a row: one that nobody has is added, and every command knows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.builds import isolation
from envbuilder.builds.backends import devices
from envbuilder.core import resources
from envbuilder.core.settings import load as load_settings
from envbuilder.host import accelerators
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.host.gpus import pci
from envbuilder.host.gpus.accelerator import Accelerator, Finding, Needs, Place, blocked
from envbuilder.host.model import Gpu, Host
from envbuilder.host.snapshot import Reader, Snapshot
from envbuilder.payload.machine import accelerators as payload, device
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.profile import load as load_profile, search_path
from tests.support import host_trees
from tests.support.command_line import Command
from tests.support.shipped import LIBRARY

NODE = "dev/acme0"
PROFILE = """\
extends: _slim
description: PyTorch for ACME's accelerators
accelerator: acme
platforms: [linux/amd64]
backends: [docker, venv]
python: {default: "3.11", supported: ["3.11"]}
requirements: ["torch==2.14.1"]
run: {devices: [/dev/acme0]}
requires: {kernels: [roadrunner]}
expects: {device: acme}
"""


def read(reader: Reader) -> None:
    reader.node(NODE)


def decide(snapshot: Snapshot, devices: Sequence[pci.Device], place: Place) -> tuple[Gpu, ...]:
    """A card with the only chip there is, usable by who may open its node."""
    access = pci.opened(snapshot, f"/{NODE}", "--device /dev/acme0", is_missing=True) or pci.USABLE
    return tuple(
        Gpu(
            vendor="acme",
            name="ACME Roadrunner",
            family="roadrunner",
            bus=card.bus,
            state=access.state,
            detail=access.detail,
            obstacle=access.obstacle,
        )
        for card in devices
        if card.vendor == ROW.pci
    )


def judge(gpu: Gpu, needs: Needs, native: bool) -> list[Finding]:
    if gpu.state != "usable":
        return [blocked("no", gpu)]
    level = "note" if gpu.family in needs.kernels else "no"
    return [Finding(level, f"{gpu.name} is a {gpu.family}", "kernels", gpu)]  # type: ignore[arg-type]


def fixes(gpu: Gpu, host: Host) -> dict[str, str]:
    return {"node-missing": "Run `sudo modprobe acme`.", "kernels": "Order a newer one."}


ROW = Accelerator(
    name="acme",
    vendor="acme",
    brand="ACME",
    aliases=("coyote",),
    pci=0x1ACE,
    processing=True,
    read=read,
    decide=decide,
    judge=judge,
    architecture=lambda gpu: gpu.family,
    choosing=("ACME_VISIBLE",),
    cdi="acme.com/gpu=all",
    install=lambda gpu, host, needed: "Run `sudo modprobe acme`.",
    fixes=fixes,
)
OF_PAYLOAD = payload.Accelerator(
    name="acme",
    device="acme",
    drives=lambda torch: True,
    runtime=lambda torch: "ACME 1.0",
    describe=lambda torch: {"name": "ACME Roadrunner"},
    build="an ACME build",
    state="acme",
    visible="ACME_VISIBLE",
    nodes=("/dev/acme0",),
    remedy="Load the kernel driver acme",
)


def missing(row: Accelerator, of_payload: payload.Accelerator | None, profiles: Path) -> set[str]:
    """The pieces that a vendor lacks without which a command says nothing of its GPUs."""
    default = Accelerator(name=row.name)
    needed = ["vendor", "brand", "aliases", "decide", "judge"]
    if row.pci is not None:
        needed += ["read", "install", "choosing"]
    if row.code:
        needed += ["architecture", "runs"]
    lacks = {name for name in needed if getattr(row, name) == getattr(default, name)}
    if row.pci is not None and not (profiles / f"{row.name}.yaml").exists():
        lacks.add("profile")
    if of_payload is None or of_payload.name != row.name:
        return lacks | {"payload"}
    if not (of_payload.build and of_payload.state):
        lacks.add("payload")
    if row.choosing and of_payload.visible != row.choosing[0]:
        lacks.add("visible")
    return lacks


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with such a card, and a profile for it that is locked; return the machine."""
    cpu = ACCELERATORS["cpu"]
    monkeypatch.delitem(ACCELERATORS, "cpu")
    monkeypatch.setitem(ACCELERATORS, "acme", ROW)
    monkeypatch.setitem(ACCELERATORS, "cpu", cpu)
    monkeypatch.setitem(payload.ACCELERATORS, "acme", OF_PAYLOAD)
    monkeypatch.setenv("ENVBUILDER_CONFIG_DIR", str(tmp_path / "config"))
    folder = tmp_path / "config/profiles"
    (folder / "locks").mkdir(parents=True)
    (folder / "acme.yaml").write_text(PROFILE)
    folders = search_path(None, tmp_path / "config")
    shipped = LIBRARY.lock("cpu")
    assert shipped
    inputs = profile_lock.inputs_digest(load_profile("acme", folders))
    targets = (profile_lock.select(shipped, "linux/amd64", "3.11"),)
    lock = replace(shipped, profile="acme", inputs=inputs, targets=targets)
    (folder / "locks/acme.json").write_text(profile_lock.dump(lock))
    data = host_trees.load("zen3")
    host_trees.add_device(data, "0000:01:00.0", "1ace:0001", **{"class": "120000"})
    data["nodes"][NODE] = True
    root = tmp_path / "root"
    root.mkdir()
    return host_trees.plant(root, data)


def test_its_gpu_is_named_and_its_profile_chosen(acme: Path, envbuilder: Command) -> None:
    data = json.loads(envbuilder("detect", "--json", "--root", str(acme)).out)
    (gpu,) = data["host"]["gpus"]
    assert gpu["vendor"] == "acme"
    assert gpu["name"] == "ACME Roadrunner"
    assert gpu["state"] == "usable"
    assert data["profile"] == "acme"
    (fit,) = [fit for fit in data["fits"] if fit["profile"] == "acme"]
    assert "ACME Roadrunner is a roadrunner" in fit["reasons"]


def test_kernels_for_another_chip_do_not_fit(
    acme: Path, tmp_path: Path, envbuilder: Command
) -> None:
    data = json.loads(envbuilder("detect", "--json", "--root", str(acme)).out)
    data["host"]["gpus"][0]["family"] = "tortoise"
    host = tmp_path / "host.json"
    host.write_text(json.dumps(data))
    data = json.loads(envbuilder("detect", "--json", "--target-host", str(host)).out)
    (fit,) = [fit for fit in data["fits"] if fit["profile"] == "acme"]
    assert fit["verdict"] == "no"
    assert data["profile"] == "cpu"


def test_the_doctor_says_how_its_node_gets_there(acme: Path, envbuilder: Command) -> None:
    (acme / NODE).unlink()
    said = envbuilder("doctor", "--json", "--root", str(acme), code=3).out
    problems = json.loads(said)["problems"]
    (problem,) = [p for p in problems if p["code"] == "node-missing"]
    assert problem["fix"] == "Run `sudo modprobe acme`."
    assert "ACME Roadrunner" in problem["text"]


def test_a_rendered_compose_file_passes_its_node_on(
    acme: Path, tmp_path: Path, envbuilder: Command
) -> None:
    envbuilder("render", "--profile", "acme", "--target", "compose", "-o", str(tmp_path / "out"))
    assert any("/dev/acme0" in p.read_text() for p in (tmp_path / "out").iterdir() if p.is_file())


def test_its_variables_and_its_device_of_all_reach_an_environment(acme: Path) -> None:
    chosen = {"ACME_VISIBLE": "1"}
    assert devices.visible("acme", {}, chosen | {"OTHER": "1"}) == (chosen, "")
    assert isolation.payload_environment(chosen | {"OTHER": "1"}) == chosen
    profile = load_profile("acme", search_path(None, load_settings().config_dir))
    access = devices.devices(profile, {"/dev/acme0": 0})
    assert access.nodes == ("/dev/acme0",)
    assert devices.by_cdi(access, profile, {"acme.com/gpu=all"}).cdi == ("acme.com/gpu=all",)


def test_its_other_names_lead_to_its_profile(acme: Path, envbuilder: Command) -> None:
    assert "Did you mean 'acme'?" in envbuilder("profiles", "coyote", code=2).err


def test_the_payload_asks_its_row(acme: Path) -> None:
    assert payload.device_of("acme") == "acme"
    with pytest.raises(device.CheckError, match="Load the kernel driver acme"):
        device.require_nodes("acme")


@pytest.mark.parametrize("name", [row.name for row in accelerators.of_gpus()])
def test_no_vendor_lacks_a_piece(name: str) -> None:
    of_payload = payload.ACCELERATORS.get(name)
    assert missing(ACCELERATORS[name], of_payload, resources.profiles_dir()) == set()


@pytest.mark.parametrize(
    "piece",
    [
        "vendor",
        "brand",
        "aliases",
        "read",
        "decide",
        "judge",
        "install",
        "choosing",
    ],
)
def test_a_missing_piece_of_a_row_is_noticed(piece: str, acme: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config/profiles"
    assert missing(ROW, OF_PAYLOAD, folder) == set()
    without = replace(ROW, **{piece: getattr(Accelerator(name="acme"), piece)})
    assert piece in missing(without, OF_PAYLOAD, folder)


def test_a_missing_profile_and_a_missing_row_of_the_payload_are_noticed(tmp_path: Path) -> None:
    assert missing(ROW, None, tmp_path) == {"profile", "payload"}
