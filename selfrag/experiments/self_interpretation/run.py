"""Runs the grid: every question in every cell, once, recorded as it comes; reads a run back.

Who answers is a prompt to any model, or Self-RAG decoding; `Generator` loads it by name. One directory holds a
generator's run: a manifest, the questions, and a file of records for each cell and each test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from selfrag.common.errors import UserError
from selfrag.common.progress import Progress
from selfrag.common.provenance import model_files
from selfrag.common.untrusted import printable, replace_surrogates
from selfrag.decoding.answer import Answer, segment_separator
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.engines.base import Engine
from selfrag.evaluation.items import USAGE
from selfrag.evaluation.records import (
    RecordFile,
    RunDirectory,
    Spent,
    read_manifest,
    read_records,
)
from selfrag.evaluation.runner import Model, engine_kind, on_demand
from selfrag.experiments.self_interpretation import replies
from selfrag.experiments.self_interpretation.grid import (
    COUNTERFACTUAL,
    GridCell,
    GridTemplate,
    Questions,
    Trial,
    read_questions,
    relevant,
)
from selfrag.judges.wire import (
    ChatPrompt,
    Executor,
    ModelRequest,
    PromptPiece,
    TextPrompt,
)
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.requests import Failed, Generate, Generated, ask, failure_of
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive, finish

BATCH = 64
"""Replies that are asked for together: a kill loses at most the work on these."""


@dataclass(frozen=True, slots=True)
class WrittenReply:
    """What a writer wrote."""

    text: str
    finish: str | None = None  # why it ended, as the engine or server says
    usage: Mapping[str, int] = field(
        default_factory=dict
    )  # requests, prompt and generated tokens
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
        text = _prompt(self.template, trial)
        instruction = text.partition("\n\n")[0]
        chat = self.layout == "chat"
        prompt = (
            ChatPrompt((Message("user", text),), own=instruction)
            if chat
            else TextPrompt((PromptPiece(text),), instruction)
        )
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
        prompts = [
            (*self.prompting.prompt(_prompt(self.template, trial)), none)
            for trial in trials
        ]
        requests = [
            Generate(ids, self.max_tokens, stop_ids=(retrieval,)) for ids in prompts
        ]
        written: list[WrittenReply | Failed] = []
        for ids, result in zip(
            prompts, finish(ask(list(requests)), self.engine), strict=True
        ):
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
            piece = (
                "" if is_control else self.prompting.codec.decode(list(run)).strip(" ")
            )
            text += segment_separator(text, piece) + piece if piece else ""
        return text


def _prompt(template: GridTemplate, trial: Trial) -> str:
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
class Generator:
    """What answers, by name; a layout says how the prompt is put.

    `auto` is `chat` at an endpoint, `selfrag` for a model with reflection tokens, else `chat` where there is a chat
    template, else `plain`.
    """

    model: str  # `demo`, a checkpoint directory, a hub name; the model's name at an endpoint
    engine: str | None = (
        None  # `vllm`, `transformers`, the address of a `vllm serve`; else the best one installed
    )
    endpoint: str | None = None  # address of an OpenAI-compatible server
    layout: str = "auto"
    template: GridTemplate = GridTemplate()  # noqa: RUF009 - frozen value
    max_tokens: int = 200  # of a generation

    def __post_init__(self) -> None:
        known = ("auto", *OWN, *LAYOUTS)
        if self.layout not in known:
            raise UserError(
                f"unknown layout {self.layout!r}; known: {', '.join(known)}"
            )
        if self.endpoint is not None and self.engine is not None:
            raise UserError("give --engine or --endpoint, not both")
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
        prompting = Prompting(
            HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer)
        )
        engine = Model(self.model, self.engine).load(path)
        if layout == "reflective":
            return ReflectiveWriter(engine, prompting)
        return InstructionWriter(engine, prompting, *prompt)

    def _layout(self, tokenizer: Any) -> str:
        """Return how the prompt is put; an endpoint does not show its tokenizer, and is taken for a chat model."""
        if self.layout != "auto":
            return self.layout
        if tokenizer is not None and set(TOKENS) <= set(tokenizer.get_vocab()):
            return "selfrag"
        return (
            "chat"
            if tokenizer is None or getattr(tokenizer, "chat_template", None)
            else "plain"
        )


KIND = "supported questions"

Results = dict[str, dict[str, Any]]
"""Name of a file of records to items, failed, seconds and cached tokens."""
Made = tuple[Mapping[str, Any], int]
"""A record with its `id`, and how many prompt tokens were not computed again."""
File = tuple[GridCell, str, Mapping[str, Any]]
"""A cell, a test of it or nothing, and what else decides the records."""


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run directory."""

    folder: Path
    identity: Mapping[str, Any]  # what decides the records, as the manifest has it
    questions: Questions
    template: GridTemplate  # of the prompts, whose tags end a generation
    files: Mapping[str, Any] = field(
        default_factory=dict
    )  # what the manifest says of each file of records

    @property
    def cells(self) -> tuple[GridCell, ...]:
        """Return the finished cells, in the order of the run."""
        entries = (
            entry
            for name, entry in self.files.items()
            if "." not in name and "result" in entry
        )
        return tuple(GridCell.from_dict(entry["settings"]["cell"]) for entry in entries)

    def select(self, patterns: Sequence[str]) -> tuple[GridCell, ...]:
        """Return finished cells whose names match one of the patterns, such as `k5-*-direct`; without a pattern all."""
        names = [cell.name for cell in self.cells]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = (
                    ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])
                    or "none that is finished"
                )
                raise UserError(
                    f"--cell {pattern}: no such cell in {self.folder}; there are {shown}"
                )
        return tuple(
            c
            for c in self.cells
            if not patterns or any(fnmatchcase(c.name, pattern) for pattern in patterns)
        )

    def records(self, cell: GridCell, test: str = "") -> list[dict[str, Any]]:
        """Return the records of a cell, or of a test of a cell; none where they are not finished."""
        name = file_name(cell, test)
        return (
            read_records(self.folder / f"{name}.jsonl")
            if "result" in self.files.get(name, {})
            else []
        )

    def read(self, made: Trial, text: str) -> replies.GridReply:
        """Return a generation, taken apart."""
        ends = (self.template.opening, self.template.closing)
        return replies.read_reply(
            text, made.passage_ids, explains=made.strategy.explains, ends=ends
        )


