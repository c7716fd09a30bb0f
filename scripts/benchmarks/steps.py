"""The steps of the run, the most valuable first, and what each calls. What a step needs is imported in its process."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from scripts.benchmarks.job import Job, SkipStep
from scripts.benchmarks.report import Step

_RANDOM = (
    "Weights are random. Every candidate has 20 new tokens: no stop id ends it, and a Retrieve token takes the place of"
    " its last id, for ours and for the loop alike. The long form always has three segments."
)
_TRANSFORMERS = (
    "Ours is the transformers engine, with a new prefix cache for each line. The published loop answers one question"
    " at a time by `model.generate` of the same module, all passages of a node in one batch."
)
_VLLM = "Ours and the loop share one vLLM engine with prefix caching, emptied before each line."
_TRAINING = (
    "Ours packs rows and keeps float32 originals of what it trains; the plain Trainer pads rows and computes logits at"
    " every position. In full training the plain one keeps weights and AdamW's state in the number format of the"
    " device. Rows are made of the items."
)
_RETRAINING = (
    "The first stage of the demo with the settings and the seed of train_demo.py, the last line as far as the time"
    " went. The look at held-out rows is not in the training seconds."
)


def environment(job: Job) -> None:
    """Say what is there."""
    from scripts.benchmarks.environment import describe

    describe(job)


def weights(job: Job) -> None:
    """Prepare the demo model."""
    from scripts.benchmarks.models import prepare_demo

    prepare_demo(job)


def parity(job: Job) -> None:
    """Compare the device with the CPU."""
    from scripts.benchmarks.parity import compare_devices

    compare_devices(job)


def questions_demo(job: Job) -> None:
    """Time the demo model."""
    from scripts.benchmarks.questions import time_demo

    time_demo(job)


def questions_7b(job: Job) -> None:
    """Time a model of 7B."""
    from scripts.benchmarks.questions import time_7b

    time_7b(job)


def training_demo(job: Job) -> None:
    """Train at the demo's size."""
    from scripts.benchmarks.training_steps import train_demo_size

    train_demo_size(job)


def training_7b(job: Job) -> None:
    """Train at the shape of 7B."""
    from scripts.benchmarks.training_steps import train_7b_size

    train_7b_size(job)


def vllm_demo(job: Job) -> None:
    """Time the demo model on vLLM."""
    _check_vllm()
    from scripts.benchmarks.questions import time_vllm_demo

    time_vllm_demo(job)


def vllm_7b(job: Job) -> None:
    """Time a model of 7B on vLLM."""
    _check_vllm()
    from scripts.benchmarks.questions import time_vllm_7b

    time_vllm_7b(job)


def _check_vllm() -> None:
    if find_spec("vllm") is None:
        raise SkipStep("vLLM is not installed")


def retraining(job: Job) -> None:
    """Train the demo's first stage."""
    from scripts.benchmarks.training_steps import retrain_demo

    retrain_demo(job)


STEPS: dict[Step, Callable[[Job], None]] = {
    Step("environment", "What is there", 15): environment,
    Step("weights", "The demo model", 75): weights,
    Step("parity", "Parity of the transformers engine with the CPU", 45): parity,
    Step("questions-demo", "Questions a second: demo model", 70, (_TRANSFORMERS,)): questions_demo,
    Step("questions-7b", "Questions a second: shape of Llama-2 7B", 80, (_TRANSFORMERS, _RANDOM)): questions_7b,
    Step("training-demo", "Training: size of the demo", 40, (_TRAINING,)): training_demo,
    Step("training-7b", "Training: shape of Llama-2 7B", 95, (_TRAINING,)): training_7b,
    Step("vllm-demo", "Questions a second: demo model on vLLM", 150, (_VLLM,)): vllm_demo,
    Step("vllm-7b", "Questions a second: shape of Llama-2 7B on vLLM", 150, (_VLLM, _RANDOM)): vllm_7b,
    Step("retraining", "The demo's first stage, trained anew", None, (_RETRAINING,)): retraining,
}
