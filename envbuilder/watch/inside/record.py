"""What one process saw, written for the watching command as `watch/model.py` describes it.

The file is replaced now and then, so that a process that is killed leaves its last one.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import resource
import sys
import threading
import time
from functools import partial, wraps
from typing import Any, Callable, Dict, List, Sequence

SOON = 0.5
SECONDS = 5.0
"""How often the file is replaced: at first, and in the long run."""
INTERVAL = 0.1
LONGEST = 20.0
"""Seconds between looks at the training, at first; each interval is longer, up to LONGEST."""
MOST_OVERHEAD = 0.02
"""Share of the time that looking may take."""
MOST_ROWS = 64
MOST_LOSSES = 512
"""What is written of tables and losses that the user's script makes as long as it likes."""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def rows(table: Dict[Any, Any], *names: str) -> List[Dict[str, Any]]:
    """Return a dictionary of one or more counters by key as rows, the largest first."""
    largest = sorted(table.items(), key=lambda item: item[1], reverse=True)[:MOST_ROWS]
    return [
        dict(zip(names, (*(str(part)[:200] for part in key), *counters)))
        for key, counted in largest
        for counters in [counted if isinstance(counted, list) else [counted]]
    ]


class Record:
    """The observations of this process."""

    rows = staticmethod(rows)

    def __init__(
        self, framework: str, version: object, folder: str, unseen: Sequence[str] = ()
    ) -> None:
        self.framework = framework
        self.version = str(version)
        self._unseen = unseen
        self._elsewhere = {name: elsewhere(name) for name in folder.split(os.pathsep)}
        """Folder of a hook → the environment of this process, if another one is watched there."""
        self._reset()
        # What multiprocessing starts ends by `_exit`, too.
        atexit.register(self.write, True)
        for name in ("_exit", "execv", "execve"):
            self.wrap(os, name, before=lambda *_: self.write(True))
        self._util: Any = importlib.import_module("multiprocessing.util")
        os.register_at_fork(after_in_child=partial(self._reset, is_forked=True))

    def _reset(self, is_forked: bool = False) -> None:
        self.began = self.written = time.perf_counter()
        self.started = time.time()
        self.pause = SOON
        self.interval = INTERVAL
        self.overhead = 0.0
        self.pid = os.getpid()
        self.is_forked = is_forked
        self.losses: List[List[Any]] = []
        self.every = 1
        self.updates = {"unchanged_updates": 0, "changed_at": 0}
        self.unseen = list(self._unseen)
        self.complete: Callable[[], Dict[str, Any]] = dict
        """Returns what is only known when the file is written; after a fork, few frameworks can."""

    def note(self, sentence: str) -> None:
        """Note what could not be observed, once."""
        if sentence[:200] not in self.unseen and len(self.unseen) < 16:
            self.unseen.append(sentence[:200])

    def attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function and note its error: what is observed must not notice."""
        try:
            function(*arguments)
        except Exception as error:
            self.note("%s: %s" % (function.__name__.strip("_"), str(error)[:120]))

    def wrap(self, owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
        """Have a method seen before each call, or once it has returned."""
        original = getattr(owner, name)

        @wraps(original)
        def method(*arguments: Any, **options: Any) -> Any:
            if before:
                self.attempt(before, *arguments, *options.values())
            result = original(*arguments, **options)
            if after:
                self.attempt(after, *arguments, *options.values())
            return result

        setattr(owner, name, method)

    def rest(self, took: float) -> float:
        """Count the time that a look took; return for how long there should be no other."""
        is_first = not self.overhead
        self.overhead += took
        interval = self.interval
        self.interval = min(self.interval * 2, LONGEST)
        # What the first one loads, the others have.
        if is_first:
            return interval
        return max(interval, took / MOST_OVERHEAD)

    def look(
        self, function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
    ) -> float:
        """Attempt a look; return for how long there should be no other."""
        began = clock()
        self.attempt(function)
        return self.rest(clock() - began)

    def add_loss(self, step: int, value: float) -> None:
        """Keep a loss; of many, every second, fourth … one."""
        if step % self.every == 0:
            self.losses.append([step, value if math.isfinite(value) else None])
        if len(self.losses) >= MOST_LOSSES:
            self.every *= 2
            # What is not finite stays: it is rare, and decides.
            self.losses = [e for e in self.losses if e[0] % self.every == 0 or e[1] is None]
            self.losses = self.losses[: MOST_LOSSES - 1]

    def compared(self, is_changed: bool, step: int) -> None:
        """Count a comparison of parameters with those before."""
        self.updates["unchanged_updates"] += 1
        if is_changed:
            self.updates = {"unchanged_updates": 0, "changed_at": step}

    def heartbeat(self) -> None:
        """Replace the file if it is time to."""
        if time.perf_counter() - self.written > self.pause:
            self.pause = min(2 * self.pause, SECONDS)
            self.write(False)

    def write(self, finished: bool) -> None:
        """Replace the file; a full disk or a folder that is gone changes nothing."""
        self.written = time.perf_counter()
        self.attempt(self._write, finished)

    def _write(self, finished: bool) -> None:
        fields = self.complete()
        parent = getattr(self._util.process, "parent_process", lambda: None)()
        # What loads data for another process has nothing to tell.
        is_child = self.is_forked or parent is not None
        if is_child and not fields.get("steps") and not fields.get("parameters"):
            return
        rank = os.environ.get("RANK", "")
        content = {
            "framework": self.framework,
            "version": self.version[:200],
            "pid": self.pid,
            "rank": int(rank) if rank.isdigit() and len(rank) < 8 else None,
            "finished": finished,
            "began": self.started,
            "seconds": time.perf_counter() - self.began,
            "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT,
            "overhead_seconds": self.overhead,
            "losses": self.losses,
            **self.updates,
            "unseen": self.unseen,
            **fields,
        }
        # A process may use two frameworks, and be replaced by another one with its number.
        name = "%d-%s-%d.json" % (self.pid, self.framework, self.started * 1000)
        for folder, environment in self._elsewhere.items():
            path = os.path.join(os.path.dirname(folder), "out", name)
            # Of its own name: threads and forked processes may write at once.
            part = "%s.%d" % (path, threading.get_ident())
            with open(part, "w") as stream:
                json.dump({**content, "environment": environment}, stream)
            os.replace(part, path)


def elsewhere(folder: str, prefix: str = sys.prefix) -> str:
    """Return this process's environment, unless it is the one that a hook's folder names."""
    try:
        with open(os.path.join(folder, "environment"), "rb") as stream:
            watched = os.path.realpath(os.fsdecode(stream.read()))
    except OSError:
        return ""
    if (os.path.realpath(prefix) + os.sep).startswith(watched + os.sep):
        return ""
    return os.fsencode(prefix).decode(errors="replace")[:200]
