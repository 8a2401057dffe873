"""Honest trainings in the forms that people write them: watched_forms.py FORM [DEVICE]."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

FORM = sys.argv[1]
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
COMPILER = "aot_eager" if DEVICE == "cpu" else "inductor"
STEPS = 160


class Rows(torch.utils.data.Dataset):
    """Points of ten classes, each the same whichever process makes it."""

    def __len__(self) -> int:
        return 16 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(32, generator=torch.Generator().manual_seed(index))
        return inputs, inputs[:10].argmax()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10)).to(DEVICE)


def batches(**options: Any) -> Any:
    return torch.utils.data.DataLoader(Rows(), batch_size=16, shuffle=True, **options)


def moved(loader: Any) -> Iterator[list[torch.Tensor]]:
    """Yield its batches on the device."""
    for batch in loader:
        yield [each.to(DEVICE, non_blocking=True) for each in batch]


def bare(model: nn.Module, **options: Any) -> Iterator[int]:
    """Train step by step; the numbers are printed, by the first of several ranks."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step, (inputs, labels) in enumerate(moved(batches(**options)), 1):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if os.environ.get("RANK", "0") == "0":
            print(step, loss.item(), flush=True)
        yield step


def plain() -> None:
    list(bare(net()))


def spawned() -> None:
    list(bare(net(), num_workers=1, multiprocessing_context="spawn"))


def halves() -> None:
    """Train in bfloat16 at a rate that changes no weight near 1, as those of norms are."""
    layers = [nn.RMSNorm(32) for _ in range(10)]
    model = nn.Sequential(*layers, nn.Linear(32, 10, bias=False))
    model.to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    for inputs, labels in moved(batches()):
        loss = nn.functional.cross_entropy(model(inputs.bfloat16()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


def compiled() -> None:
    list(bare(torch.compile(net(), backend=COMPILER)))


def profiled() -> None:
    """Use the profiler throughout, in windows that meet those of others."""
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=0)
    kinds: list[int] = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda p: kinds.append(
            sum(e.count for e in p.key_averages() if e.key == "aten::addmm")
        ),
    ) as profiler:
        for _ in bare(net()):
            profiler.step()
    print(kinds)


def hooked() -> None:
    """Have hooks and a signal handler of one's own, which see what they should."""
    model = net()
    seen: list[float] = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.sum().item()))
    model[2].weight.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(0.5))
    for step in bare(model):
        if step == 30:
            os.kill(os.getpid(), signal.SIGUSR1)
    print(seen)


def lbfgs() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for inputs, labels in moved(batches()):

        def closure(inputs: torch.Tensor = inputs, labels: torch.Tensor = labels) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        print(optimizer.step(closure).item())


def adversaries() -> None:
    """Two optimizers, the second through the first one's model; each removes its gradients."""
    critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE)
    maker = nn.Linear(8, 32).to(DEVICE)
    criticizes = torch.optim.Adam(critic.parameters(), 1e-3)
    makes = torch.optim.Adam(maker.parameters(), 1e-3)
    for inputs, _ in moved(batches()):
        made = maker(torch.randn(len(inputs), 8, device=DEVICE))
        loss = nn.functional.softplus(-critic(inputs)).mean()
        loss = loss + nn.functional.softplus(critic(made.detach())).mean()
        criticizes.zero_grad()
        loss.backward()
        criticizes.step()
        criticizes.zero_grad()
        deceived = nn.functional.softplus(-critic(made)).mean()
        makes.zero_grad()
        deceived.backward()
        makes.step()
        makes.zero_grad()
        print(loss.item(), deceived.item())


class Counting(TorchDispatchMode):
    """Counts the operators in it."""

    calls = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


def counted() -> None:
    """Count the operators of some steps."""
    mode = Counting()
    for step in bare(net()):
        if step == 40:
            mode.__enter__()
        if step == 120:
            mode.__exit__(None, None, None)
    print(mode.calls)


def quickly(model: Callable[..., Any], optimizer: torch.optim.Optimizer) -> None:
    """Take the steps on the same points."""
    inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


def folds() -> None:
    """Train a model after another, with an optimizer each that is kept."""
    pairs = [(model, torch.optim.Adam(model.parameters())) for model in (net(), net())]
    for model, optimizer in pairs:
        quickly(model, optimizer)


