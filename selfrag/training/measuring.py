"""Seconds and memory of a training step, measured on the first layers of the model and extended to all of them.

The steps are real: rows, shapes, number format, workers and optimiser are those of the run. A step's time and the peak
of its memory grow linearly with the layers, so two small models give both.
"""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from selfrag.training.model import Trainee
from selfrag.training.packing import Pack
from selfrag.training.run import optimizer_for, take_step
from selfrag.training.settings import TrainingConfig

FEW, MORE = 1, 4
"""Layers of the two models. A model with no more than `MORE` is measured whole."""

_ALONE = 0.9
"""Share of the cores above which the machine counts as free."""

Load: TypeAlias = Callable[[int, int | None], Trainee]
"""Loads the first layers of the model, so many, with LoRA on the last of them, so many; None for what the run says."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One step of a run."""

    seconds: float  # by the clock, on a machine that does nothing else
    share: float  # part of the time in which the threads could run that they did, 0 to 1
    memory: float  # bytes of the process, or of the GPU, at the peak


def measured(
    load: Load,
    layers: int,
    last: int | None,
    packs: Sequence[Pack],
    config: TrainingConfig,
    *,
    threads: int = 1,
    autocast: bool = False,
) -> Measured:
    """Measure a step.

    Args:
        load: loads the model with fewer layers.
        layers: of the whole model.
        last: layers at its end that have LoRA; None for all, or for a run of all weights.
        packs: what a step computes, side by side.
        config: of the run.
        threads: of a worker.
        autocast: computes in bf16 beside float32 weights, as the Trainer does.
    """

    def step(some: int, trained: int | None) -> Measured:
        return _step(load(some, trained), packs, config, threads, autocast)

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


def _step(trainee: Trainee, packs: Sequence[Pack], config: TrainingConfig, threads: int, autocast: bool) -> Measured:
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
