"""`selfrag judge`: one judge on one conversation. Options and files in, the result out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfrag.cli.fields import FieldValues
from selfrag.cli.options import EngineChoice, engine_options, quiet
from selfrag.cli.results import CommandResult
from selfrag.cli.running import refuse_options
from selfrag.common.checks import split_pair
from selfrag.common.errors import UserError

if TYPE_CHECKING:
    from retrieval.passage import Passage
    from selfrag.intrinsics.model_library import Library
    from selfrag.reflection.findings import Reflection
    from selfrag.reflection.inputs import Message


def judge(
    name: Annotated[str | None, typer.Argument()] = None,
    question: Annotated[str | None, typer.Argument()] = None,
    *,
    ctx: typer.Context,
    conversation: Path | None = None,
    response: str | None = None,
    passage: list[str] | None = None,
    passages: Annotated[list[Path] | None, typer.Option("--passage-file")] = None,
    argument: list[str] | None = None,
    model: str = "demo",
    engine: EngineChoice,
    endpoint: str | None = None,
    adapter: str | None = None,
    dialect: str | None = None,
) -> CommandResult:
    """Judge a conversation: certainty, faithfulness, answerability, citations, rewrite and more.

    Args:
        name: intrinsic such as answerability, or with its judge: answerability.overlap; token_issup; or a judge with a
            model of its own such as nli:MODEL; by default all are listed; published lists adapters
        question: the question, if there is no --conversation

    What is judged:
        conversation: JSON file with a list of turns, or an object with messages
        response: the assistant's reply, after the question
        passage: text of a passage; repeatable
        passages: file of passages: jsonl, csv, tsv, parquet, txt, md; repeatable
        argument: argument, NAME=VALUE, such as requirement='be polite'; repeatable

    What judges:
        model: demo, a folder with a checkpoint, or a name on the hub
        endpoint: URL of an OpenAI-compatible server; --model is its name there
        adapter: LoRA adapter: a folder, its name on a server, published, or none; by default the demo's
        dialect: wire format of the adapter: chat, granite-3.2, ...; needed for adapters that were not trained here
    """
    from retrieval.readers import read_files
    from selfrag.intrinsics.catalog import codec_of, find
    from selfrag.intrinsics.families import PUBLISHED
    from selfrag.intrinsics.model_library import MODEL_JUDGES, split_name
    from selfrag.intrinsics.named import is_opened
    from selfrag.judges.conversation import read_conversation, read_passages
    from selfrag.judges.wire import DIALECT
    from selfrag.reflection.findings import Code
    from selfrag.reflection.inputs import Message

    if name is None or name == PUBLISHED:
        refuse_options(ctx, (*_JUDGED, *_JUDGES), "for a judge, which is not named")
        return _list_judges(name)
    kind = None
    if is_opened(name):
        refuse_options(ctx, _JUDGES, f"for a judge of the model, and {name} is not one")
    elif name in MODEL_JUDGES:
        refuse_options(ctx, _JUDGES[:3], f"for an intrinsic, and {name} is not one")
    else:
        intrinsic, by = split_name(name)
        kind = find(intrinsic)
        codec_of(kind, dialect or DIALECT)  # refuses a dialect before a model is loaded
    if (question is None) == (conversation is None):
        raise UserError("give a question or --conversation FILE, one of the two")
    turns: list[Message] = []
    evidence = read_passages(passage or ())
    if conversation is not None:
        messages, beside = read_conversation(conversation)
        turns += messages
        evidence = beside + evidence
    else:
        turns.append(Message("user", question or ""))
    if response is not None:
        turns.append(Message("assistant", response))
    if passages:
        evidence += tuple(row.passage for row in read_files(passages))
    arguments = _arguments(argument or ())
    if kind is None:
        reflection = _reflection(name, model, engine, turns, evidence, arguments)
        return CommandResult(reflection.as_dict(), "\n".join(reflection.lines()))
    state = kind.state(turns, evidence, **arguments)
    adapters: dict[str, str] | None = None
    if adapter is not None:
        adapters = {} if adapter == "none" else {kind.name: adapter}
    with _library(model, engine, endpoint, adapters, dialect) as library:
        result = library.get(kind, by)(state)
    for note in result.diagnostics:
        if note.code is Code.FAILED and note.site is None:
            raise UserError(f"{kind.name}: no result: {note.message}")
    lines = [*result.lines(), f"by {result.judge}"]
    lines += [f"note: {note.message}" for note in result.diagnostics]
    return CommandResult(result.as_dict(), "\n".join(lines))


_JUDGED = (
    "--conversation",
    "--response",
    "--passage",
    "--passage-file",
    "--argument",
)
_JUDGES = (
    "--endpoint",
    "--adapter",
    "--dialect",
    "--model",
    "--engine",
    "--dtype",
    "--deterministic",
    "--engine-set",
)


def _list_judges(name: str | None) -> CommandResult:
    """Return what there is, or the published adapters."""
    from selfrag.common.plugins import names
    from selfrag.intrinsics.catalog import catalog, dialects
    from selfrag.intrinsics.families import PUBLISHED, listed
    from selfrag.intrinsics.model_library import JUDGES, MODEL_JUDGES
    from selfrag.intrinsics.named import GROUP, KINDS

    if name == PUBLISHED:
        published = list(listed())
        return CommandResult(published, "\n".join(published))
    intrinsics = {intrinsic.name: intrinsic.summary for intrinsic in catalog()}
    judges = [*JUDGES, *MODEL_JUDGES, *KINDS, *names(GROUP)]
    lines = [f"{intrinsic:28} {summary}" for intrinsic, summary in intrinsics.items()]
    lines.append(f"judges: {', '.join(judges)}")
    lines.append(f"dialects: {', '.join(dialects())}")
    lines.append(f"published adapters: selfrag judge {PUBLISHED}")
    value = {"intrinsics": intrinsics, "judges": judges, "dialects": dialects()}
    return CommandResult(value, "\n".join(lines))


def _reflection(
    name: str,
    model: str,
    engine: FieldValues,
    turns: Sequence[Message],
    passages: Sequence[Passage],
    arguments: dict[str, str],
) -> Reflection:
    """Return what a judge says that is no intrinsic of the model."""
    from selfrag.intrinsics.named import is_opened, open_judge
    from selfrag.judges.asking import judge as ask

    if is_opened(name):
        return ask(open_judge(name), turns, passages, arguments)
    with _library(model, engine, None, {}, None) as library:
        return ask(
            library.judge(name),
            turns,
            passages,
            arguments,
            engine=library.executor.engine,
        )


def _library(
    model: str,
    engine: FieldValues,
    endpoint: str | None,
    adapters: dict[str, str] | None,
    dialect: str | None,
) -> Library:
    """Return the intrinsics of a model, in an engine or at an endpoint."""
    from selfrag.intrinsics.model_library import Library
    from selfrag.judges.wire import DIALECT

    if endpoint is not None:
        if engine:
            raise UserError(
                "options of an engine are of no use with --endpoint; leave them out"
            )
        if model == "demo":
            raise UserError("--endpoint needs --model NAME, as the server calls it")
        return Library.at_endpoint(
            endpoint, model, adapters=adapters, dialect=dialect or DIALECT
        )
    quiet()
    name, settings = engine_options(engine)
    return Library.from_pretrained(
        model, engine=name, adapters=adapters, dialect=dialect, **settings
    )


def _arguments(pairs: Sequence[str]) -> dict[str, str]:
    """Return `["requirement=be short"]` as an object."""
    arguments: dict[str, str] = {}
    for pair in pairs:
        name, value = split_pair(
            "--argument", pair, "NAME=VALUE", "requirement='be polite'"
        )
        if name in arguments:
            raise UserError(f"--argument {name!r} is given twice")
        arguments[name] = value
    return arguments