def file_name(cell: GridCell, test: str) -> str:
    """Return the name of the records of a cell, or of a test of it."""
    return f"{cell.name}.{test}" if test else cell.name


def read_grid(folder: Path) -> GridRun:
    """Read a run directory."""
    manifest = read_manifest(folder)
    identity, files = manifest["identity"], manifest["files"]
    if (
        not isinstance(identity, dict)
        or "questions" not in identity
        or "generator" not in identity
    ):
        raise UserError(
            f"{folder} holds a run of something else than `selfrag interpret`"
        )
    path = next((Path(entry["path"]) for entry in files.values()), folder)
    questions = read_questions(folder, path, identity)
    return GridRun(
        folder,
        identity,
        questions,
        GridTemplate(**identity["generator"]["template"]),
        files,
    )


def record(
    run: GridRun,
    what: str,
    files: Sequence[File],
    make: Callable[[GridCell, str, Sequence[str]], list[Made]],
    metrics: Sequence[str] = (),
    *,
    retry_failed: bool = False,
    batch: int = BATCH,
) -> Results:
    """Make the records that are not there yet in batches, and append them as they come.

    `make` gives, from a cell, a test of it and ids of questions, their records in order.
    """
    questions, directory = run.questions, RunDirectory(run.folder, run.identity)
    questions.write(run.folder)
    ids = [item.id for item in questions.items]
    bare = {"task": {"kind": KIND, "metrics": list(metrics)}, "items": len(ids)}
    shared = {
        **bare,
        "with_passages": sum(bool(item.passages) for item in questions.items),
        "data": questions.data,
    }
    results = {}
    with Progress(what, "reply", len(files) * len(ids), quiet=0) as progress:
        for cell, test, settings in files:
            name = file_name(cell, test)
            directory.admit_entry(
                name, questions.path, {**shared, "cell": asdict(cell), **settings}
            )
            with closing(RecordFile(run.folder, name)) as records:
                if retry_failed:
                    records.reopen()
                missing = [key for key in ids if key not in records.done]
                progress.skip(len(ids) - len(missing))
                for start in range(0, len(missing), batch):
                    some, before = missing[start : start + batch], time.perf_counter()
                    made = make(cell, test, some)
                    seconds = (time.perf_counter() - before) / len(some)
                    for row, cached in made:
                        records.append(row, Spent(seconds, cached))
                    progress.advance(len(some), name)
                results[name] = records.finish(ids)
            directory.result(name, results[name])
    return results


