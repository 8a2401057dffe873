"""What a project imports is imported in its environment, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import import_check
from envbuilder.builds.access import Access
from envbuilder.builds.import_check import Outcome
from envbuilder.builds.inside import import_modules
from envbuilder.core import process
from envbuilder.core.errors import VerifyError
from tests.support.installed import record
from tests.support.pipeline import Said
from tests.support.programs import completed
from tests.support.projects import project_settings
from tests.support.repositories import lay

PRINTED = ["einops", "torch"]
MISSING = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("package", "files", "modules"),
    [
        (
            "pillow",
            ["PIL/__init__.py", "PIL/a/__init__.py", "pillow.libs/libz.so"],
            ["PIL", "PIL.a"],
        ),
        ("pyyaml", ["_yaml/__init__.py", "yaml/__init__.py"], ["yaml"]),
        ("six", ["six.py", "tests/__init__.py", "tools.py"], ["six"]),
        ("protobuf", ["google/protobuf/__init__.py", "google/_upb/_m.so"], ["google.protobuf"]),
        ("fast", ["fast.cpython-311-x86_64-linux-gnu.so"], ["fast"]),
        ("mkl", ["../../lib/libmkl.so", "mkl-1.0.dist-info/METADATA"], []),
    ],
)
def test_modules_of_a_package_are_those_of_its_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    files: Sequence[str],
    modules: Sequence[str],
) -> None:
    record(tmp_path, package, files)
    monkeypatch.syspath_prepend(tmp_path)
    assert import_modules.modules_of(package) == modules


# --- what is asked of an environment, and how its answers are judged


def a_project(folder: Path, become: Callable[..., int], text: str = "requirements: []\n") -> Any:
    """A finished build of a project; `become` stands for its environment's door."""
    wheels = tuple(SimpleNamespace(name=name) for name in ("graphics", "numpy", "torch"))
    target = SimpleNamespace(of_kind=lambda kind: wheels if kind == "wheel" else ())
    artifact = SimpleNamespace(kind="prefix")
    plan = SimpleNamespace(files=wheels, artifact=artifact)
    requirements = ("torch==2.13.0+cpu", "graphics>=1", "left-out ; sys_platform == 'win32'")
    return SimpleNamespace(
        settings=project_settings(folder, text),
        environment=SimpleNamespace(target=target, plan=plan, become=become),
        profile=SimpleNamespace(requirements=requirements, framework="torch"),
        progress=Said(),
    )


def test_the_environments_own_door_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def become(
        argv: Sequence[str], environ: Mapping[str, str], access: Access, start: Callable[..., int]
    ) -> int:
        asked.update(json.loads(argv[-1]), access=access, program=argv[:3])
        return start(["client"], {"NAME": "value"})

    def run(argv: object, *, env: object, timeout: float) -> process.Completed:
        assert (argv, env) == (["client"], {"NAME": "value"})
        results = [{"module": name, "package": "", "code": 0, "errors": ""} for name in PRINTED]
        return completed(stdout=json.dumps(results))

    monkeypatch.setattr(process, "run", run)
    lay(tmp_path, {"train.py": "import einops\nimport os\nimport mine\n", "mine.py": ""})
    lay(tmp_path, {"helper.py": "import unused_by_programs\n"})
    outcome = import_check.tried(a_project(tmp_path, become))
    assert {"einops", "unused_by_programs"} == {*asked["modules"]}
    assert asked["packages"] == ["graphics", "torch"]
    assert asked["program"] == ("python", "-I", "-c")
    assert asked["access"].is_read
    assert asked["access"].python_path  # the hook, which explains
    assert outcome == Outcome("passed", "2 of 2")
    import_check.tried(a_project(tmp_path, become), has_trained=True)
    assert asked["packages"] == ["graphics"]


def test_an_environment_that_cannot_be_asked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(argv: Sequence[str], environ: object, access: object, start: Any) -> int:
        return int(start([], {}))

    failed = completed(1, stderr="no space left\n")
    monkeypatch.setattr(process, "run", lambda *_, **options: failed)
    with pytest.raises(VerifyError, match="the imports cannot be checked: no space left"):
        import_check.tried(a_project(tmp_path, become))


def test_a_project_that_imports_nothing_beyond_the_framework_is_not_asked(tmp_path: Path) -> None:
    build = a_project(tmp_path, lambda *_: 1)
    build.profile.requirements = ("torch==2.13.0+cpu",)
    assert import_check.tried(build, has_trained=True) is None


def test_nothing_outside_of_a_project(tmp_path: Path) -> None:
    build = a_project(tmp_path, lambda *_: 1)
    build.settings = replace(build.settings, definition=None)
    assert import_check.tried(build) is None


TRACEBACK = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    import a
    ^^^^^^^^
{}
"""
AWAY = "0 of 0; mod: not tried, because it needs a device"


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (f"ImportError: libGL.so.1: {MISSING}", "libGL.so.1 is missing"),
        (f"OSError: /env/lib/libgomp.so.1: {MISSING}", "libgomp.so.1 is missing"),
        (f"OSError: libcuda.so.1: {MISSING}", ""),
        (f"ImportError: libze_loader.so.1: {MISSING}", ""),
        (f"ImportError: libamdhip64.so.7: {MISSING}", ""),
        ("RuntimeError: Found no NVIDIA driver on your system.", ""),
        ("RuntimeError: 0 active drivers ([]). There should only be one.", ""),
        ("AssertionError: Torch not compiled with CUDA enabled", ""),
        ("ImportError: first\x1b[2J\nsecond", "ImportError: first?[2J. second"),
        ("x.Error", "x.Error"),
    ],
)
def test_the_last_error_is_told_and_a_missing_device_is_none(error: str, detail: str) -> None:
    chained = TRACEBACK.format("KeyError: 1") + "\nDuring this, another exception occurred:\n\n"
    for before in ("", "noise\n", chained):
        for advice in ("", "write this:\n  line\n"):
            printed = before + TRACEBACK.format(error) + advice
            outcome = import_check.judged([import_check._Result("mod", "pack", 1, printed)])
            if not detail:
                assert outcome == Outcome("passed", AWAY)
                continue
            dot = "" if "second" in error else "."
            after = f"{dot} write this: line" if advice else ""
            assert outcome == Outcome("failed", f"0 of 1; mod: {detail}{after}")


def test_imports_are_counted_and_those_of_packages_decide() -> None:
    passed = import_check._Result("torch", "torch", 0, "warning: libcuda.so.1: cannot open")
    killed = import_check._Result("mine", "", -11, "")
    required = import_check._Result("six", "six", 1, "TimeoutError: it did not end within 1 s")
    assert import_check.judged([passed]) == Outcome("passed", "1 of 1")
    assert import_check.judged([passed, killed]) == Outcome("warning", "1 of 2; mine: -11")
    assert import_check.judged([required, passed, killed]) == Outcome(
        "failed", "1 of 3; six: TimeoutError: it did not end within 1 s; mine: -11"
    )
    # One cause, such as a plugin that others load, is told once.
    also = import_check._Result("other", "", -11, "")
    assert import_check.judged([killed, also]).detail == "0 of 2; mine, other: -11"
