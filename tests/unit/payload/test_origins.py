from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.payload import origins
from envbuilder.payload.origins import Loaded
from envbuilder.payload.report import CheckError
from envbuilder.payload.start import AS_FOUND, Start
from tests.support.recorded import replaced

PREFIX = "/envs/cpu"
STDLIB = "/usr/lib/python3.11"
OWN = {
    "torch": f"{PREFIX}/lib/python3.11/site-packages/torch/__init__.py",
    "json": f"{STDLIB}/json/__init__.py",
    "payload.verify": "/x/payload.pyz/payload/verify.py",
}
LIBRARIES = (
    f"{PREFIX}/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so",
    f"{PREFIX}/lib/python3.11/site-packages/torch/lib/libgomp.so.1",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/libm.so.6",
)
PROMISE = Start(as_found=False)


def seen(*libraries: str, modules: dict[str, str] | None = None, **changes: Any) -> Loaded:
    fields: dict[str, Any] = {
        "modules": {**OWN, **(modules or {})},
        "libraries": [*LIBRARIES, *libraries],
        "roots": (PREFIX, STDLIB, "/x/payload.pyz"),
        "closed": (f"{STDLIB}/site-packages",),
        **changes,
    }
    return Loaded(**fields)


def judged(*libraries: str, **changes: Any) -> origins.Judgement:
    return origins.judge(seen(*libraries, **changes), lambda: ["libgomp.so.1", "libc10.so"])


FOREIGN = seen(modules={"torch": "/other/torch/__init__.py"})


def test_what_an_environment_loads_is_its_own() -> None:
    assert judged() == origins.Judgement([], [], [])


def test_packages_by_links_are_named_and_those_of_another_environment_refused() -> None:
    store = {"torch": ("/nix/store/t/torch/__init__.py", ""), "six": ("/nix/store/s/six.py", "")}
    library = "/nix/store/t/torch/lib/libtorch_cpu.so"
    named = judged(library, linked=store)
    assert named.problems == []
    assert named.outside == ["2 packages by links, such as /nix/store/t/torch/__init__.py"]
    assert judged(library).problems
    other = {"torch": ("/other/lib/python3.11/site-packages/torch/__init__.py", "/other")}
    assert judged(linked=other).problems == ["torch is that of another environment, /other"]


