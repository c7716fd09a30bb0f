"""`Generator`: what answers, by name: a checkpoint in process, a `vllm serve`, any endpoint, or Self-RAG decoding.

The edge where names become engines. Knows no question and no grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from selfrag.errors import UserError
from selfrag.evaluation.records import model_files
from selfrag.evaluation.runner import Model, engine_kind
from selfrag.experiments.interpretation.own_writer import OwnWriter
from selfrag.experiments.interpretation.reflective_writer import ReflectiveWriter
from selfrag.experiments.interpretation.streaming import BATCH
from selfrag.experiments.interpretation.template import Template
from selfrag.experiments.interpretation.writers import LAYOUTS, Layout, PromptWriter, Writer
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.reflection.labels import TOKENS

OWN = ("selfrag", "reflective")
"""Layouts of models with reflection tokens."""


@dataclass(frozen=True, slots=True)
class Generator:
    """What answers.

    Attributes:
        model: `demo`, a checkpoint directory, a hub name; the model's name at an endpoint.
        engine: `vllm`, `transformers`, the address of a `vllm serve`, or None for the best one installed.
        endpoint: address of an OpenAI-compatible server; the model is its.
        layout: see `PromptWriter`; `selfrag` is `OwnWriter`, `reflective` is Self-RAG decoding; `auto` is `chat` at an
            endpoint, `selfrag` for a model with reflection tokens, else `chat` where there is a template, else `plain`.
        template: of the prompt.
        max_tokens: of a generation.
        options: fields of the engine's or endpoint's configuration.
    """

    model: str
    engine: str | None = None
    endpoint: str | None = None
    layout: Layout | Literal["auto", "selfrag", "reflective"] = "auto"
    template: Template = Template()  # noqa: RUF009 - frozen value
    max_tokens: int = 200
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = ("auto", *OWN, *LAYOUTS)
        if self.layout not in known:
            raise UserError(f"unknown layout {self.layout!r}; known: {', '.join(known)}")
        if self.endpoint is not None and self.engine is not None:
            raise UserError("give --engine or --endpoint, not both")
        if self.endpoint is not None and self.model == "demo":
            raise UserError("--endpoint needs --model NAME, as the server calls it")
        if self.endpoint is not None and self.layout in OWN:
            raise UserError(f"--layout {self.layout} needs the model's own tokens; drive the server with --engine URL")

    @property
    def name(self) -> str:
        """What tables call it: the last part of the model's name."""
        return Path(self.model).name

    @property
    def batch(self) -> int:
        """Replies that are asked for together; fewer at an endpoint, since one that goes away loses a whole batch."""
        return BATCH // 4 if self.endpoint is not None else BATCH

    @property
    def reflective(self) -> bool:
        """Whether Self-RAG decoding answers, without a prompt of the grid."""
        return self.layout == "reflective"

    def identity(self) -> dict[str, Any]:
        """What decides the generations, for the manifest; a server may move.

        Raises:
            UserError: there is no such model.
        """
        shared = {"max_tokens": self.max_tokens, "template": self.template.as_dict()}
        if self.endpoint is not None:
            return {"model": self.model, "engine": "endpoint", "layout": self._layout(None), **shared}
        path = resolve_model(self.model)
        kind = engine_kind(self.engine)
        return {"model": model_files(path), "engine": kind, "layout": self._layout(load_tokenizer(path)), **shared}

    def load(self) -> Writer:
        """Load the weights, or connect.

        Raises:
            UserError: the model cannot be used, or has no reflection tokens for `reflective`.
        """
        from selfrag.intrinsics.execution.endpoint import EndpointExecutor
        from selfrag.intrinsics.execution.endpoint_config import EndpointConfig
        from selfrag.intrinsics.execution.engine import EngineExecutor

        if self.endpoint is not None:
            config = EndpointConfig(self.endpoint, self.model, **self.options)
            return PromptWriter(EndpointExecutor(config), self._layout(None), self.template, self.max_tokens)
        path = resolve_model(self.model)
        tokenizer = load_tokenizer(path)
        layout = self._layout(tokenizer)
        prompting = _prompting(tokenizer) if layout in OWN else None
        engine = Model(self.model, self.engine, self.options).load(path)
        if prompting is not None and layout == "reflective":
            return ReflectiveWriter(engine, prompting)
        if prompting is not None:
            return OwnWriter(engine, prompting, self.template, self.max_tokens)
        return PromptWriter(EngineExecutor(engine, tokenizer), layout, self.template, self.max_tokens)

    def _layout(self, tokenizer: Any) -> Any:
        """How the prompt is put; an endpoint does not show its tokenizer, and is taken for a chat model."""
        if self.layout != "auto":
            return self.layout
        if tokenizer is None:
            return "chat"
        if set(TOKENS) <= set(tokenizer.get_vocab()):
            return "selfrag"
        return "chat" if getattr(tokenizer, "chat_template", None) else "plain"


def _prompting(tokenizer: Any) -> Any:
    from selfrag.prompting import Prompting
    from selfrag.reflection.vocabulary import Vocabulary
    from selfrag.tokenization import HFTextCodec

    return Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
