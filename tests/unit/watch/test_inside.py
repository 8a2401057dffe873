"""The hook in an interpreter: which frameworks it observes, and what it leaves."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from envbuilder.watch.inside import jax_, operators, record, sitecustomize, tensorflow_
from tests.support.folders import names_in


def test_a_framework_is_observed_even_if_a_library_asked_for_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "framework.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sitecustomize, "OBSERVERS", {"framework": "framework_"})
    observed = []
    observer = SimpleNamespace(observe=lambda module, load, folder: observed.append(module.VALUE))
    monkeypatch.setattr(sitecustomize, "load", lambda name: observer)
    monkeypatch.setattr(sys, "meta_path", [sitecustomize._Finder(), *sys.meta_path])
    assert importlib.util.find_spec("framework") is not None
    assert observed == []
    for _ in range(2):
        importlib.import_module("framework")
        monkeypatch.delitem(sys.modules, "framework")
    assert observed == [1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_watched_command_may_watch_another(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finders that ask all others must not ask each other for ever."""
    (tmp_path / "framework.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sitecustomize, "OBSERVERS", {"framework": "framework_"})
    monkeypatch.setattr(sitecustomize, "load", lambda name: SimpleNamespace(observe=lambda *_: 0))
    finders = [sitecustomize._Finder() for _ in range(count)]
    monkeypatch.setattr(sys, "meta_path", [*finders, *sys.meta_path])
    assert importlib.import_module("framework").VALUE == 1
    monkeypatch.delitem(sys.modules, "framework")


def test_what_is_watched_twice_has_a_part_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    hooks = [tmp_path / name / "hook" for name in ("inner", "outer")]
    for hook in hooks:
        (hook.parent / "out").mkdir(parents=True)
        hook.mkdir()
    (hooks[1] / "environment").write_text(str(tmp_path / "another"))
    record.Record("torch", "2.0", os.pathsep.join(map(str, hooks))).write(finished=True)
    parts = [json.loads(next((h.parent / "out").iterdir()).read_text()) for h in hooks]
    assert [part["environment"] for part in parts] == ["", sys.prefix]


def test_an_environment_is_known_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "env/venv").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "env")
    (tmp_path / "environment").write_text(str(tmp_path / "link"))
    for name, other in (("env", False), ("env/venv", False), ("env2", True), ("link", False)):
        prefix = str(tmp_path / name)
        assert record.elsewhere(str(tmp_path), prefix) == (prefix if other else "")


def test_each_framework_of_a_process_has_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    (tmp_path / "out").mkdir()
    for framework in ("torch", "tensorflow"):
        record.Record(framework, "2.0", str(tmp_path / "hook")).write(finished=True)
    names = sorted(name.split("-")[:2] for name in names_in(tmp_path / "out"))
    assert names == [[str(os.getpid()), "tensorflow"], [str(os.getpid()), "torch"]]


def test_what_cannot_be_written_is_not_tried_at_each_step(tmp_path: Path) -> None:
    of_all = record.Record("torch", "2.0", str(tmp_path / "gone/hook"))
    tried = []
    of_all.complete = lambda: {"steps": tried.append(1)}
    of_all.written = 0.0
    of_all.heartbeat()
    of_all.heartbeat()
    assert len(tried) == 1


def test_a_first_look_that_loads_much_does_not_put_off_the_next(tmp_path: Path) -> None:
    """On an H200, JAX's first one took 0.1 s: none followed in a short training."""
    of_all = record.Record("jax", "0.11", str(tmp_path / "hook"))
    assert of_all.rest(0.1) == record.INTERVAL
    assert of_all.rest(0.1) == 0.1 / record.MOST_OVERHEAD
    assert of_all.overhead == 0.2


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(("steps", "parts"), [(3, 2), (0, 1)])
def test_a_process_of_another_one_has_a_part_if_it_trains(
    method: str, steps: int, parts: int, tmp_path: Path
) -> None:
    """Workers that load data have none: there may be some for each epoch."""
    out = tmp_path / "out"  # records stay until the end, in each process
    out.mkdir()
    child = multiprocessing.get_context(method).Process(target=_observe, args=(out, steps))
    _observe(out, 3, os.getpid())
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(list(out.iterdir())) == parts