def threads() -> None:
    """Train in threads at once, of which each removes gradients while others look at theirs."""
    models = [nn.Linear(32, 10 * size).to(DEVICE) for size in range(1, 4)]
    each = [(model, torch.optim.Adam(model.parameters())) for model in models]
    started = [threading.Thread(target=quickly, args=pair) for pair in each]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def compiles() -> None:
    """Compile the optimizer's step."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step = torch.compile(optimizer.step, backend=COMPILER)
    quickly(model, optimizer)
    print(torch._dynamo.utils.counters["stats"])


def late() -> None:
    """Compile the model in the third step, which is the first one that is sampled."""
    model = net()
    steps = itertools.count(1)
    compiled = torch.compile(model, backend=COMPILER)

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        return (model if next(steps) < 3 else compiled)(inputs)

    quickly(forward, torch.optim.Adam(model.parameters()))
    print(torch._dynamo.utils.counters["stats"])


def starts() -> None:
    """Train in processes of `torch.multiprocessing`."""
    torch.multiprocessing.spawn(started, nprocs=2)


def started(number: int) -> None:
    torch.manual_seed(number)
    model = net()
    quickly(model, torch.optim.Adam(model.parameters()))


def pinned() -> None:
    """Load in workers, and copy from pinned memory without waiting."""
    list(bare(net(), num_workers=2, pin_memory=True))


def captures() -> None:
    """Replay the whole step as a CUDA graph, after three on a stream of their own."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    inputs = torch.randn(16, 32, device=DEVICE)
    labels = inputs[:, :10].argmax(1)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(STEPS):
        graph.replay()
    print(loss.item())


def graphs() -> None:
    """Replay forward and backward as CUDA graphs; the optimizer steps by itself."""
    inputs = torch.randn(16, 32, device=DEVICE)
    quickly(*_graphed(inputs))


def _graphed(inputs: torch.Tensor) -> tuple[Callable[..., Any], torch.optim.Optimizer]:
    model = net()
    graphed = torch.cuda.make_graphed_callables(model, (inputs,))
    return graphed, torch.optim.Adam(model.parameters())


def shards() -> None:
    """Train a model of which each rank has a part, in steps that take ranks unequally long."""
    from torch.distributed import fsdp

    torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=1))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(32, 1), nn.Linear(1, 10))
    for layer in (*model, model):
        fsdp.fully_shard(layer, mesh=mesh)
    list(bare(model))
    torch.distributed.destroy_process_group()


def leaves() -> None:
    for step in bare(net()):
        if step == 40:
            os._exit(3)


def killed() -> None:
    for step in bare(net()):
        if step == 40:
            os.kill(os.getpid(), signal.SIGKILL)


def ranks() -> None:
    """Train in two processes that share gradients; `idle` leaves all batches to the first."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    if FORM == "idle" and rank == 1:
        torch.distributed.barrier()
    else:
        model = net()
        if FORM != "idle":
            model = nn.parallel.DistributedDataParallel(model)
        for _ in bare(model):
            pass
        if FORM == "idle":
            torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def accelerate() -> None:
    import accelerate as library

    helper = library.Accelerator(
        cpu=DEVICE == "cpu", gradient_accumulation_steps=2, mixed_precision="bf16"
    )
    model = net()
    model, optimizer, loader = helper.prepare(
        model, torch.optim.AdamW(model.parameters(), 1e-3), batches()
    )
    for inputs, labels in loader:
        with helper.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            helper.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item())


def lightning() -> None:
    import lightning as library
    from lightning.pytorch.plugins.environments import LightningEnvironment

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            print(number, loss.item())
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            print("validation", self.net(batch[0]).sum().item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = library.Trainer(
        max_epochs=2,
        accelerator=DEVICE,
        devices=1,
        plugins=[LightningEnvironment()],  # where mpi4py is installed, MPI would be started
        val_check_interval=30,
        **dict.fromkeys(off, False),
    )
    trainer.fit(Module(), batches(), batches())


def transformers() -> None:
    import transformers as library

    class Texts(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8 * STEPS

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            words = torch.randint(64, (12,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": words, "labels": words[0] % 3}

    config = library.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = library.Trainer(
            model=library.BertForSequenceClassification(config),
            args=library.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=8,
                num_train_epochs=1,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=DEVICE == "cpu",
                disable_tqdm=True,
            ),
            train_dataset=Texts(),
        )
        trainer.train()
        print([entry.get("loss") for entry in trainer.state.log_history])


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()["ranks" if FORM == "idle" else FORM]()