def test_links_lead_out_of_an_environment_or_stay_in_it(tmp_path: Path) -> None:
    for name in ("mine", "other", "store"):
        (tmp_path / name / "site-packages/torch").mkdir(parents=True)
        (tmp_path / name / "site-packages/torch/__init__.py").touch()
    for name in ("mine", "other"):
        (tmp_path / name / "pyvenv.cfg").touch()
    site = tmp_path / "mine/site-packages"
    for package, leads in {"a": "mine", "b": "other", "c": "store"}.items():
        (site / package).symlink_to(tmp_path / leads / "site-packages/torch")
    (tmp_path / "alias").symlink_to("mine")
    modules = {n: f"{tmp_path}/alias/site-packages/{n}/__init__.py" for n in ("torch", *"abc")}
    linked = dict(origins._linked(modules, (f"{tmp_path}/alias", str(site))))
    assert {name: owner for name, (_, owner) in linked.items()} == {
        "b": str(tmp_path / "other"),
        "c": "",
    }
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "site-packages").symlink_to(tmp_path / "other/site-packages")
    modules = {"torch": f"{whole}/site-packages/torch/__init__.py"}
    roots = (str(whole), f"{whole}/site-packages")
    assert dict(origins._linked(modules, roots))["torch"][1] == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"torch": "/other/torch/__init__.py"}, "torch was imported from /other/torch/__init__.py"),
        (
            {"sitecustomize": "/home/me/sitecustomize.py"},
            "sitecustomize was imported from /home/me",
        ),
        ({"torch": f"{PREFIX}-2/torch/__init__.py"}, f"torch was imported from {PREFIX}-2"),
        ({"torch": f"{STDLIB}/site-packages/torch.py"}, "torch was imported from /usr/lib"),
        ({"torch.nn": "/other/torch/nn/__init__.py"}, "torch.nn was imported from /other"),
    ],
)
def test_a_foreign_module_fails(modules: dict[str, str], words: str) -> None:
    (problem,) = judged(modules=modules).problems
    assert words in problem


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras", "ml_dtypes", "zentf"])
def test_a_package_is_named_once_and_the_framework_first(framework: str) -> None:
    foreign = {
        "aardvark": "/other/aardvark.py",
        framework: f"/other/{framework}/__init__.py",
        f"{framework}.nn": f"/other/{framework}/nn.py",
    }
    problems = judged(modules=foreign).problems
    assert [problem.split()[0] for problem in problems] == [framework, "aardvark"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        # The framework's own: never from anywhere else, the system included.
        ("/other/lib/libtorch_cpu.so", "the framework's library is not the environment's"),
        ("/usr/local/lib/libc10.so", "the framework's library is not the environment's"),
        ("/usr/lib/libtensorflow_cc.so.2", "the framework's library is not the environment's"),
        ("/other/lib_pywrap_tensorflow_common.so", "the framework's library is not the env"),
        ("/other/libamdcpu_plugin.so", "the framework's library is not the environment's"),
        # In place of the environment's.
        ("/tmp/libgomp.so.1", "loaded in place of the environment's own libgomp.so.1"),
        ("/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0", "in place of the environment's own"),
        # Runtimes of a toolkit that somebody's variables name.
        ("/usr/local/cuda-13.0/lib64/libcudart.so.13", "a runtime of the framework from outside"),
        ("/opt/intel/oneapi/lib/libsycl.so.8", "a runtime of the framework from outside"),
        ("/opt/rocm/lib/libamdhip64.so.7", "a runtime of the framework from outside"),
        ("/opt/rocm/lib/libamd_comgr.so.3", "a runtime of the framework from outside"),
        ("/opt/rocm/lib/libhsa-amd-aqlprofile64.so.1", "a runtime of the framework from outside"),
        ("/opt/aotriton/lib/libaotriton_v2.so", "a runtime of the framework from outside"),
        ("/home/me/lib/libiomp5.so", "a runtime of the framework from outside"),
    ],
)
def test_a_foreign_library_fails(path: str, words: str) -> None:
    (problem,) = judged(path).problems
    assert problem.startswith(f"{path}: ")
    assert words in problem


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.570.86.10",
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/usr/lib/wsl/lib/libdxcore.so",
        "/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1",
        "/usr/lib/x86_64-linux-gnu/libigc.so.2",
        "/opt/driver/libcuda.so.1",
    ],
)
def test_drivers_are_the_machines_and_named(path: str) -> None:
    assert judged(path) == origins.Judgement([], [path], [])


def test_a_systems_runtime_is_no_fault_where_the_environment_has_none() -> None:
    path = "/usr/lib/x86_64-linux-gnu/libiomp5.so"
    assert judged(path) == origins.Judgement([], [], [])


def test_other_libraries_from_outside_are_named() -> None:
    for name in ("/home/me/lib/libhook.so", "/home/me/lib/libhook.so (deleted)"):
        assert judged(name).outside == [name]
    preloaded = judged(preloaded="/lib/libhook.so /lib/second.so\n")
    assert preloaded.outside == [
        "/lib/libhook.so (/etc/ld.so.preload)",
        "/lib/second.so (/etc/ld.so.preload)",
    ]


def test_the_interpreters_own_libraries_are_right() -> None:
    path = "/root/.pyenv/versions/3.11.7/lib/libpython3.11.so.1.0"
    assert judged(path).outside == [path]
    assert judged(path, base=("/root/.pyenv/versions/3.11.7",)).outside == []


MAPS = """\
7f00-7f01 r--p 00000000 fe:00 1 /usr/lib/libc.so.6
7f01-7f02 r-xp 00000000 fe:00 1                          /usr/lib/libc.so.6
7f02-7f03 r-xp 00000000 fe:00 2                          /home/a b/lib x.so
7f03-7f04 r-xp 00000000 fe:00 3                          /tmp/gone.so (deleted)
7f04-7f05 r-xp 00000000 00:01 4                          /memfd:libffi (deleted)
7f05-7f06 rwxp 00000000 00:00 0
7f06-7f07 r-xp 00000000 00:00 0                          [vdso]
7f07-7f08 r-xp 00001000 fe:00 1                          /usr/lib/libc.so.6
7f08-7f09 r--p 00000000 fe:00 5                          /usr/lib/locale/C.utf8/LC_CTYPE
"""