def _observe(out: Path, steps: int, pid: int | None = None) -> None:
    of_all = record.Record("torch", "2.0", str(out.parent / "hook"))
    of_all.complete = lambda: {"steps": steps if pid in (None, os.getpid()) else 0}
    of_all.write(False)


class Tensor:
    """What is asked of a tensor of 4 KiB."""

    shape = (1024,)

    def __init__(self, device: str) -> None:
        self.device = SimpleNamespace(type=device, index=0)

    def numel(self) -> int:
        return 1024

    def element_size(self) -> int:
        return 4


def test_what_is_copied_is_not_kept_alive() -> None:
    """A script that moves activations away to free memory must get it."""
    counted = operators.Operators(SimpleNamespace(Tensor=Tensor))
    source = Tensor("cuda")
    gone = weakref.ref(source)
    for _ in range(2):
        counted._count_copy("aten::_to_copy", (source,), Tensor("cpu"))
    (row,) = counted.fields(record.rows)["copies"]
    assert (row["calls"], row["again"], row["bytes"]) == (2, 1, 8192)
    del source
    assert gone() is None


@pytest.mark.parametrize(
    ("targets", "seen"),
    [
        (np.arange(40) % 10, {"classes": 10, "labels": 40}),
        (np.eye(10, dtype=np.float32)[np.arange(40) % 10], {"classes": 10, "labels": 40}),
        (np.linspace(0, 1, 80).reshape(40, 2), {}),
        (np.ones(40), {}),
        (None, {}),
    ],
)
def test_labels_of_keras_are_numbers_or_vectors_with_a_one(
    targets: np.ndarray | None, seen: dict[str, int]
) -> None:
    watch = tensorflow_._Watch(None, None)
    adapter = SimpleNamespace(batch_size=32, _inputs=(None, targets))
    watch.at_data(SimpleNamespace(data_adapter=adapter))
    assert watch._labels == seen


class Array:
    """What is asked of an array of JAX."""

    ndim = 1
    dtype = np.dtype("float32")

    def __init__(self, *values: float) -> None:
        self._value = np.array(values, self.dtype)
        self.nbytes = self._value.nbytes
        device = SimpleNamespace(platform="gpu", id=0)
        self.addressable_shards = [SimpleNamespace(device=device, data=self)]


def leaves(tree: Any) -> list[Array]:
    return [tree] if isinstance(tree, Array) else [leaf for part in tree for leaf in leaves(part)]


@pytest.mark.parametrize(
    ("rate", "momentum", "seen"),
    [
        (0.1, True, {"unchanged_updates": 0, "changed_at": 7}),
        (0.1, False, {"unchanged_updates": 0, "changed_at": 7}),
        (0.0, True, {"unchanged_updates": 2, "changed_at": 0}),
        (0.0, False, {"unchanged_updates": 2, "changed_at": 0}),
        (math.nan, True, {"unchanged_updates": 2, "changed_at": 0}),
    ],
)
def test_a_function_of_jax_that_gets_back_what_it_returned_takes_steps(
    rate: float,
    momentum: bool,
    seen: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jax._src.array", SimpleNamespace(ArrayImpl=Array))
    of_all = record.Record("jax", "0.11", str(tmp_path / "hook"))
    monkeypatch.setattr(of_all, "rest", lambda took: 0.0)
    monkeypatch.setattr(of_all, "heartbeat", lambda: None)
    tree = SimpleNamespace(tree_leaves=leaves)
    jax = SimpleNamespace(__file__="jax/__init__.py", tree_util=tree, local_devices=list)
    watch = jax_._Watch(jax, of_all)
    frozen = Array(5.0)
    state = (Array(1.0, 2.0), Array(0.0, 0.0), frozen)[: None if momentum else 1]
    for number in range(6):
        mean = Array(number, 1.0)
        new = (Array(*state[0]._value - rate * mean._value), mean, frozen)[: len(state)]
        watch.at_call(max, (state,), {}, (new,))
        watch.at_call(min, (new,), {}, ([Array(*range(99))],))  # an evaluation
        state = new
    assert of_all.updates == seen
    assert [loss for _, loss in of_all.losses] == [None] * (3 if math.isnan(rate) else 0)
    fields = watch.complete()
    assert fields["steps"] == 7
    assert fields["parameters"] == [
        {"device": "cuda:0", "dtype": "float32", "bytes": 16 if momentum else 8}
    ]
