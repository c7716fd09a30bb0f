"""`selfrag intrinsic`: one intrinsic on one conversation. Options and files in, the result out; judges nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfrag.cli.options import quiet
from selfrag.common.errors import UserError
from selfrag.common.untrusted import whole

if TYPE_CHECKING:
    from selfrag.intrinsics.model_library import Library

WHAT, WITH = (partial(typer.Option, rich_help_panel=panel) for panel in ("What is judged", "What judges"))


def intrinsic(
    name: Annotated[
        str | None,
        typer.Argument(
            help="intrinsic such as answerability, or with its judge: answerability.overlap; by default all are listed;"
            " published lists adapters on the hub"
        ),
    ] = None,
    question: Annotated[str | None, typer.Argument(help="the question, if there is no --conversation")] = None,
    *,
    conversation: Annotated[
        Path | None, WHAT(help="JSON file with a list of turns, or an object with messages")
    ] = None,
    response: Annotated[str | None, WHAT(help="the assistant's reply, after the question")] = None,
    passage: Annotated[list[str] | None, WHAT(help="text of a passage; repeatable")] = None,
    passages: Annotated[
        list[Path] | None, WHAT(help="file of passages: jsonl, csv, tsv, parquet, txt, md; repeatable")
    ] = None,
    argument: Annotated[
        list[str] | None, WHAT(help="argument, NAME=VALUE, such as requirement='be polite'; repeatable")
    ] = None,
    model: Annotated[str, WITH(help="demo, a folder with a checkpoint, or a name on the hub")] = "demo",
    engine: Annotated[
        str | None, WITH(help="vllm, transformers or http://HOST:PORT; by default the best one installed")
    ] = None,
    endpoint: Annotated[str | None, WITH(help="URL of an OpenAI-compatible server; --model is its name there")] = None,
    adapter: Annotated[
        str | None, WITH(help="LoRA adapter: a folder, its name on a server, published, or none; by default the demo's")
    ] = None,
    dialect: Annotated[
        str | None,
        WITH(help="wire format of the adapter: chat, granite-3.2, ...; needed for adapters that were not trained here"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Judge a conversation: rewrite, certainty, faithfulness, answerability, citations and more."""
    from retrieval.readers import read_files
    from selfrag.intrinsics.catalog import catalog, codec_of, dialects, find
    from selfrag.intrinsics.contract import DIALECT, Code
    from selfrag.intrinsics.families import PUBLISHED, listed
    from selfrag.intrinsics.model_library import EXECUTIONS, split_name
    from selfrag.intrinsics.state import Message, read_conversation, read_passages

    if name is None:
        for each in catalog():
            sys.stdout.write(f"{each.name:28} {each.summary}\n")
        sys.stdout.write(f"executions: {', '.join(EXECUTIONS)}\n")
        sys.stdout.write(f"dialects: {', '.join(dialects())}\n")
        sys.stdout.write(f"published adapters: selfrag intrinsic {PUBLISHED}\n")
        return
    if name == PUBLISHED:
        sys.stdout.writelines(f"{line}\n" for line in listed())
        return
    plain, execution = split_name(name)
    kind = find(plain)
    codec_of(kind, dialect or DIALECT)  # refuses a dialect before a model is loaded
    if (question is None) == (conversation is None):
        raise UserError("give a question or --conversation FILE, one of the two")
    turns: list[Message] = []
    found = read_passages(passage or ())
    if conversation is not None:
        messages, beside = read_conversation(conversation)
        turns += messages
        found = beside + found
    else:
        turns.append(Message("user", question or ""))
    if response is not None:
        turns.append(Message("assistant", response))
    found += tuple(row.passage for row in read_files(passages)) if passages else ()
    state = kind.state(turns, found, **_arguments(argument or ()))

    adapters = None if adapter is None else {} if adapter == "none" else {kind.name: adapter}
    with _library(model, engine, endpoint, adapters, dialect) as library:
        result = library.get(kind, execution)(state)
    for note in result.diagnostics:
        if note.code is Code.FAILED and note.site is None:
            raise UserError(f"{kind.name}: no result: {note.message}")
    if as_json:
        sys.stdout.write(whole(json.dumps(result.as_dict(), ensure_ascii=False)) + "\n")
        return
    for line in (*result.lines(), f"by {result.execution}", *(f"note: {note.message}" for note in result.diagnostics)):
        sys.stdout.write(f"{line}\n")


def _library(
    model: str, engine: str | None, endpoint: str | None, adapters: dict[str, str] | None, dialect: str | None
) -> Library:
    """What judges."""
    from selfrag.intrinsics.contract import DIALECT
    from selfrag.intrinsics.model_library import Library

    if endpoint is not None:
        if engine is not None:
            raise UserError("give --engine or --endpoint, not both")
        if model == "demo":
            raise UserError("--endpoint needs --model NAME, as the server calls it")
        return Library.at_endpoint(endpoint, model, adapters=adapters, dialect=dialect or DIALECT)
    quiet()
    return Library.from_pretrained(model, engine=engine, adapters=adapters, dialect=dialect)


def _arguments(pairs: Sequence[str]) -> dict[str, str]:
    """`["requirement=be short"]` as an object."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name.strip() and equals):
            raise UserError(f"--argument {pair!r}: write it as NAME=VALUE, such as requirement='be polite'")
        if name.strip() in result:
            raise UserError(f"--argument {name.strip()!r} is given twice")
        result[name.strip()] = value
    return result
