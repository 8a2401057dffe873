"""What a caller's variables may decide, and how a report is held against what was built."""

from __future__ import annotations

from typing import Any

import pytest

from envbuilder.builds import isolation
from envbuilder.core.errors import VerifyError
from envbuilder.verify.report.model import check
from envbuilder.verify.show import as_found
from tests.support.reports import whole

HARMLESS = {
    "HOME": "/home/me",
    "PATH": "/usr/bin",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "C",
    "TMPDIR": "/scratch",
    "OMP_NUM_THREADS": "4",
    "CUDA_VISIBLE_DEVICES": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "ZE_AFFINITY_MASK": "0",
    "CXX": "clang++",
}
BRINGING_CODE = {
    "PYTHONPATH": "/opt/ros/lib/python3/dist-packages",
    "PYTHONHOME": "/usr",
    "PYTHONSTARTUP": "/home/me/.pythonrc",
    "PYTHONUSERBASE": "/home/me/.local",
    "PYTHONWARNINGS": "error::foreign.Warning",
    "LD_PRELOAD": "/opt/lib/libhook.so",
    "LD_AUDIT": "/opt/lib/audit.so",
    "DYLD_INSERT_LIBRARIES": "/opt/lib/hook.dylib",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "CUDA_INJECTION64_PATH": "/opt/lib/inject.so",
    "OMP_TOOL_LIBRARIES": "/opt/lib/tool.so",
    "BASH_ENV": "/home/me/.bashenv",
}
SWITCHES = {
    "TORCH_LOGS": "+dynamo",
    "NVIDIA_TF32_OVERRIDE": "1",
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",
    "ENV": "/home/me/.shrc",
    "BASH_FUNC_cd%%": "() { :; }",
    "CONDA_PREFIX": "/opt/conda",
    "VIRTUAL_ENV": "/home/me/venv",
    "RANK": "3",
    "MASTER_ADDR": "node1",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


def test_variables_reach_the_payload_by_a_list() -> None:
    given = {**HARMLESS, **BRINGING_CODE, **SWITCHES}
    assert isolation.payload_environment(given) == HARMLESS
    assert set(isolation.left_out(given)) == set(BRINGING_CODE)
    assert isolation.left_out({**HARMLESS, **SWITCHES}) == ()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (
            "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        ),
        ("/opt/torch/lib:/usr/lib/wsl/lib::/usr/lib/wsl/lib", "/usr/lib/wsl/lib"),
        ("/usr/lib/wsl/lib/../../../../home/me/lib", ""),
        ("/usr/lib/wsl/library", ""),
        (".:lib", ""),
        ("", ""),
    ],
)
def test_of_a_library_path_only_folders_of_drivers_stay(value: str, kept: str) -> None:
    made = isolation.payload_environment({"LD_LIBRARY_PATH": value})
    assert made == ({"LD_LIBRARY_PATH": kept} if kept else {})


def test_what_is_left_out_is_said_once_and_without_values() -> None:
    assert [*isolation.notes(HARMLESS)] == []
    assert [*isolation.notes({**SWITCHES, "LD_LIBRARY_PATH": "/usr/lib/wsl/lib"})] == []
    (note,) = isolation.notes({"PYTHONPATH": "/a", "LD_PRELOAD": "/b", **SWITCHES})
    assert note == "variables not passed to the verification: LD_PRELOAD, PYTHONPATH"
    (note,) = isolation.notes({"HSA_OVERRIDE_GFX_VERSION": "10.3.0\x1b[2J"})
    assert note.startswith("HSA_OVERRIDE_GFX_VERSION=10.3.0")
    assert note.endswith("verification on that GPU fails")
    of_one = {"HSA_OVERRIDE_GFX_VERSION_1": "11.0.0", "HSA_OVERRIDE_GFX_VERSION": ""}
    (second,) = isolation.notes(of_one)
    assert second.startswith("HSA_OVERRIDE_GFX_VERSION_1=11.0.0 makes")
    assert isolation.payload_environment(of_one) == of_one, "the check is the payload's"
    assert "\x1b" not in note


