"""What answers the prompts of a grid: any model by its prompt, a model with reflection tokens, or Self-RAG decoding.

`Generator` loads it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from selfrag.decoding.beam import decode
from selfrag.decoding.trace import segment_separator
from selfrag.evaluation.items import USAGE
from selfrag.evaluation.runner import Model, engine_kind
from selfrag.experiments.self_interpretation.prompts import GridTemplate
from selfrag.experiments.self_interpretation.questions import (
    Trial,
)
from selfrag.experiments.self_interpretation.settings import ReplySettings
from selfrag.interface import (
    Answer,
    ChatPrompt,
    Decoding,
    Engine,
    Failed,
    Generate,
    Generated,
    JudgeInput,
    Message,
    ModelRequest,
    Prompting,
    PromptPiece,
    TextPrompt,
    UserError,
    ask,
    drive,
    finish,
    load_tokenizer,
    model_files,
    resolve_model,
)
from selfrag.judges.wire import Executor
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.requests import failure_of
from selfrag.runtime import QuestionAnswered, QuestionFailed

BATCH = 64
"""Replies that are asked for together: a kill loses at most the work on these."""


@dataclass(frozen=True, slots=True)
class WrittenReply:
    """What a writer wrote."""

    text: str
    finish: str | None = None  # why it ended, as the engine or server says
    # requests, prompt and generated tokens
    usage: Mapping[str, int] = field(default_factory=dict)
    cached_tokens: int = 0  # of the prompt
    judgments: tuple[
        Mapping[str, Any], ...
    ] = ()  # of a model that judges its own segments: text, context, judgments


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """The paper's way: one prompt as text, one greedy generation, on an engine or an endpoint."""

    executor: Executor
    layout: str = "chat"  # a user turn; `plain`: the prompt as it is
    template: GridTemplate = GridTemplate()  # noqa: RUF009 - frozen value - frozen value
    max_tokens: int = 200

    def write(self, trials: Sequence[Trial]) -> list[WrittenReply | Failed]:
        """Write one generation a trial; all share the executor's batch."""
        replies: list[WrittenReply | Failed] = []
        for result in self.executor.run(list(map(self.request, trials))):
            if isinstance(result, Failed):
                replies.append(result)
            else:
                usage = _usage(result.prompt_tokens, result.generated_tokens)
                replies.append(
                    WrittenReply(
                        result.text, result.finish, usage, result.cached_tokens
                    )
                )
        return replies

    def request(self, trial: Trial) -> ModelRequest:
        """Return the prompt as the executor takes it."""
        text = prompt_of(self.template, trial)
        instruction = text.partition("\n\n")[0]
        prompt: ChatPrompt | TextPrompt = TextPrompt((PromptPiece(text),), instruction)
        if self.layout == "chat":
            prompt = ChatPrompt((Message("user", text),), own=instruction)
        return ModelRequest(
            JudgeInput((Message("user", trial.question),), trial.passages),
            prompt,
            self.max_tokens,
        )

    def close(self) -> None:
        """Free the executor's engine, if it has one."""
        getattr(self.executor, "close", lambda: None)()


@dataclass(frozen=True, slots=True)
class _EngineWriter:
    engine: Engine
    prompting: Prompting

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()


@dataclass(frozen=True, slots=True)
class InstructionWriter(_EngineWriter):
    """The same prompt as an instruction of a model with reflection tokens, on token ids.

    The contexts are in the prompt, so `[No Retrieval]` is written for the model. Where it asks for a passage all the
    same its text ends. Other reflection tokens part its text and are left out.
    """

    template: GridTemplate = GridTemplate()  # noqa: RUF009 - frozen value
    max_tokens: int = 200  # reflection tokens included

    def write(self, trials: Sequence[Trial]) -> list[WrittenReply | Failed]:
        """Write one greedy generation a trial; all share the engine's batch."""
        retrieval, none, _ = self.prompting.vocabulary.retrieve
        prompts, requests = [], []
        for trial in trials:
            prompt = self.prompting.prompt(prompt_of(self.template, trial))
            ids = (*prompt, none)
            prompts.append(ids)
            requests.append(Generate(ids, self.max_tokens, stop_ids=(retrieval,)))
        written: list[WrittenReply | Failed] = []
        results = finish(ask(list(requests)), self.engine)
        for ids, result in zip(prompts, results, strict=True):
            if isinstance(result, Generated):
                usage = _usage(len(ids), len(result.token_ids))
                written.append(
                    WrittenReply(
                        self._text(result),
                        str(result.finish),
                        usage,
                        result.cached_tokens,
                    )
                )
            else:
                written.append(Failed(failure_of(result)))
        return written

    def _text(self, result: Generated) -> str:
        text = ""
        for is_control, run in groupby(
            result.token_ids, key=self.prompting.vocabulary.control.__contains__
        ):
            if not is_control:
                piece = self.prompting.codec.decode(list(run)).strip(" ")
                text += segment_separator(text, piece) + piece if piece else ""
        return text


def prompt_of(template: GridTemplate, trial: Trial) -> str:
    """Return the prompt of a trial as text."""
    return template.render(
        trial.strategy, trial.question, trial.contexts, trial.examples
    )


def _usage(prompt_tokens: int, generated_tokens: int) -> dict[str, int]:
    return {
        "requests": 1,
        "prompt_tokens": prompt_tokens,
        "generated_tokens": generated_tokens,
    }


