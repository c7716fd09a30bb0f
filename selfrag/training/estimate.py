"""What a run will cost before it starts: tokens, steps, memory and time.

Counts are exact. Memory and time come from real steps on this machine: rows, shapes, number format, workers and
optimiser are those of the run, and the model has its first layers only. Both grow linearly with the layers, so two
small models give them. Where that would take too long, or the model will be cut into shards, they are calculated from
its shape and a short measurement of matrix products.
"""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from selfrag.common.errors import UserError
from selfrag.common.pretrained import load, quiet, unusable
from selfrag.common.progress import duration
from selfrag.loading import check_base
from selfrag.training.model import DTYPES, Trainee, chosen_precision
from selfrag.training.packing import Pack, Step, pack, split
from selfrag.training.rows import MASKED
from selfrag.training.run import Prepared, load_for, optimizer_for, plan, take_step
from selfrag.training.settings import Method, Scale, TrainingConfig

FEW, MORE = 1, 4
"""Layers of the two models. A model with no more than `MORE` is measured whole."""

_ALONE = 0.9
"""Share of the cores above which the machine counts as free."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One step of a run."""

    seconds: float  # by the clock, on a machine that does nothing else
    share: float  # part of the time in which the threads could run that they did, 0 to 1
    memory: float  # bytes of the process, or of the GPU, at the peak


def _step(trainee: Trainee, packs: Sequence[Pack], config: TrainingConfig, threads: int, *, autocast: bool) -> Measured:
    """The second of two steps, and the peak of both and of a checkpoint."""
    gpu = trainee.causal.device.type == "cuda"
    optimizer = optimizer_for(trainee, config)
    for parameter in trainee.parameters.values():  # the optimiser's state is there from the second step on
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    _forget_peak(gpu)
    workers = min(len(packs), config.workers)

    def begin() -> None:
        torch.set_num_threads(threads)
        if autocast:  # of the thread
            torch.set_autocast_dtype(trainee.causal.device.type, torch.bfloat16)
            torch.set_autocast_enabled(trainee.causal.device.type, True)

    with ThreadPoolExecutor(workers, initializer=begin) as pool:
        with _together(trainee, workers):
            take_step(trainee, packs, pool, optimizer, config, 0.0)
        scheduled, computed, started = _scheduled(), time.process_time(), time.monotonic()
        take_step(trainee, packs, pool, optimizer, config, 0.0)
        if gpu:
            torch.cuda.synchronize()
        clock, core = time.monotonic() - started, time.process_time() - computed
        ran, waited = (after - before for after, before in zip(_scheduled(), scheduled, strict=True))
    torch.save({"parameters": trainee.parameters, "optimizer": optimizer.state_dict()}, io.BytesIO())
    share = ran / (ran + waited) if ran > 0 else 1.0
    # Beside other work the clock tells little: then the time of the cores counts, as if all threads had run throughout.
    alone = clock if gpu or share > _ALONE else core / (threads * workers)
    return Measured(alone, share, _peak(gpu))


@contextmanager
def _together(trainee: Trainee, workers: int) -> Iterator[None]:
    """Let all workers end their forward pass before one goes back, so that the peak does not depend on chance."""
    losses, barrier, calls = trainee.losses, threading.Barrier(workers), itertools.count()

    def waiting(pack: Pack) -> tuple[torch.Tensor, torch.Tensor]:
        first = next(calls) < workers
        try:
            return losses(pack)
        finally:
            if first:
                barrier.wait()

    trainee.losses = waiting  # type: ignore[method-assign]
    try:
        yield
    finally:
        del trainee.losses


def _scheduled() -> tuple[int, int]:
    """Nanoseconds in which this process's threads ran, and in which they waited for a core. Linux only; else 0, 0."""
    ran = waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # a thread may end meanwhile
            running, waiting, _ = map(int, path.read_text().split())
            ran, waited = ran + running, waited + waiting
    return ran, waited