def test_a_container_gets_no_code_from_its_image_but_the_profiles() -> None:
    image = [
        "PATH=/opt/env/bin:/usr/bin",
        "PYTHONPATH=/foreign",
        "LD_PRELOAD=/foreign.so",
        "LD_LIBRARY_PATH=/foreign:/usr/local/nvidia/lib64",
        "LD_DEBUG=libs",
        "PYTHON_VERSION=3.11.16",
        "LANG=C.UTF-8",
        "BROKEN",
    ]
    own = {"VIRTUAL_ENV": "/opt/env", "LD_PRELOAD": "libtcmalloc_minimal.so.4"}
    made = isolation.container_variables(image, own)
    assert made["LD_PRELOAD"] == "libtcmalloc_minimal.so.4"
    assert made["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    set_to_nothing = {name for name, value in made.items() if not value}
    assert {"PYTHONPATH", "PYTHONHOME", "LD_AUDIT", "LD_DEBUG", "BASH_ENV"} <= set_to_nothing
    assert not {"PATH", "PYTHON_VERSION", "LANG", "VIRTUAL_ENV"} & set(made)
    promise = isolation.container_start(made)
    assert promise.variables == {
        "LD_PRELOAD": "libtcmalloc_minimal.so.4",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    }
    assert (promise.prefix, promise.as_found) == ("/opt/env", False)


def report(**origins: Any) -> dict[str, Any]:
    fixed = {
        "as_found": False,
        "prefix": "/envs/cpu",
        "base_prefix": "/usr",
        "executable": "/envs/cpu/bin/python",
        "framework": "/envs/cpu/lib/python3.11/site-packages/torch/__init__.py",
    }
    return {"status": "passed", "origins": {**fixed, **origins}}


VENV = {"kind": "venv", "ref": "/envs/cpu"}


@pytest.mark.parametrize(
    ("artifact", "changes"),
    [
        (VENV, {}),
        ({"kind": "conda", "ref": "/envs/cpu"}, {"prefix": "/envs/cpu/venv"}),
        ({"kind": "interpreter", "ref": "/envs/cpu/bin/python"}, {}),
        ({"kind": "image", "ref": "x:1"}, {"prefix": "/opt/env", "framework": "/opt/env/torch.py"}),
    ],
)
def test_a_report_of_what_was_built(artifact: dict[str, Any], changes: dict[str, Any]) -> None:
    isolation.require(report(**changes), artifact, as_found=False)


@pytest.mark.parametrize(
    ("artifact", "changes", "words"),
    [
        (VENV, {"prefix": "/envs/other"}, "the report covers /envs/other, not /envs/cpu"),
        (VENV, {"prefix": None}, "the report covers None"),
        (VENV, {"framework": "/other/torch.py"}, "the framework was imported from /other/torch.py"),
        (VENV, {"framework": None}, "the framework was imported from None"),
        (VENV, {"as_found": True}, "was not started in the requested isolation mode"),
        ({"kind": "image", "ref": "x:1"}, {}, "the report covers /envs/cpu, not /opt/env"),
        (
            {"kind": "interpreter", "ref": "/mine/bin/python"},
            {},
            "the report covers /envs/cpu/bin/python, not /mine/bin/python",
        ),
    ],
)
def test_a_report_of_something_else_is_not_trusted(
    artifact: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(VerifyError, match="cannot be trusted") as caught:
        isolation.require(report(**changes), artifact, as_found=False)
    assert words in caught.value.message
    # One that failed says itself why.
    isolation.require({**report(**changes), "status": "failed"}, artifact, as_found=False)


def test_a_report_without_origins_is_not_trusted() -> None:
    with pytest.raises(VerifyError, match="does not state where its code came from"):
        isolation.require({"status": "passed"}, VENV, as_found=False)
    isolation.require(report(as_found=True, torch="/modules/torch.py"), VENV, as_found=True)
    with pytest.raises(VerifyError, match="in the requested isolation mode"):
        isolation.require(report(), VENV, as_found=True)


def test_an_interpreter_without_torch_is_told_the_way(tmp_path: Any) -> None:
    failed = {"reasons": ["import: ModuleNotFoundError: No module named 'torch'"]}
    (error,) = isolation.unreached(failed, tmp_path / "python", {"PYTHONPATH": "/modules"})
    assert "nor are folders in PYTHONPATH" in error.message
    assert "--inherit-environment" in str(error.hint)
    assert error.exit_code == 5
    assert isolation.unreached(failed, None, {}) == []
    assert isolation.unreached({"reasons": ["loss: nan"]}, tmp_path, {}) == []


def test_the_summary_of_what_was_found() -> None:
    def summary(**origins: Any) -> str:
        return as_found(check(whole(origins=report(**origins)["origins"])))

    assert summary() == ""
    unknown = as_found(check(whole(origins=None)))
    assert unknown == "as found: the report does not state where its code came from"
    variables = {"PYTHONPATH": "/modules", "LD_PRELOAD": "/x.so"}
    assert summary(as_found=True, variables=variables) == (
        "as found: the environment's variables decided what ran:"
        " LD_PRELOAD=/x.so, PYTHONPATH=/modules"
    )
    assert "none was set" in summary(as_found=True)


# What `run` and `shell` say.


@pytest.mark.parametrize(
    ("environ", "entries", "words"),
    [
        ({"PYTHONPATH": "/m"}, ["torch", "x"], "PYTHONPATH: /m contains torch,"),
        ({"PYTHONPATH": "/m"}, ["sitecustomize.py"], "PYTHONPATH: /m contains sitecustomize,"),
        ({"PYTHONPATH": "/m"}, ["numpy", "torch"], "contains numpy, torch,"),
        ({"PYTHONHOME": "/usr"}, [], "PYTHONHOME=/usr replaces"),
        ({"LD_PRELOAD": "/x.so"}, [], "LD_PRELOAD=/x.so is loaded into every program"),
        ({"LD_LIBRARY_PATH": "/l"}, ["libtorch.so", "libgomp.so.1"], "libgomp.so.1 and 1 more"),
        ({"DYLD_LIBRARY_PATH": "/l"}, ["libcudnn.so.9"], "/l contains libcudnn.so.9,"),
        ({}, ["torch", "libtorch.so"], ""),
        ({"PYTHONPATH": "/m"}, ["mine", "torch-2.13.0.dist-info", "torch.txt", "helper.py"], ""),
        ({"PYTHONHOME": "", "LD_PRELOAD": ""}, [], ""),
        ({"LD_LIBRARY_PATH": "/l"}, ["libpng.so.16"], ""),
        ({"LD_LIBRARY_PATH": "/usr/lib/wsl/lib"}, ["libtorch.so"], ""),
    ],
)
def test_a_variable_that_shadows_is_one_line(
    environ: dict[str, str], entries: list[str], words: str
) -> None:
    lines = list(isolation.shadowing(environ, lambda folder: entries))
    assert len(lines) == bool(words)
    assert not words or words in lines[0]


def test_folders_that_variables_name_are_listed_once(tmp_path: Any) -> None:
    (tmp_path / "torch").mkdir()
    environ = {"PYTHONPATH": f"{tmp_path}::/nowhere:{tmp_path}"}
    (line,) = isolation.shadowing(environ)
    assert str(tmp_path) in line