@dataclass(frozen=True, slots=True)
class ReflectiveWriter(_EngineWriter):
    """The same questions answered by Self-RAG decoding, with its own citations and its own judgments.

    Each segment is written after one passage, cites it, and is judged by the model's reflection tokens. No prompt is
    made, so there are no examples, nothing is asked about the answer, and the order of passages matters in ties only.
    """

    decoding: Decoding = Decoding(  # noqa: RUF009
        mode="always", max_segments=3, without_evidence="write"
    )

    def write(self, trials: Sequence[Trial]) -> list[WrittenReply | Failed]:
        """Decode once a trial; all share the engine's batches."""
        replies: dict[int, WrittenReply | Failed] = {}
        decoders = [
            decode(
                trial.question, self.prompting, self.decoding, passages=trial.passages
            )
            for trial in trials
        ]
        for event in drive(decoders, self.engine, None):
            if isinstance(event, QuestionAnswered):
                replies[event.index] = self._written(event.answer, trials[event.index])
            elif isinstance(event, QuestionFailed):
                replies[event.index] = Failed(str(event.error))
        return [replies[index] for index in range(len(trials))]

    def _written(self, answer: Answer, trial: Trial) -> WrittenReply:
        names = {passage_id: name for name, passage_id in trial.passage_ids.items()}
        judgments = tuple(
            {
                "text": segment.text,
                "cited": segment.citation and segment.citation.id,
                "reflections": segment.as_dict()["reflections"],
            }
            for segment in answer.segments
        )
        usage = {name: int(getattr(answer.usage, name)) for name in USAGE}
        text = answer.cited_text(lambda passage: f"[{names[passage.id]}]")
        return WrittenReply(text, "stop", usage, answer.usage.cached_tokens, judgments)


ReplyWriter = PromptWriter | InstructionWriter | ReflectiveWriter
"""`write` has one result a trial, in order; a trial that could not be answered alone comes back as `Failed`."""
OWN, LAYOUTS = ("selfrag", "reflective"), ("chat", "plain")
"""Layouts for models with reflection tokens (`InstructionWriter`, `ReflectiveWriter`), and for any (`PromptWriter`)."""


@dataclass(frozen=True, slots=True)
class Generator(ReplySettings):
    """What answers, by name; a layout says how the prompt is put.

    `auto` is `chat` at an endpoint, `selfrag` for a model with reflection tokens, else `chat` where there is a chat
    template, else `plain`.
    """

    model: str  # `demo`, a checkpoint directory, a hub name; the model's name at an endpoint
    # `vllm`, `transformers`, the address of a `vllm serve`; else the best one installed
    engine: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the engine
    template: GridTemplate = GridTemplate()  # noqa: RUF009 - frozen value

    def __post_init__(self) -> None:
        known = ("auto", *OWN, *LAYOUTS)
        if self.layout not in known:
            raise UserError(
                f"unknown layout {self.layout!r}; known: {', '.join(known)}"
            )
        if self.endpoint is not None and (self.engine is not None or self.options):
            raise UserError("give --engine and its options, or --endpoint, not both")
        if self.endpoint is not None and self.model == "demo":
            raise UserError("--endpoint needs --model NAME, as the server calls it")
        if self.endpoint is not None and self.layout in OWN:
            raise UserError(
                f"--layout {self.layout} needs the model's own tokens; drive the server with --engine URL"
            )

    @property
    def name(self) -> str:
        """Return the name in tables: the last part of the model's name."""
        return Path(self.model).name

    @property
    def batch(self) -> int:
        """Return how many replies are asked for together; fewer at an endpoint, which may go away with a batch."""
        return BATCH // 4 if self.endpoint is not None else BATCH

    def identity(self) -> dict[str, Any]:
        """Return what decides the generations, for the manifest; a server may move."""
        if self.endpoint is not None:
            made: dict[str, Any] = {
                "model": self.model,
                "engine": "endpoint",
                "layout": self._layout(None),
            }
        else:
            path = resolve_model(self.model)
            layout = self._layout(load_tokenizer(path))
            made = {
                "model": model_files(path),
                "engine": engine_kind(self.engine),
                "layout": layout,
            }
        return made | {"max_tokens": self.max_tokens, "template": asdict(self.template)}

    def load(self) -> ReplyWriter:
        """Load the weights, or connect."""
        from selfrag.judges.endpoint import EndpointConfig, EndpointExecutor
        from selfrag.judges.engine import EngineExecutor

        prompt = (self.template, self.max_tokens)
        if self.endpoint is not None:
            executor = EndpointExecutor(EndpointConfig(self.endpoint, self.model))
            return PromptWriter(executor, self._layout(None), *prompt)
        path = resolve_model(self.model)
        tokenizer = load_tokenizer(path)
        layout = self._layout(tokenizer)
        if layout not in OWN:
            engine = Model(self.model, self.engine, self.options).load(path)
            return PromptWriter(EngineExecutor(engine, tokenizer), layout, *prompt)
        prompting = Prompting.from_tokenizer(tokenizer)
        engine = Model(self.model, self.engine, self.options).load(path)
        if layout == "reflective":
            return ReflectiveWriter(engine, prompting)
        return InstructionWriter(engine, prompting, *prompt)

    def _layout(self, tokenizer: Any) -> str:
        """Return how the prompt is put; an endpoint does not show its tokenizer, and is taken for a chat model."""
        if self.layout != "auto":
            return self.layout
        if tokenizer is not None and set(TOKENS) <= set(tokenizer.get_vocab()):
            return "selfrag"
        if tokenizer is None or getattr(tokenizer, "chat_template", None):
            return "chat"
        return "plain"
