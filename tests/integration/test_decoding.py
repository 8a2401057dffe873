"""Threads that decode into new types at once: by `core.decoding`, and by msgspec alone."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.conftest import ran

PROGRAM = """\
import contextlib, sys, threading, types
with contextlib.suppress(ImportError):
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected
import msgspec
from envbuilder.core import decoding

TYPES, THREADS = 200, 8
SOURCE = '''
from typing import Literal
import msgspec
class Inner(msgspec.Struct):
    items: "list[Middle] | None" = None
class Middle(msgspec.Struct):
    inner: "dict[str, Inner]"
    letter: Literal["x", "y"] = "x"
class Outer(msgspec.Struct):
    middle: "tuple[Middle, ...]"
'''
CONTENT = b'{"middle": [{"inner": {"key": {"items": null}}, "letter": "y"}]}'
DATA = msgspec.json.decode(CONTENT)
WAYS = {
    "decoding": (decoding.from_json, decoding.convert),
    "msgspec": (lambda content, kind: msgspec.json.decode(content, type=kind), msgspec.convert),
}
from_json, convert = WAYS[sys.argv[1]]
failures = []

def decode(number, start, module):
    start.wait()
    try:
        if number % 2:
            from_json(CONTENT, module.Outer)
            convert(DATA["middle"][0], module.Middle)
        else:
            convert(DATA["middle"][0], module.Middle)
            from_json(CONTENT, module.Outer)
    except BaseException as error:
        failures.append(error)

sys.setswitchinterval(1e-6)
for count in range(TYPES):
    module = sys.modules[f"new{count}"] = types.ModuleType(f"new{count}")
    exec(SOURCE, vars(module))
    start = threading.Barrier(THREADS)
    threads = [threading.Thread(target=decode, args=(n, start, module)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
sys.exit(f"{len(failures)} failures, such as {failures[0]!r}" if failures else 0)
"""


def decoded(way: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, way]
    return ran(command, timeout=120)


def test_threads_may_decode_into_a_new_type_at_once() -> None:
    done = decoded("decoding")
    assert (done.returncode, done.stderr) == (0, "")


def test_msgspec_alone_does_not_bear_it() -> None:
    """Proves that the test above can fail, and tells when its reason is gone."""
    done = decoded("msgspec")
    if done.returncode == 0:
        pytest.fail(
            f"msgspec {msgspec.__version__} bears threads that decode into a new type at once: "
            "require it, and replace core/decoding.py with msgspec's own functions"
        )
    assert done.returncode < 0, done.stderr
