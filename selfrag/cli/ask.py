"""`selfrag ask`: one question, one answer. Reads options, writes the answer; decodes nothing itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from retrieval.atomic import write_text
from selfrag.cli import options
from selfrag.decoding.answer import Answer
from selfrag.errors import UserError
from selfrag.untrusted import whole


def ask(
    question: Annotated[str, typer.Argument(help="the question; - reads it from the standard input")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    trace: Annotated[Path | None, typer.Option(help="write all that was considered to this file, as JSON")] = None,
    model: options.Model = "demo",
    index: options.Index = None,
    engine: options.EngineName = None,
    mode: options.Mode = None,
    threshold: options.Threshold = None,
    policy: options.Policy = "paper",
    w_rel: options.RelevanceWeight = None,
    w_sup: options.SupportWeight = None,
    w_use: options.UtilityWeight = None,
    require: options.Require = None,
    forbid: options.Forbid = None,
    join: options.Join = None,
    w_join: options.JoinWeight = None,
    gate: options.GateOption = None,
    beam: options.Beam = None,
    passages: options.Passages = None,
    segments: options.Segments = None,
) -> None:
    """Answer a question: text with citations, the passages cited, the model's judgments, and what it cost."""
    text = _piped() if question == "-" else question
    decoding = options.decoding(
        policy,
        {
            "mode": mode,
            "threshold": threshold,
            "require": options.constraints("--require", require),
            "forbid": options.constraints("--forbid", forbid),
            "beam": beam,
            "passages": passages,
            "max_segments": segments,
            "reflectors": join,
            "gates": gate,
        },
        {"isrel": w_rel, "issup": w_sup, "isuse": w_use, "joined": options.joined(w_join)},
    )
    if not text.strip():
        raise UserError("the question is empty; write one in quotes")
    if trace is not None:
        trace = trace.resolve()  # a link keeps leading to what is written
        if trace.is_dir():
            raise UserError(f"--trace {trace} is a folder; name a file")
        if not trace.parent.is_dir():
            raise UserError(f"--trace {trace}: there is no folder {trace.parent}; make it first")

    from selfrag.cli.session import answering

    with answering(model, index, engine, options.intrinsics(decoding)) as rag:
        answer = rag.generate(text, decoding=decoding)
    _show(answer, as_json=as_json)  # first, so that a full disk does not cost the answer
    if trace is not None:
        write_text(trace, whole(answer.trace.to_json()))


def _piped() -> str:
    """The standard input as text.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return whole(sys.stdin.read()) if sys.stdin is not None else ""
    except UnicodeDecodeError as error:
        raise UserError(f"the question on the standard input is not {error.encoding.upper()}; convert it") from error


def _show(answer: Answer, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(whole(json.dumps(answer.as_dict(), ensure_ascii=False)) + "\n")
        return
    from rich.console import Console

    from selfrag.cli.show import render

    Console().print(render(answer))
