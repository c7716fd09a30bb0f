"""Options of several commands, and opening what answers for as long as a command runs."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selfrag.cli.fields import Fields, FieldValues
from selfrag.common.checks import parse_settings, split_pair
from selfrag.common.errors import UserError
from selfrag.common.plugins import load_registered, names
from selfrag.common.untrusted import printable
from selfrag.decoding.policy import Decoding, check_names
from selfrag.reflection.weights import Weights

DataFolder = Annotated[Path | None, typer.Option(exists=True, file_okay=False)]
Index = Annotated[str | None, typer.Option("--index", "--retriever")]
Changes = Annotated[list[str] | None, typer.Option("--set")]
PolicyOptions = Annotated[
    FieldValues,
    Fields(
        Decoding,
        "How to answer",
        "mode",
        "threshold",
        "weights.isrel=--w-rel",
        "weights.issup=--w-sup",
        "weights.isuse=--w-use",
        "beam",
        "guardrails=--guardrail",
        "judges=--judge",
        "passages",
        "max_segments=--segments",
    ),
]
Policy = Annotated[str, typer.Option(metavar="<paper|light|strict|official|..>")]
PRESETS: dict[str, Callable[..., Decoding]] = {
    "paper": Decoding,
    "full": Decoding,  # the paper's, by the name that chat models have for it
    "light": Decoding.light,
    "strict": Decoding.strict,
    "official": Decoding.official,
}
FORMATS = "selfrag.formats"
"""Entry points of models that answer in another format than reflection tokens.

Each names a function of a model, an index, an engine, settings of the decoding, and fields of the engine's
configuration by name, that gives a `selfrag.serving.service.Answering`
which also has `generate`, and is freed at the end of a `with` block.
"""
POLICIES = "selfrag.policies"
"""Entry points of other packages' presets: a function of fields of `Decoding` gives a `Decoding`."""


def with_changes(settings: FieldValues, pairs: Sequence[str] | None) -> FieldValues:
    """Return the settings of options and of `--set`.

    Raises:
        UserError: a setting is given in both ways.
    """
    changes = parse_settings(pairs or ())
    for name in changes.keys() & settings.keys():
        raise UserError(f"--set {name} and the option of {name}: give one of the two")
    return settings | changes


def decoding(policy: str, settings: Mapping[str, Any]) -> Decoding:
    """Return the preset of a name with the settings of `PolicyOptions` and of `--set`."""
    make = PRESETS.get(policy) or load_registered(POLICIES, policy)
    if make is None:
        if policy in names(FORMATS):
            raise UserError(
                f"Invalid value for '--policy': {policy!r} is for ask and serve alone."
            )
        known = ", ".join(map(repr, (*PRESETS, *names(POLICIES), *names(FORMATS))))
        raise UserError(
            f"Invalid value for '--policy': {policy!r} is not one of {known}."
        )
    changes: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for name, value in settings.items():
        field, _, group = name.partition(".")
        if group:
            weights[group] = value
        elif name == "weights":
            changes[field] = Weights.parse(str(value))
        elif name in ("require", "forbid"):
            changes[field] = constraint_of(name, str(value))
        else:
            changes[field] = value
    check_names(changes)
    preset: Decoding = make(**changes)
    if weights:
        preset = replace(preset, weights=replace(preset.weights, **weights))
    preset.check_effective(name.partition(".")[0] for name in settings)
    return preset


def judge_names(
    model: str, settings: Decoding, flow: str | None = None, loaded: Sequence[str] = ()
) -> list[str]:
    """Return the judges to load: those of `--load-judge`, and others that a policy or a flow asks for, each once.

    Raises:
        UserError: a judge cannot take part while an answer is written.
    """
    known = {text.partition("=")[0] for text in loaded}
    terms = [term.judge for term in settings.judges]
    guardrails = [guardrail.judge for guardrail in settings.guardrails]
    judges = dict.fromkeys((*terms, *guardrails))
    unloaded = [name for name in judges if name not in known]
    if unloaded:
        from selfrag.intrinsics.named import check_names, is_opened, open_judge

        # A judge that is loaded without NAME= has its own name.
        specs = [text for text in loaded if "=" not in text and is_opened(text)]
        own_names = {open_judge(spec).name for spec in specs}
        unloaded = [name for name in unloaded if name not in own_names]
        check_names(unloaded, model)
    return list(dict.fromkeys((*_flow_intrinsics(flow), *unloaded, *loaded)))


def constraint_of(setting: str, text: str) -> dict[str, list[str]]:
    """Return the labels of each group: `issup=Fully supported,isuse=5` as `{"issup": ["Fully supported"], ..}`."""
    labels: dict[str, list[str]] = {}
    for pair in text.split(","):
        group, label = split_pair(
            setting, pair, "GROUP=LABEL", "issup='Fully supported'"
        )
        labels.setdefault(group, []).append(label)
    return labels


