"""The steps of the run, the most valuable first, and the function that each calls in a process of its own."""

from __future__ import annotations

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


STEPS = (
    Step("environment", "What is there", 15, "environment.describe"),
    Step("weights", "The demo model", 75, "models.prepare_demo"),
    Step(
        "parity",
        "Parity of the transformers engine with the CPU",
        45,
        "parity.compare_devices",
    ),
    Step(
        "questions-demo",
        "Questions a second: demo model",
        70,
        "questions.time_demo",
        (_TRANSFORMERS,),
    ),
    Step(
        "questions-7b",
        "Questions a second: shape of Llama-2 7B",
        80,
        "questions.time_7b",
        (_TRANSFORMERS, _RANDOM),
    ),
    Step(
        "training-demo",
        "Training: size of the demo",
        40,
        "training_steps.train_demo_size",
        (_TRAINING,),
    ),
    Step(
        "training-7b",
        "Training: shape of Llama-2 7B",
        95,
        "training_steps.train_7b_size",
        (_TRAINING,),
    ),
    Step(
        "vllm-demo",
        "Questions a second: demo model on vLLM",
        150,
        "questions.time_vllm_demo",
        (_VLLM,),
    ),
    Step(
        "vllm-7b",
        "Questions a second: shape of Llama-2 7B on vLLM",
        150,
        "questions.time_vllm_7b",
        (_VLLM, _RANDOM),
    ),
    Step(
        "retraining",
        "The demo's first stage, trained anew",
        None,
        "training_steps.retrain_demo",
        (_RETRAINING,),
    ),
)
