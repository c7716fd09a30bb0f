"""Runs to report on, made by the real runner on the scripted engine. Importable from the tests beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostile import HOSTILE
from scripted_run import finetuned
from written import EOS, LIMITS, PROMPTING, ScriptedReply, reply, run, seen

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.engines.scripted import ScriptedEngine
from selfrag.evaluation import runner
from selfrag.evaluation.systems import Reflective
from selfrag.evaluation.task_files import read_task
from selfrag.reflection.requests import Failed, Generate

GOOD, FAIR = "{issup .8 .1 .1}{isuse 0 0 0 0 1}", "{issup .3 .5 .2}{isuse 0 0 .2 .8 0}"
LONG, SHORT, BROKEN = 3, 8, "Question 5?"
NAMES = ("reflective", "finetuned")


def row(number: int, kind: str) -> dict[str, Any]:
    """A row of a data file in the schema of eval/dev; every third answer of a short file is Paris."""
    passages = [
        {
            "id": f"d{i}",
            "title": f"Title of d{i}",
            "text": f"Text of d{i} <b>& so on</b>.",
        }
        for i in (1, 2)
    ]
    return {
        "task": kind,
        "id": f"{kind}-{number}",
        "instruction": f"Question {number}?",
        "answers": [
            "Paris"
            if kind == "short_qa"
            else "Paris is the capital of France, and so it has been for long."
        ],
        "passages": passages,
        "gold_passage_ids": ["d1"],
    }


def answers(request: Generate) -> ScriptedReply | Failed:
    """Two segments from the better of two passages; the second segment only where the task allows one."""
    response = seen(request.prompt_ids).partition("### Response:\n")[2]
    if not response:
        return reply("{~retrieve .9 .1 0}x")
    better = response.endswith("<d1>")
    if response.count("[Retrieval]") == 1:
        more = (
            ("{isrel .9 .1}Paris." + GOOD) if better else ("{isrel .2 .8}Rome." + FAIR)
        )
        return reply((more + "{retrieve .7 .2 .1}", 0.9 if better else 0.5))
    return reply(
        ("{isrel .8 .2}It is large." + (GOOD if better else FAIR) + "</s>", 0.8)
    )


def plain(request: Generate) -> ScriptedReply | Failed:
    """Paris for even questions; one question cannot be answered."""
    prompt = seen(request.prompt_ids)
    if BROKEN in prompt:
        return Failed("no memory left")
    number = int(prompt.split("Question ")[1].split("?")[0])
    return ScriptedReply(
        (*PROMPTING.codec.encode("Paris" if number % 2 == 0 else "Rome"), EOS)
    )


def make(folder: Path) -> list[Path]:
    """Two runs in `folder`, over `short.jsonl` and `long.jsonl` beside them."""
    files = []
    for name, kind, count in (("short", "short_qa", SHORT), ("long", "long_qa", LONG)):
        path = folder / f"{name}.jsonl"
        path.write_text(
            "".join(json.dumps(row(i, kind)) + "\n" for i in range(count)),
            encoding="utf-8",
        )
        files.append(read_task(path))
    systems = (Reflective(PROMPTING, Decoding(beam=2, max_segments=2)), finetuned(1))
    model = {"config.json": "00ff" * 16, "model.safetensors": "abcdef" * 10}
    for name, system, engine, traces in zip(
        NAMES, systems, (answers, plain), (True, False), strict=True
    ):
        identity = {"name": name, "model": model, "engine": "scripted"}
        job = runner.RunJob(
            system, identity, folder / name, {"limit": None, "seed": 0}, traces=traces
        )
        runner.run(
            job, files, lambda reply=engine: ScriptedEngine(reply, EOS, limits=LIMITS)
        )
    return [folder / name for name in NAMES]


def trace(**options: Any) -> Trace:
    """One decode of two segments with a beam."""
    return run(
        answers,
        "d1",
        "d2",
        **{"mode": "always", "max_segments": 2, "beam": 2, **options},
    ).answer.trace


def hostile(text: str) -> Trace:
    """A trace with `text` wherever others can write."""
    made = trace()

    def passage(old: Passage) -> Passage:
        return Passage(
            f"{old.id}{text}", f"{old.text}{text}", f"{old.title}{text}", old.score
        )

    decisions = tuple(
        replace(
            one, reason=text, query=text, passages=tuple(map(passage, one.passages))
        )
        for one in made.decisions
    )
    nodes = []
    for node in made.nodes:
        body = {
            "text": node.text + text,
            "finish": text,
            "passage": node.passage and passage(node.passage),
        }
        nodes.append(
            replace(node, **body, judges={f"judge{text}": node.judgments.get("issup")})
        )  # type: ignore[arg-type]
    return replace(made, question=text, decisions=decisions, nodes=tuple(nodes))


__all__ = ["HOSTILE", "NAMES", "hostile", "make", "trace"]
