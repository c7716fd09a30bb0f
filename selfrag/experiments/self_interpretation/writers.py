"""What answers the questions of a grid: a prompt to any model, or Self-RAG decoding; `Generator` loads it by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from selfrag.decoding.answer import Answer, joint
from selfrag.decoding.beam import decode
from selfrag.decoding.driver import Answered, Broken, drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Engine, serve
from selfrag.errors import UserError
from selfrag.evaluation.metrics.output import USAGE
from selfrag.evaluation.records import model_files
from selfrag.evaluation.runner import Model, engine_kind
from selfrag.experiments.self_interpretation.grid import Trial
from selfrag.experiments.self_interpretation.prompts import Template
from selfrag.intrinsics.contract import ChatPrompt, Executor, Message, Piece, Request, State, TextPrompt
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS

BATCH = 64
"""Replies that are asked for together: a kill loses at most the work on these."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer wrote."""

    text: str
    finish: str | None = None  # why it ended, as the engine or server says
    usage: Mapping[str, int] = field(default_factory=dict)  # requests, prompt and generated tokens
    cached_tokens: int = 0  # of the prompt
    judgments: tuple[Mapping[str, Any], ...] = ()  # of a model that judges its own segments: text, context, judgments


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """The paper's way: one prompt as text, one greedy generation, on an engine or an endpoint."""

    executor: Executor
    layout: str = "chat"  # a user turn; `plain`: the prompt as it is
    template: Template = Template()  # noqa: RUF009 - frozen value
    max_tokens: int = 200

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """One generation a trial; all share the executor's batch."""
        results = self.executor.run([self.request(trial) for trial in trials])
        return [
            one
            if isinstance(one, Failed)
            else Written(one.text, one.finish, _usage(one.prompt_tokens, one.generated_tokens), one.cached_tokens)
            for one in results
        ]

    def request(self, trial: Trial) -> Request:
        """The prompt as the executor takes it."""
        text = _prompt(self.template, trial)
        own = text.partition("\n\n")[0]
        chat = self.layout == "chat"
        prompt = ChatPrompt((Message("user", text),), own=own) if chat else TextPrompt((Piece(text),), own)
        return Request(State((Message("user", trial.question),), trial.passages), prompt, self.max_tokens)

    def close(self) -> None:
        """Free the executor's engine, if it has one."""
        getattr(self.executor, "close", lambda: None)()


@dataclass(frozen=True, slots=True)
class InstructionWriter:
    """The same prompt as an instruction of a model with reflection tokens, on token ids.

    The contexts are in the prompt, so `[No Retrieval]` is written for the model. Where it asks for a passage all the
    same its text ends. Other reflection tokens part its text and are left out.
    """

    engine: Engine
    prompting: Prompting
    template: Template = Template()  # noqa: RUF009 - frozen value
    max_tokens: int = 200  # reflection tokens included

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """One greedy generation a trial; all share the engine's batch."""
        retrieval, none, _ = self.prompting.vocabulary.retrieve
        prompts = [(*self.prompting.prompt(_prompt(self.template, trial)), none) for trial in trials]
        results = serve(self.engine, [Generate(ids, self.max_tokens, stop_ids=(retrieval,)) for ids in prompts])
        return [
            one
            if isinstance(one, Failed)
            else Written(self._text(one), str(one.finish), _usage(len(ids), len(one.token_ids)), one.cached_tokens)
            for ids, one in zip(prompts, results, strict=True)
        ]

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()

    def _text(self, result: Generated) -> str:
        text = ""
        for is_control, run in groupby(result.token_ids, key=self.prompting.vocabulary.control.__contains__):
            piece = "" if is_control else self.prompting.codec.decode(list(run)).strip(" ")
            text += joint(text, piece) + piece if piece else ""
        return text


def _prompt(template: Template, trial: Trial) -> str:
    return template.render(trial.asked, trial.question, trial.contexts, trial.examples)


def _usage(prompt_tokens: int, generated_tokens: int) -> dict[str, int]:
    return {"requests": 1, "prompt_tokens": prompt_tokens, "generated_tokens": generated_tokens}


