"""Feed numbered hostile inputs of one format to the code that reads it: a process of its own.

    python -m tests.fuzz.worker FORMAT SEED FIRST END FOLDER

An input is decided by format, seed and number. Each line of the output is a problem, as JSON. After
one that cannot be survived (memory, no end) the process ends; the last number is in FOLDER/at.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import resource
import shutil
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any

MEMORY = 256 << 20
"""Maximum memory of one input beyond that of a valid one, in bytes."""
SECONDS = 2.0
"""Maximum CPU time of one input."""
HANGS = 60.0
_PEAK: Any = re.compile(r"VmHWM:\s*([0-9]+) kB")
_ADDRESSES = 3 << 30
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,), "os.remove": (0,),
    "os.rmdir": (0,), "os.chmod": (0,), "os.truncate": (0,), "os.utime": (0,),
}  # fmt: skip
_STARTS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "socket.connect"}


class Watch:
    """Records what Python does outside of a folder."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[str] = []
        self._folder = f"{os.path.realpath(folder)}/"
        self.active = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in _STARTS:
            self.seen.append(f"{event} {arguments[:2]!r}"[:200])
        elif event == "open":
            path, mode, flags = arguments
            if flags & _WRITING or (isinstance(mode, str) and set(mode) & set("wax+")):
                self._require_inside(event, path)
        elif event in _CHANGES:
            for at in _CHANGES[event]:
                self._require_inside(event, arguments[at])

    def _require_inside(self, event: str, path: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        # The last component need not be followed: it may be a link that is replaced.
        place = Path(os.fsdecode(path))
        full = str(place.parent.resolve() / place.name)
        if not f"{full}/".startswith(self._folder) and full != "/dev/null":
            self.seen.append(f"{event} {full}"[:200])


def main(name: str, seed: int, first: int, end: int, folder: Path) -> None:
    """Run the inputs, and print what is wrong."""
    # What an input is the first to import would be written into this checkout.
    sys.dont_write_bytecode = True
    from tests.fuzz import formats

    os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(folder / "home")))
    (folder / "home").mkdir(exist_ok=True)
    os.chdir(folder / "home")
    target = formats.FORMATS[name]
    watch = Watch(folder)
    at = os.open(folder / "at", os.O_WRONLY | os.O_CREAT, 0o600)
    # Imports are no part of an input: a few are read first.
    for number in range(3):
        _one(target, Random(f"warm {name} {number}"), folder, watch)
    gc.freeze()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for number in range(first, end):
        os.pwrite(at, f"{number:<12}".encode(), 0)
        problems = _one(target, Random(f"{name} {seed} {number}"), folder, watch, used + _ADDRESSES)
        for problem in problems:
            print(json.dumps({"format": name, "number": number, "problem": problem}), flush=True)
    os.pwrite(at, f"{end:<12}".encode(), 0)


def _one(
    target: Any,
    random: Random,
    folder: Path,
    watch: Watch,
    addresses: int = resource.RLIM_INFINITY,
) -> list[str]:
    """Return what is wrong with the handling of one input."""
    from envbuilder.core.errors import EnvbuilderError

    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    problems = []
    path = target.make(random, work)
    for read in target.readers:
        before = _peak(anew=True)
        watch.seen = []
        watch.active = True
        started = time.process_time()
        # Not while inputs are made: those may be large, and take long to compress.
        resource.setrlimit(resource.RLIMIT_AS, (addresses, resource.RLIM_INFINITY))
        faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            read(path, work)
        except EnvbuilderError as error:
            if len(error.message) > 20_000:
                problems.append(f"{read.__name__}: a message of {len(error.message)} characters")
        except target.expected:
            pass
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-4:]
            lines = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in last[::-1])
            problems.append(f"{read.__name__}: {type(error).__name__}: {error!s:.150} at {lines}")
        finally:
            watch.active = False
            faulthandler.cancel_dump_traceback_later()
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        seconds = time.process_time() - started
        if seconds > SECONDS:
            problems.append(f"{read.__name__}: took {seconds:.1f} s")
        grown = _peak() - before
        if grown > MEMORY:
            problems.append(f"{read.__name__}: took {grown >> 20} MiB")
        problems += [f"{read.__name__}: {seen}" for seen in watch.seen]
    return problems


def _peak(*, anew: bool = False) -> int:
    """Return the most memory used since the last call with `anew`, in bytes."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    return int(_PEAK.search(Path("/proc/self/status").read_text())[1]) << 10


if __name__ == "__main__":
    format_name, *numbers, where = sys.argv[1:]
    main(format_name, *map(int, numbers), Path(where))
