"""What was measured leads to the right sentence, and honest trainings to none."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from envbuilder.watch import judge, model, show
from envbuilder.watch.model import Autocast, Device, Gpu, Loader, Machine
from tests.support.watched import copy, falling, observed, on_cpu, placed, watched, work

CPU = {"requested": "cpu", "profile": "cpu"}


def machine(**changes: Any) -> Machine:
    return replace(watched().machine, **changes)


def ranks(*changes: dict[str, Any]) -> list[model.Observed]:
    """Processes of torchrun, each on a GPU of its own."""
    devices = tuple(Device(device=name) for name in ("cpu", "cuda:0", "cuda:1"))
    return [
        observed(
            **{
                "pid": 100 + rank,
                "rank": rank,
                "devices": devices,
                "parameters": (placed(f"cuda:{rank}"),),
                "work": (work(f"cuda:{rank}"),),
                **change,
            }
        )
        for rank, change in enumerate(changes)
    ]


def inferred(dtype: str, flops: int) -> model.Work:
    """Work under `no_grad`."""
    return replace(work(dtype=dtype, flops=flops), inferred=flops)


HALF = Autocast(entered=1200, dtypes=("bfloat16",), scaled=False)
HONEST = {
    "bare loop": watched(),
    "on the CPU": watched(on_cpu(), **CPU),
    "frozen backbone": watched(observed(trainable=2)),
    "GAN": watched(observed(optimizers=2, losses=falling(0.69, 0.69))),
    "gradient accumulation": watched(
        observed(steps=300, loader=Loader(batches=1200, waited=1.0, workers=4))
    ),
    "evaluation between epochs": watched(observed(work=(work(), work("cpu", flops=10**8)))),
    "tiny model": watched(
        observed(
            steps=40_000,
            training_seconds=40.0,
            loader=Loader(batches=40_000, waited=16.0, workers=0),
        ),
        machine=machine(gpus=(Gpu(index=0, name="A GPU", utilization=0.1),)),
    ),
    "autocast": watched(observed(autocast=HALF, work=(work(dtype="bfloat16"), work(flops=10**9)))),
    "autocast in validation": watched(observed(autocast=replace(HALF, entered=50))),
    "compiled": watched(observed(work=())),
    "two ranks": watched(*ranks({}, {})),
    "a rank whose others run elsewhere": watched(*ranks({}, {}, {}, {})[1:2]),
    "heads in turn": watched(observed(trainable=66, without_gradient=48, newest_gradient=60)),
    "experts, before each had its turn": watched(
        observed(trainable=66, without_gradient=48, gradient_looks=6)
    ),
    "teacher under autocast": watched(
        observed(autocast=HALF, work=(inferred("bfloat16", 10**11), work()))
    ),
    "teacher in float32": watched(
        observed(autocast=HALF, work=(inferred("float32", 10**13), work(dtype="bfloat16")))
    ),
    "learner and actor": watched(*ranks({}, {"steps": 0, "losses": ()})),
    "actor with a small model of its own": watched(*ranks({}, {"steps": 3, "trainable": 2})),
    "goes on from a checkpoint at 1.40": watched(
        observed(losses=falling(1.40, 1.40), classes=10, labels=640)
    ),
    "regression at its noise": watched(observed(losses=falling(0.69, 0.69))),
    "few labels of many classes": watched(
        observed(losses=falling(math.log(300), math.log(300)), classes=300, labels=840)
    ),
    "rate zero at the end": watched(observed(unchanged_updates=3, changed_at=900)),
    "rate zero of one of two optimizers": watched(
        observed(unchanged_updates=6, changed_at=0, optimizers=2)
    ),
    "batch norms frozen": watched(observed(evaluating=2)),
    "volumes, one by one": watched(observed(single=5, samples=1200)),
    "texts, one by one": watched(
        observed(single=5, samples=1200, tokens=10**6, training_seconds=12.0, losses=())
    ),
    "batches that the loader calls one sample": watched(
        observed(samples=1200, training_seconds=12.0)
    ),
    "a few of many CPUs are busy": watched(
        on_cpu(threads=64), machine=machine(cpus=128, other_seconds=40 * 75.0), **CPU
    ),
    "small helper on the CPU": watched(observed(), on_cpu(pid=2, work=(work("cpu", flops=1000),))),
    "words": watched(
        observed(
            tokens=10**6, copies=tuple(copy(f"train.py:{n}", shape="(8, 512)") for n in (30, 31))
        )
    ),
    "optimizer kept on the CPU": watched(observed(parameters=(placed("cpu"),))),
    "a temperature": watched(observed(parameters=(placed(), placed("cpu", size=4)))),
    "goes on from a checkpoint": watched(observed(losses=falling(0.31, 0.31))),
    "autoencoder": watched(observed(copies=(copy(), copy("train.py:40", "cuda:0")))),
    "sharded": watched(observed(without_gradient=6)),
    "killed at its start": watched(
        *ranks({}, {"finished": False, "steps": 0, "seconds": 3.0, "losses": ()})
    ),
    "ROCm": watched(requested="rocm", profile="rocm"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_trainings_are_not_blamed(name: str) -> None:
    result = judge.judged(HONEST[name])
    assert result.findings == ()
    assert result.on_device is True


def at_chance(classes: int) -> Any:
    return falling(math.log(classes), math.log(classes))


FOUND = {
    "device": (
        watched(on_cpu()),
        "100.00 % of the matrix work and 100.00 % of the parameters on cpu, in 5",
        'model.to("cuda")',
    ),
    "device of JAX": (
        watched(on_cpu(framework="jax", work=())),
        "100.00 % of the parameters",
        "jax.devices()",
    ),
    "device of TensorFlow": (
        watched(on_cpu(framework="tensorflow", work=())),
        "100.00 % of the parameters",
        "tf.config",
    ),
    "split": (
        watched(
            observed(
                parameters=(placed(), placed("cpu", size=5130)),
                work=(work(), work("cpu", flops=10**9)),
                copies=(copy(), copy("net.py:9", "cuda:0")),
            )
        ),
        "0.10 % of the matrix work and 0.12 % of the parameters on cpu",
        'model.to("cuda")',
    ),
    "split, where": (
        watched(
            observed(
                parameters=(placed(), placed("cpu")), copies=(copy(), copy("net.py:9", "cuda:0"))
            )
        ),
        "; tensors leave cuda at net.py:9",
        "before the optimizer",
    ),
    "split, frozen": (
        watched(observed(work=(work(), work("cpu")))),
        "50.00 % of the matrix work",
        "move the whole model",
    ),
    "float64": (
        watched(observed(parameters=(placed(dtype="float64"),), work=(work(dtype="float64"),))),
        "100 % of the parameters in float64",
        "tensor.float()",
    ),
    "autocast": (
        watched(observed(autocast=HALF)),
        "stayed in float32, in 5 sampled steps, although the script uses autocast",
        "torch.autocast",
    ),
    "autocast, scaled": (
        watched(observed(autocast=Autocast(scaled=True))),
        "or a gradient scaler",
        "torch.autocast",
    ),
    "data": (
        watched(observed(loader=Loader(batches=1200, waited=30.0, workers=0))),
        "50 % of its time for data: 25.0 ms for each of 1,200 batches, with 0 workers in the",
        "num_workers=8",
    ),
    "data, few workers": (
        watched(
            observed(loader=Loader(batches=1200, waited=30.0, workers=2)),
            machine=machine(quota=3.5),
        ),
        "with 2 workers in the loader and 4 CPUs",
        "num_workers=4",
    ),
    "data, many workers": (
        watched(observed(loader=Loader(batches=1200, waited=30.0, workers=8))),
        "with 8 workers",
        "More workers than CPUs",
    ),
    "copied twice": (
        watched(observed(copies=(copy(), copy("train.py:35", again=5)))),
        "same step, at train.py:35: 5 needless copies (490 KiB), in 5 sampled steps",
        "batch.to(device)",
    ),
    "gradients": (
        watched(observed(without_gradient=6, unchanged_updates=6, changed_at=0)),
        "6 of 6 trainable parameter tensors had no gradient in 64 examined steps",
        ".detach()",
    ),
    "gradients, some": (
        watched(observed(trainable=20, without_gradient=2, newest_gradient=1)),
        "2 of 20 trainable",
        "torch.no_grad()",
    ),
    "no update": (
        watched(observed(unchanged_updates=6, changed_at=0)),
        "None of 6 compared optimizer steps",
        "learning rate",
    ),
    "no update, from then on": (
        watched(observed(unchanged_updates=5, changed_at=17)),
        "After step 17, none of 5 compared optimizer steps",
        "learning rate",
    ),
    "eval mode": (
        watched(observed(evaluating=5)),
        "after `eval()`, in 5 sampled steps",
        "model.train()",
    ),
    "single sample": (
        watched(observed(single=5, samples=1200, training_seconds=12.0)),
        "Each of 1,200 steps had one sample, and took 10.0 ms",
        "batch_size",
    ),
    "quota, on a large node": (
        watched(on_cpu(), machine=machine(cpus=64, quota=2.0, throttled_seconds=70.0), **CPU),
        "The CPU quota stopped",
        "OMP_NUM_THREADS=2",
    ),
    "fallback": (
        watched(
            observed(
                fallbacks=("aten::nonzero",),
                work=(work(), work(flops=0, operator="aten::nonzero")),
            )
        ),
        "aten::nonzero ran on the CPU, because cuda has no such operator: 200 ms there, in 5",
        "other operators",
    ),
    "not finite": (
        watched(observed(losses=((1, 2.3), (13, None), (25, None)))),
        "first at step 13, in 2 of 3 recorded steps, and still at the end",
        "set_detect_anomaly",
    ),
    "not finite, in JAX": (
        watched(
            observed(
                framework="jax",
                losses=((1, 2.3), (13, None)),
                unchanged_updates=6,  # NaN stays NaN
                changed_at=0,
            )
        ),
        "in 1 of 2 recorded steps, and still at the end",
        "jax_debug_nans",
    ),
    "not finite, for a moment": (
        watched(observed(losses=((1, None), (13, 2.0)))),
        "in 1 of 2 recorded steps, but no longer at the end",
        "clipped",
    ),
    "not learning": (
        watched(observed(losses=at_chance(10), classes=10, labels=640)),
        "stayed at 2.31 over 1,189 steps",
        "learning rate",
    ),
    "not learning, after large first losses": (
        watched(observed(losses=((0, 6.7), *at_chance(10)), classes=10, labels=640)),
        "stayed at 2.31",
        "labels",
    ),
    "not learning, of 20 classes, in words": (
        watched(observed(losses=at_chance(20), classes=20, labels=640, tokens=10**6)),
        "guessing one of 20 classes, 3.00",
        "labels",
    ),
    "idle rank": (
        watched(*ranks({}, {"steps": 3})),
        "Rank 1 took 3 steps, others up to 1,200",
        "DistributedSampler",
    ),
    "quota": (
        watched(on_cpu(), machine=machine(quota=2.0, throttled_seconds=120.0), **CPU),
        "The CPU quota stopped the command for 20 %",
        "OMP_NUM_THREADS=2",
    ),
    "load": (
        watched(machine=machine(other_seconds=300.0)),
        "Other programs used 50 % of this machine's CPUs",
        "quiet machine",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_lost_is_named(name: str) -> None:
    report, says, advice = FOUND[name]
    (finding,) = judge.judged(report).findings
    assert finding.kind == name.partition(",")[0].partition(" of ")[0]
    assert says in finding.says
    assert advice in finding.advice
    assert 0 < finding.lost <= 1


@pytest.mark.parametrize(
    ("report", "on_device"),
    [
        (watched(on_cpu()), False),
        (watched(observed(), requested="cpu"), False),
        (watched(observed(work=(work(), work("cpu", flops=10**13)))), False),
        (watched(observed(work=(work(), work("cpu", flops=10**11)))), True),
        (watched(observed(work=())), True),
        (watched(observed(work=(), parameters=())), None),
        # Compiled, with its parameters kept off the GPU.
        (watched(observed(work=(), parameters=(placed("cpu"),))), None),
        (watched(on_cpu(work=())), False),
        (watched(processes=()), None),
    ],
)
def test_the_verdict_is_unknown_unless_something_was_seen(
    report: model.Watched, on_device: bool | None
) -> None:
    assert judge.judged(report).on_device is on_device


def test_a_busy_machine_is_none_of_a_command_that_trains_nothing() -> None:
    report = watched(processes=(), machine=machine(other_seconds=300.0))
    assert judge.judged(report).findings == ()


@pytest.mark.parametrize(
    ("workers", "cpus", "kinds"),
    [(1, 2, ["data", "load"]), (0, 2, ["data"]), (4, 64, ["data"]), (4, 6, ["data", "load"])],
)
def test_others_are_named_where_they_kept_the_training_or_its_workers_from_a_cpu(
    workers: int, cpus: int, kinds: list[str]
) -> None:
    """Other programs took three in ten of all CPUs meanwhile."""
    busy = machine(cpus=cpus, other_seconds=0.3 * 75.0 * cpus)
    loader = Loader(batches=1200, waited=30.0, workers=workers)
    findings = judge.judged(watched(observed(loader=loader), machine=busy)).findings
    assert [finding.kind for finding in findings] == kinds
    assert ("Other programs" in findings[0].says) == ("load" in kinds)


def test_half_a_second_is_no_wait() -> None:
    short = {"steps": 60, "training_seconds": 1.2, "losses": ()}
    waited = Loader(batches=60, waited=0.7, workers=1)
    assert judge.judged(watched(observed(loader=waited, **short))).findings == ()


def test_a_layer_with_nearly_all_of_the_work_is_a_part() -> None:
    parts = {"parameters": (placed(), placed("cpu")), "work": (work("cpu"), work(flops=10**8))}
    result = judge.judged(watched(observed(**parts)))
    assert [finding.kind for finding in result.findings] == ["split"]
    assert result.on_device is False


def test_ranks_that_differ_are_named_and_the_largest_loss_is_first() -> None:
    slow = {"loader": Loader(batches=1200, waited=30.0, workers=0)}
    worse = {**slow, "losses": ((1, None),)}
    findings = judge.judged(watched(*ranks({}, slow, worse))).findings
    assert [finding.kind for finding in findings] == ["not finite", "data"]
    assert findings[0].says.startswith("rank 2: The loss")
    assert findings[1].says.startswith("rank 1, rank 2: The training waited")
    both = judge.judged(watched(*ranks(slow, slow))).findings
    assert both[0].says.startswith("The training waited")


@pytest.mark.parametrize(
    ("changes", "speed"),
    [
        ({}, (640.0, "samples")),
        ({"tokens": 60_000}, (1000.0, "tokens")),
        ({"samples": None}, (20.0, "steps")),
        ({"training_seconds": 0.0}, None),
    ],
)
def test_the_rate_is_in_what_was_counted(changes: dict[str, Any], speed: Any) -> None:
    assert judge.speed(watched(observed(**changes))) == speed


def test_ranks_add_up() -> None:
    assert judge.speed(watched(*ranks({}, {}))) == (1280.0, "samples")


def test_trainings_one_after_another_do_not_add_up() -> None:
    """As those of a script that runs one for each value of something."""
    one = observed(pid=1)
    other = observed(pid=2, training_seconds=36.0, began=65.0)
    assert judge.speed(watched(one, other, seconds=150.0)) == (800.0, "samples")
    assert judge.speed(watched(one, replace(one, pid=2), seconds=150.0)) == (1280.0, "samples")
    for began, cpus in ((65.0, 8), (0.0, 4)):
        slow = observed(loader=Loader(batches=1200, waited=30.0, workers=0))
        (finding,) = judge.judged(watched(slow, replace(slow, began=began))).findings
        assert f"and {cpus} CPUs" in finding.says


def test_what_trained_beside_small_helpers_decides_the_verdict() -> None:
    helpers = [observed(pid=pid, work=(work(flops=1000),)) for pid in (2, 3, 4)]
    report = judge.judged(watched(on_cpu(pid=1), *helpers))
    assert (report.on_device, judge.device(report)) == (False, "cpu")


HUGE = (1 << 62) - 1
TEXT = st.sampled_from(["", "cpu", "cuda:0", "x" * 200, "\x1b[2J", "²:²", "a:9999999999999"])
COUNT = st.sampled_from([0, 1, 5, HUGE])
SECONDS = st.sampled_from([0.0, 5e-324, 1.0, 1e9])


@st.composite
def hostile(draw: st.DrawFn) -> model.Observed:
    def rows(kind: Any, **fields: Any) -> Any:
        return tuple(kind(**{k: draw(v) for k, v in fields.items()}) for _ in range(2))

    where = {"source": TEXT, "target": TEXT, "shape": TEXT, "where": TEXT}
    return observed(
        **{name: draw(COUNT) for name in ("rank", "steps", "windows", "threads")},
        **{name: draw(COUNT) for name in ("trainable", "without_gradient")},
        unchanged_updates=draw(COUNT),
        changed_at=draw(COUNT),
        gradient_looks=draw(COUNT),
        evaluating=draw(COUNT),
        classes=draw(COUNT),
        labels=HUGE,
        began=draw(SECONDS),
        training_seconds=draw(SECONDS),
        window_seconds=draw(SECONDS),
        loader=Loader(batches=draw(COUNT), waited=draw(SECONDS), workers=draw(COUNT)),
        parameters=rows(model.Placed, device=TEXT, dtype=TEXT, bytes=COUNT),
        work=rows(model.Work, operator=TEXT, device=TEXT, dtype=TEXT, flops=COUNT, seconds=SECONDS),
        copies=rows(model.Copy, calls=COUNT, bytes=COUNT, again=COUNT, **where),
        fallbacks=(draw(TEXT),),
        losses=tuple(
            (draw(COUNT), draw(st.sampled_from([None, 1e308, -1e308]))) for _ in range(70)
        ),
    )


@settings(max_examples=50, deadline=None)
@given(hostile(), hostile(), SECONDS, st.sampled_from([None, -1.0, 0.0, 1e300, 2.0]))
def test_hostile_numbers_are_judged_within_bounds(
    first: model.Observed, second: model.Observed, seconds: float, quota: float | None
) -> None:
    asked = watched(
        first,
        second,
        seconds=seconds,
        requested="x" * 200,
        machine=machine(cpus=0, quota=quota, throttled_seconds=1e9, other_seconds=1e9),
    )
    result = judge.judged(asked)
    # What is kept can be read again.
    assert msgspec.json.decode(msgspec.json.encode(result), type=model.Watched) == result


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"without_gradient": 6, "changed_at": 0}, "gradients"),
        ({"unchanged_updates": 4, "changed_at": 0}, "no update"),
    ],
)
def test_a_loss_that_stands_still_because_nothing_changes_is_one_finding(
    changes: dict[str, int], kind: str
) -> None:
    still = observed(losses=at_chance(10), classes=10, labels=640)
    for process, named in ((still, "not learning"), (replace(still, **changes), kind)):
        assert [each.kind for each in judge.judged(watched(process)).findings] == [named]


def test_a_training_in_another_environment_is_not_the_profiles() -> None:
    helper = observed(environment="/opt/tool", steps=0, windows=0, parameters=(), losses=())
    assert judge.judged(watched(observed(), helper)).fingerprint
    report = judge.judged(watched(observed(environment="/home/me/venv")))
    assert report.findings[0].kind == "environment"
    assert "/home/me/venv" in report.findings[0].says
    assert (report.fingerprint, report.lock) == ("", "")
    assert "another environment: /home/me/venv" in show.page(report).lower()
    # One that ended before its first step claims no lock either.
    assert judge.judged(watched(helper)).lock == ""