def test_mapped_code_is_read_from_the_kernel() -> None:
    assert origins.parse_maps(MAPS) == [
        "/usr/lib/libc.so.6",
        "/home/a b/lib x.so",
        "/tmp/gone.so (deleted)",
    ]


@given(st.text())
def test_any_text_is_a_list_of_mappings(text: str) -> None:
    for library in origins.parse_maps(text):
        assert library.startswith("/")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("libgomp.so.1.0.0", "libgomp.so.1"),
        ("libgomp.so.1", "libgomp.so.1"),
        ("libc10.so", "libc10.so"),
        ("libomp.dylib", "libomp.dylib"),
    ],
)
def test_the_name_that_the_loader_looks_for(name: str, stem: str) -> None:
    assert origins.stem(name) == stem


def test_the_check_refuses_and_the_report_says_from_where(monkeypatch: pytest.MonkeyPatch) -> None:
    report: dict[str, Any] = {}
    replaced(monkeypatch, origins, "look", seen("/usr/lib/wsl/lib/libcuda.so.1"))
    status, detail = origins.check(PROMISE, report, "torch")
    assert (status, "drivers: /usr/lib/wsl/lib/libcuda.so.1" in detail) == ("passed", True)
    assert report["framework"] == OWN["torch"]
    assert report["prefix"] == sys.prefix
    assert report["drivers"] == ["/usr/lib/wsl/lib/libcuda.so.1"]
    replaced(monkeypatch, origins, "look", seen(libraries=None))
    assert "this system does not list them" in origins.check(PROMISE, {}, "torch")[1]
    replaced(monkeypatch, origins, "look", seen("/home/me/libhook.so"))
    assert origins.check(PROMISE, {}, "torch")[0] == "warning"
    replaced(monkeypatch, origins, "look", FOREIGN)
    assert origins.failing(PROMISE)
    for refuse in (lambda: origins.check(PROMISE, {}, "torch"), lambda: origins.require(PROMISE)):
        with pytest.raises(CheckError, match="torch was imported from /other"):
            refuse()


def test_as_found_is_named_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, origins, "look", FOREIGN)
    report: dict[str, Any] = {}
    status, detail = origins.check(AS_FOUND, report, "torch")
    assert (status, "as found, not judged: torch was imported" in detail) == ("warning", True)
    assert (report["as_found"], len(report["foreign"])) == (True, 1)
    assert not origins.failing(AS_FOUND)
    origins.require(AS_FOUND)


def test_this_very_process_is_looked_at() -> None:
    found = origins.look()
    assert found.modules["json"].endswith("json/__init__.py")
    if sys.platform.startswith("linux"):
        assert any("python" in library for library in found.libraries or ())
    assert not [p for p in origins.judge(found, list).problems if p.startswith("json ")]


def test_only_a_cache_that_this_process_made_may_hold_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/home/me/cache")
    assert "/home/me/cache" not in origins.look().roots
    assert "/tmp/fresh" in origins.look("/tmp/fresh").roots


def test_a_module_that_torch_writes_is_trusted_and_its_folder_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = origins.WRITTEN
    folder = "/tmp/tmpabc"
    module = "torch.distributed.nn.jit.instantiator"
    assert not [root for root in origins.look().roots if root.startswith(folder)]
    writer = SimpleNamespace(INSTANTIATED_TEMPLATE_DIR_PATH=folder)
    monkeypatch.setitem(sys.modules, module, writer)  # type: ignore[arg-type]
    roots = (*seen().roots, *(root for root in origins.look().roots if root.startswith("/tmp/tmp")))
    assert judged(modules={name: f"{folder}/{name}.py"}, roots=roots).problems == []
    for foreign in ({name: f"/tmp/other/{name}.py"}, {"json": f"{folder}/json.py"}):
        assert len(judged(modules=foreign, roots=roots).problems) == 1