@dataclass(frozen=True, slots=True)
class ReflectiveWriter:
    """The same questions answered by Self-RAG decoding, with its own citations and its own judgments.

    Each segment is written after one passage, cites it, and is judged by the model's reflection tokens. No prompt is
    made, so there are no examples, nothing is asked about the answer, and the order of passages matters in ties only.
    """

    engine: Engine
    prompting: Prompting
    decoding: Decoding = Decoding(mode="always", max_segments=3)  # noqa: RUF009 - frozen value

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """One decode a trial; all share the engine's batches."""
        found: dict[int, Written | Failed] = {}
        decoders = [decode(trial.question, self.prompting, self.decoding, passages=trial.passages) for trial in trials]
        for event in drive(decoders, self.engine, None):
            if isinstance(event, Answered):
                found[event.index] = self._written(event.answer, trials[event.index])
            elif isinstance(event, Broken):
                found[event.index] = Failed(str(event.error))
        return [found[index] for index in range(len(trials))]

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()

    def _written(self, answer: Answer, trial: Trial) -> Written:
        names = {passage_id: name for name, passage_id in trial.passage_ids.items()}
        judgments = tuple(
            {
                "text": segment.text,
                "cited": segment.citation.id if segment.citation else None,
                "reflections": segment.as_dict()["reflections"],
            }
            for segment in answer.segments
        )
        usage = {name: int(getattr(answer.usage, name)) for name in USAGE}
        text = answer.cited_text(lambda passage: f"[{names[passage.id]}]")
        return Written(text, "stop", usage, answer.usage.cached_tokens, judgments)


Writer = PromptWriter | InstructionWriter | ReflectiveWriter
"""`write` has one result a trial, in order; a trial that could not be answered alone comes back as `Failed`."""
OWN, LAYOUTS = ("selfrag", "reflective"), ("chat", "plain")
"""Layouts for models with reflection tokens (`InstructionWriter`, `ReflectiveWriter`), and for any (`PromptWriter`)."""


@dataclass(frozen=True, slots=True)
class Generator:
    """What answers, by name; a layout says how the prompt is put.

    `auto` is `chat` at an endpoint, `selfrag` for a model with reflection tokens, else `chat` where there is a chat
    template, else `plain`.
    """

    model: str  # `demo`, a checkpoint directory, a hub name; the model's name at an endpoint
    engine: str | None = None  # `vllm`, `transformers`, the address of a `vllm serve`; else the best one installed
    endpoint: str | None = None  # address of an OpenAI-compatible server
    layout: str = "auto"
    template: Template = Template()  # noqa: RUF009 - frozen value
    max_tokens: int = 200  # of a generation

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
        """In tables: the last part of the model's name."""
        return Path(self.model).name

    @property
    def batch(self) -> int:
        """Replies that are asked for together; fewer at an endpoint, since one that goes away loses a whole batch."""
        return BATCH // 4 if self.endpoint is not None else BATCH

    def identity(self) -> dict[str, Any]:
        """What decides the generations, for the manifest; a server may move.

        Raises:
            UserError: there is no such model.
        """
        if self.endpoint is not None:
            made: dict[str, Any] = {"model": self.model, "engine": "endpoint", "layout": self._layout(None)}
        else:
            path = resolve_model(self.model)
            layout = self._layout(load_tokenizer(path))
            made = {"model": model_files(path), "engine": engine_kind(self.engine), "layout": layout}
        return made | {"max_tokens": self.max_tokens, "template": asdict(self.template)}

    def load(self) -> Writer:
        """Load the weights, or connect.

        Raises:
            UserError: the model cannot be used, or has no reflection tokens for `reflective`.
        """
        from selfrag.intrinsics.execution.endpoint import EndpointConfig, EndpointExecutor
        from selfrag.intrinsics.execution.engine import EngineExecutor
        from selfrag.reflection.vocabulary import Vocabulary
        from selfrag.tokenization import HFTextCodec

        prompt = (self.template, self.max_tokens)
        if self.endpoint is not None:
            executor = EndpointExecutor(EndpointConfig(self.endpoint, self.model))
            return PromptWriter(executor, self._layout(None), *prompt)
        path = resolve_model(self.model)
        tokenizer = load_tokenizer(path)
        layout = self._layout(tokenizer)
        if layout not in OWN:
            engine = Model(self.model, self.engine).load(path)
            return PromptWriter(EngineExecutor(engine, tokenizer), layout, *prompt)
        prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
        engine = Model(self.model, self.engine).load(path)
        if layout == "reflective":
            return ReflectiveWriter(engine, prompting)
        return InstructionWriter(engine, prompting, *prompt)

    def _layout(self, tokenizer: Any) -> str:
        """How the prompt is put; an endpoint does not show its tokenizer, and is taken for a chat model."""
        if self.layout != "auto":
            return self.layout
        if tokenizer is not None and set(TOKENS) <= set(tokenizer.get_vocab()):
            return "selfrag"
        return "chat" if tokenizer is None or getattr(tokenizer, "chat_template", None) else "plain"