_ASKS = {
    "qr": ("query_rewrite",),
    "qr-both": ("query_rewrite",),
    "again": ("answerability",),
    "ad": ("answerability",),
}


def _flow_intrinsics(flow: str | None) -> tuple[str, ...]:
    if flow is None:
        return ()
    from selfrag.intrinsics.flows.flow import parts_of

    return tuple(dict.fromkeys(name for part in parts_of(flow) for name in _ASKS[part]))


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which engine loads a model, and how.

    Attributes:
        name: vllm, transformers, onnx or http://HOST:PORT; by default vllm on a GPU, and the best one installed on a
            CPU (`ask`, `chat`, `mcp`: transformers, or onnx without torch, which start soonest).
        dtype: number format of the weights, int8 with onnx; by default that of the checkpoint, but a fast one for
            float32 on a GPU.
        deterministic: the same question gives the same bytes, again and in any batch; slower.
        settings: setting of the engine, KEY=VALUE, such as max_model_len=4096 or tensor_parallel_size=2.
    """

    name: str | None = None
    dtype: Literal["float32", "bfloat16", "float16", "int8"] | None = None
    deterministic: bool = False
    settings: tuple[str, ...] = ()


EngineChoice = Annotated[
    FieldValues,
    Fields(
        EngineOptions,
        "What answers",
        "name=--engine",
        "dtype",
        "deterministic",
        "settings=--engine-set",
    ),
]


def engine_options(engine: FieldValues) -> tuple[str | None, dict[str, Any]]:
    """Return the name of the engine, None for the best one installed, and the fields of its configuration."""
    settings = parse_settings(engine.get("settings", ()), "--engine-set")
    for name in ("dtype", "deterministic"):
        if name in engine:
            settings[name] = engine[name]
    return engine.get("name"), settings


if TYPE_CHECKING:
    from selfrag.api import SelfRAG


def _say_loading(model: str, index: str | None) -> None:
    """Say on the error stream what is loaded, before anything takes long."""
    what = f"{model} with {index}"
    if index is None:  # the demo model brings its own
        what = model if model == "demo" else f"{model} without an index"
    typer.echo(f"loading {printable(what)} ..", err=True)


def load(
    model: str, index: str | None, engine: FieldValues, judges: Sequence[str] = ()
) -> SelfRAG:
    """Return a loaded `SelfRAG`: model, index and engine by name, and the judges that take part."""
    _say_loading(model, index)
    name, settings = engine_options(engine)
    quiet(name)
    from selfrag.api import SelfRAG

    return SelfRAG.from_pretrained(
        model, retriever=index, engine=name, judges=judges, **settings
    )


def load_quickly(
    model: str, index: str | None, engine: FieldValues, judges: Sequence[str] = ()
) -> SelfRAG:
    """Return what `load` does for a few questions: without an engine's name and a GPU, in what starts soonest."""
    from selfrag.engines import gpu_engine, local_engine
    from selfrag.loading import model_address

    if model_address(model) is None:
        engine = {"name": gpu_engine() or local_engine()} | engine
    return load(model, index, engine, judges)


def load_format(
    model: str,
    index: str | None,
    engine: FieldValues,
    name: str,
    decoding: Mapping[str, Any],
) -> Any:
    """Load a model of another format by the name of its entry point; it refuses settings that it does not have."""
    _say_loading(model, index)
    quiet()
    engine_name, settings = engine_options(engine)
    return load_registered(FORMATS, name)(
        model, index, engine_name, decoding, **settings
    )


def quiet(engine: str | None = None) -> None:
    """Keep what libraries say while they load off the error stream, where it would come before every answer.

    Transformers is not imported for an engine that does without it.
    """
    from selfrag.engines import LIGHT

    # read once, when torch is imported
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # that there is no torch
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if engine == LIGHT or importlib.util.find_spec("transformers") is None:
        return
    from transformers import utils

    level = logging.getLogger().level
    # other than by default: asked for
    utils.logging.set_verbosity(logging.ERROR if level == logging.WARNING else level)
    utils.logging.disable_progress_bar()
    # PEFT imports it wherever it is installed
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # Else it imports scikit-learn, for a second, for a kind of generation that nothing here uses.
    utils.is_sklearn_available = lambda: False


def show_markdown(text: str) -> None:
    """Print Markdown: laid out where a terminal shows it, else as it is, to be pasted elsewhere."""
    if not sys.stdout.isatty():
        sys.stdout.write(printable(text))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(printable(text), hyperlinks=False))