def run_grid(
    generator: Generator,
    questions: Questions,
    cells: Sequence[GridCell],
    out: Path,
    *,
    retry_failed: bool = False,
) -> Results:
    """Run a grid, or continue it; the generator is loaded only if there is something to ask."""
    for cell in cells if generator.layout == "reflective" else ():
        if cell.examples or cell.strategy.explains:
            raise UserError(
                f"{cell.name}: Self-RAG decoding has no prompt; give --prompt basic --examples 0"
            )
    made = {
        "generator": generator.identity(),
        "questions": questions.identity(),
        "data": questions.data,
    }
    run = GridRun(out, {"name": generator.name, **made}, questions, generator.template)
    options: dict[str, Any] = {"retry_failed": retry_failed, "batch": generator.batch}
    with on_demand(generator.load) as writer:
        files: list[File] = [(cell, "", {}) for cell in cells]
        return record(
            run,
            "interpret",
            files,
            partial(_answers, run, writer),
            replies.NAMES,
            **options,
        )


def planned(
    generator: Generator, questions: Questions, cells: Sequence[GridCell]
) -> str:
    """Return what a grid asks, in one line: replies, words of the prompts, and new tokens at most. Loads no model."""
    ids = [item.id for item in questions.items]
    count = len(cells) * len(ids)
    said = f"{len(cells)} cells of {len(ids)} questions: {count} replies of at most {generator.max_tokens} tokens"
    if generator.layout == "reflective":  # has no prompt
        return said
    trials = (trial for cell in cells for trial in questions.trials(cell, ids))
    words = sum(len(_prompt(generator.template, trial).split()) for trial in trials)
    return f"{said}; {words} words in prompts, {words // max(1, count)} each"


def _answers(
    run: GridRun,
    writer: Callable[[], ReplyWriter],
    cell: GridCell,
    _: str,
    ids: Sequence[str],
) -> list[Made]:
    trials = run.questions.trials(cell, ids)
    return [
        _record(run, made, result)
        for made, result in zip(trials, writer().write(trials), strict=True)
    ]


def _record(run: GridRun, made: Trial, result: WrittenReply | Failed) -> Made:
    """Return what is kept of a reply; contexts are recorded by the ids of their passages."""
    relevant_ids = relevant(made.item, made.passages, run.questions.relevance)
    base: dict[str, Any] = {"id": made.item.id, "relevant": sorted(relevant_ids)}
    if isinstance(result, Failed):
        return base | {
            "error": printable(result.reason),
            "scores": replies.scored(made, None, relevant_ids),
        }, 0
    text, ids = replace_surrogates(result.text), made.passage_ids
    reply = run.read(made, text)

    def passages(names: Sequence[str]) -> list[str]:
        return [ids[name] for name in names]

    kept = {
        "text": text,
        "finish": result.finish,
        "answer": reply.answer,
        "explanation": reply.explanation,
        "read": [passage.id for passage in made.passages],
        "cited": passages(reply.cited),
        "wrong": list(reply.wrong),
        "named": passages(reply.explained),
        "credited": passages(replies.credited(reply)),
        "claim": replies.order_claim(reply)
        if made.strategy == COUNTERFACTUAL
        else None,
        "followed": replies.followed_example(reply)
        if made.strategy.needs_examples
        else None,
        "ran_on": reply.ran_on,
        "usage": dict(result.usage),
        **({"judgments": list(result.judgments)} if result.judgments else {}),
        "found": replies.answers_found(made.item, reply.answer),
        "error": None,
        "scores": replies.scored(made, reply, relevant_ids, text),
    }
    return base | kept, result.cached_tokens