def _forget_peak(gpu: bool) -> None:
    """Give freed memory back and start the peak anew, as far as the system lets us."""
    gc.collect()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak(gpu: bool) -> float:
    """Most bytes of memory that this process held, or held of the GPU."""
    if gpu:
        return float(torch.cuda.max_memory_reserved())
    with suppress(OSError):
        if found := re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE):
            return float(found[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most) * (1 if sys.platform == "darwin" else 1024)


_SIDE = 1024
_PRODUCT = 2 * _SIDE**3  # floating-point operations
_SECONDS = 1.0  # of a measurement; a machine that is very busy takes a little longer
_LEAST = 3  # products of a worker, however little of a core it gets


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of matrix products, all workers together."""

    alone: float  # floating-point operations a second, with the workers' cores to themselves
    share: float  # part of the cores that the workers got, 0 to 1


def measured_rate(workers: int = 1, dtype: str = "bfloat16") -> Rate:
    """Measure a CPU with so many threads side by side, or the GPU where there is one (which is taken to be free)."""
    if torch.cuda.is_available():
        done, spent, _ = _products("cuda", dtype)
        return Rate(done * _PRODUCT / spent, 1.0)
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(lambda _: _products("cpu", dtype), range(workers)))
    now = sum(done / clock for done, clock, _ in found)
    alone = sum(done / min(clock, core) for done, clock, core in found)
    return Rate(alone * _PRODUCT, min(1.0, now / alone))


def _products(device: str, dtype: str) -> tuple[int, float, float]:
    """Number of products, and the wall and CPU seconds that they took."""
    matrix = torch.ones(_SIDE, _SIDE, dtype=getattr(torch, dtype), device=device)
    (matrix @ matrix).sum().item()
    done, clock, core = 0, time.perf_counter(), time.thread_time()
    while done < _LEAST or time.perf_counter() - clock < _SECONDS:
        (matrix @ matrix).sum().item()
        done += 1
    return done, time.perf_counter() - clock, max(time.thread_time() - core, 1e-9)


EFFICIENCY = 0.45
"""Share of the measured rate of matrix products that whole steps reach; 0.48 was measured at 135M on a CPU."""

_MOST = 1e13
"""Operations above which a CPU does not measure a step: some ten seconds."""

_QUANTIZED = 0.55
"""Bytes of a parameter in 4 bits, with its share of the scales."""

_BUSY = 0.7  # below this share of the cores, the time at the present load is told too
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that determine cost and memory."""

    body: int  # parameters that every token passes, without the two vocabulary matrices
    vocabulary: int  # parameters of the vocabulary matrices; tied ones count once
    head: int  # parameters of the output matrix alone
    adapter: int  # parameters of LoRA pairs and token rows at the run's rank
    layers: int  # number of layers
    width: int  # of the hidden states
    inner: int  # of the feed-forward layers

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.body + self.vocabulary

    def trained(self, method: Method) -> int:
        """Parameters that are trained."""
        return self.adapter if method == "lora" else self.parameters


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a run."""

    steps: int  # optimiser steps
    tokens: int  # tokens over the whole run
    targets: int  # positions with a loss over the whole run
    largest_load: int  # tokens that one process holds at once
    parameters: int  # of the model
    trained: int  # parameters that are trained
    memory: float  # bytes of one process
    seconds: float  # of computing, all processes side by side, on a machine that does nothing else
    share: float  # part of the cores that this process got when it measured, 0 to 1
    calculated: Mapping[str, float] | None  # bytes by what they are for, where the run was not measured

    @property
    def seconds_now(self) -> float:
        """As `seconds`, with the load that the machine had when it was measured."""
        return self.seconds / self.share


def estimate(
    prepared: Prepared, base_dir: Path, config: TrainingConfig, scale: Scale | None, *, processes: int = 1
) -> Estimate:
    """Estimate a run.

    Raises:
        UserError: `base_dir` holds no config of a causal language model.
    """
    shape = read_shape(base_dir, config)
    steps = plan(prepared, config)
    rows = [row for step in steps for load in step for row in load]
    lengths = [len(example) for example in prepared.examples]
    targets = [sum(label != MASKED for label in example.labels) for example in prepared.examples]
    tokens, learned = sum(lengths[row] for row in rows), sum(targets[row] for row in rows)
    device = "cuda" if torch.cuda.is_available() and (scale or config.device.startswith("cuda")) else "cpu"
    config = replace(config, precision=chosen_precision(config.precision, device)[0])
    cores = os.cpu_count() or 1
    side_by_side = 1 if scale is None else processes if device == "cuda" else min(processes, cores)

    def work(some: Iterable[int]) -> float:
        return sum(_work(shape, config, scale, lengths[row], targets[row]) for row in some)

    loads = _heaviest(steps, lengths, scale)
    once = work(row for load in loads for row in load)
    sharded = scale is not None and scale.sharding != "none"
    calculated: dict[str, float] | None = None
    if not sharded and (device == "cuda" or once * min(1.0, (FEW + MORE) / shape.layers) < _MOST):
        packs = [pack([prepared.examples[row] for row in load], config.weighting) for load in loads]
        found = _measured(base_dir, shape.layers, packs, config, scale, device, max(1, cores // processes))
        seconds, share, memory = found.seconds * work(rows) / once / side_by_side, found.share, found.memory
    else:
        dtype = DTYPES[config.precision]
        rate = measured_rate(side_by_side if scale else config.workers, dtype=str(dtype).removeprefix("torch."))
        seconds, share = work(rows) / (rate.alone * EFFICIENCY * (processes if device == "cuda" else 1)), rate.share
        load = _largest_load(steps, lengths, config, scale)
        calculated = _memory(shape, config, scale, load, learned / tokens, processes if sharded else 1, dtype.itemsize)
        memory = sum(calculated.values())
    return Estimate(
        steps=len(steps),
        tokens=tokens,
        targets=learned,
        largest_load=_largest_load(steps, lengths, config, scale),
        parameters=shape.parameters,
        trained=shape.trained(config.method),
        memory=memory,
        seconds=seconds,
        share=share,
        calculated=calculated,
    )


def _heaviest(steps: Sequence[Step], lengths: Sequence[int], scale: Scale | None) -> Step:
    """Rows of the step with most tokens, by load: all loads of the loop, the heaviest load of the Trainer."""
    step = max(steps, key=lambda one: sum(lengths[row] for load in one for row in load))
    if scale is None:
        return step
    rows = [row for load in step for row in load]
    limit = max(scale.micro_tokens, max(lengths[row] for row in rows))
    dealt = split(rows, lengths, -(-sum(lengths[row] for row in rows) // limit))
    return (max(dealt, key=lambda load: sum(lengths[row] for row in load)),)


def _measured(
    base_dir: Path,
    layers: int,
    packs: Sequence[Pack],
    config: TrainingConfig,
    scale: Scale | None,
    device: str,
    threads: int,
) -> Measured:
    """One step by the loop, or one load of a process of the Trainer with so many threads."""
    from selfrag.training.scale import autocast, load_scaled

    last = config.reach.last_layers

    def step(some: int, trained: int | None) -> Measured:
        """With the first layers, LoRA on the last of these; None for what the run says."""
        reach = config.reach if last is None else replace(config.reach, last_layers=trained or some)
        fewer = replace(config, reach=reach)
        if scale is None:
            return _step(load_for(base_dir, fewer, some), packs, config, 1, autocast=False)
        trainee = load_scaled(base_dir, fewer, scale, device=device, layers=some)
        if scale.checkpointing:
            trainee.model.train()
            trainee.model.gradient_checkpointing_enable({"use_reentrant": False})
        return _step(trainee, packs, config, threads, autocast=autocast(config, scale))

    with quiet():
        if layers <= MORE:
            return step(layers, last)
        learning = layers if last is None else min(last, layers)
        few, more = step(FEW, None), step(MORE, None)
        frozen = few if learning == layers else step(MORE, FEW)

    def whole(low: float, high: float, still: float) -> float:
        """Value of `low`, plus the slope of layers that learn, plus that of layers that do not."""
        each, idle = ((value - low) / (MORE - FEW) for value in (high, still))
        return low + max(0.0, each) * (learning - FEW) + max(0.0, idle) * (layers - learning)

    return Measured(
        whole(few.seconds, more.seconds, frozen.seconds),
        min(few.share, more.share),
        whole(few.memory, more.memory, frozen.memory),
    )


def summary(found: Estimate, passes: int, processes: int = 1) -> list[str]:
    """An estimate for people, a line a subject."""
    how = "measured by real steps"
    parts = ""
    if found.calculated is not None:
        how = "calculated from the model's shape, good to a factor of two"
        parts = " (" + ", ".join(f"{name} {size / _GIB:.2f}" for name, size in found.calculated.items()) + ")"
    busy = ""
    if found.share < _BUSY:
        taken, longer = f"{1 - found.share:.0%}", duration(found.seconds_now)
        busy = f"; other work takes {taken} of the machine now, and beside that it would be {longer}"
    over = f"{passes} pass{'es' if passes != 1 else ''}"
    return [
        f"tokens      {found.tokens} over {over}, {found.targets} of them with a loss",
        f"steps       {found.steps}, at most {found.largest_load} tokens at once a process",
        f"parameters  {found.parameters / 1e6:.1f} M, {found.trained / 1e6:.1f} M trained",
        f"memory      about {found.memory / _GIB:.1f} GiB a process{parts}, {how}",
        f"time        about {duration(found.seconds)} with {processes} process{'es' if processes > 1 else ''}{busy}",
    ]


def read_shape(base_dir: Path, config: TrainingConfig) -> Shape:
    """The shape of a checkpoint's model, from its config.

    Raises:
        UserError: there is none that transformers knows as a causal language model.
    """
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    check_base(base_dir)
    try:
        settings = load("AutoConfig", base_dir)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{base_dir} holds no causal language model: {error}") from error
    except Exception as error:  # of torch, for sizes that make no sense
        raise unusable(base_dir, error) from error
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    tied = bool(getattr(settings, "tie_word_embeddings", False))
    vocabulary = inputs.numel() if tied else inputs.numel() + outputs.numel()
    body = sum(p.numel() for p in model.parameters() if p is not inputs and p is not outputs)
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear | Conv1D) and m.weight is not outputs]
    adapter = config.lora.rank * sum(sum(m.weight.shape) for m in linear) + 15 * inputs.shape[1] * (1 if tied else 2)
    text = settings.get_text_config()
    inner = max(max(m.weight.shape) for m in linear)
    return Shape(body, vocabulary, outputs.numel(), adapter, text.num_hidden_layers, inputs.shape[1], inner)


def _largest_load(steps: Sequence[Step], lengths: Sequence[int], config: TrainingConfig, scale: Scale | None) -> int:
    """Tokens in memory at once: of the CPU loop a load a worker, of the Trainer one load."""
    longest = max(lengths)
    if scale is not None:
        return max(scale.micro_tokens, longest)
    at_once = [sorted((sum(lengths[row] for row in load) for load in step), reverse=True) for step in steps]
    return max(sum(loads[: config.workers]) for loads in at_once)


def _work(shape: Shape, config: TrainingConfig, scale: Scale | None, length: int, targets: int) -> float:
    """Operations of one row, forward and backward. With LoRA frozen weights need no gradient: two passes, not three."""
    attention = 4 * shape.layers * shape.width * length / 2
    forward = length * (2 * shape.body + attention) + targets * 2 * shape.head
    again = scale is not None and scale.checkpointing
    return ((2 if config.method == "lora" else 3) + again) * forward


def _memory(
    shape: Shape, config: TrainingConfig, scale: Scale | None, load: int, share: float, shards: int, size: int
) -> dict[str, float]:
    """Bytes by purpose, for a load of tokens, a share of them targets, with numbers of so many bytes."""
    # LoRA: base and a merged copy of the body; full: float32 originals and copies to compute with.
    lora = config.method == "lora"
    weights: float = size * (shape.parameters + shape.body) if lora else (4 + size) * shape.parameters
    if config.quantize != "none":
        weights = _QUANTIZED * shape.body + size * shape.vocabulary
    trained = shape.trained(config.method)
    kept = size * (10 * shape.width + 4 * shape.inner)  # activations of one token in one layer
    again = scale is not None and scale.checkpointing
    layers = shape.layers * size * shape.width + kept if again else shape.layers * kept
    return {
        "weights": weights / shards,
        "gradients": 4 * trained / shards,
        "optimiser": 8 * trained / shards,
        "activations": float(load * layers),
        "logits": load * share * (shape.head / shape.width) * 12,  # bf16, float32 and their gradient
    }
