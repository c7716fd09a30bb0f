"""Runs to report on, made by the real runner on the scripted engine. Importable from the tests beside it."""

import json
from dataclasses import replace

from hostile import HOSTILE
from scripted import ScriptedEngine
from scripted_run import finetuned
from written import EOS, LIMITS, PROMPTING, ScriptedReply, reply, run, seen

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.evaluation import runner
from selfrag.evaluation.systems import Reflective
from selfrag.evaluation.task_files import read_task
from selfrag.reflection.requests import Failed

GOOD, FAIR = "{issup .8 .1 .1}{isuse 0 0 0 0 1}", "{issup .3 .5 .2}{isuse 0 0 .2 .8 0}"
LONG, SHORT, BROKEN = 3, 8, "Question 5?"
NAMES = ("reflective", "finetuned")


def row(number, kind):
    """A row of a data file in the schema of eval/dev."""
    return json.loads(ROW.replace("KIND", kind).replace("NUMBER", str(number))) | {
        "answers": ["Paris" if kind == "short_qa" else EXPLAINED]
    }


EXPLAINED = "Paris is the capital of France, and so it has been for long."
ROW = """{"task": "KIND", "id": "KIND-NUMBER", "instruction": "Question NUMBER?", "gold_passage_ids": ["d1"],
 "passages": [{"id": "d1", "title": "Title of d1", "text": "Text of d1 <b>& so on</b>."},
  {"id": "d2", "title": "Title of d2", "text": "Text of d2 <b>& so on</b>."}]}"""


def answers(request):
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


def plain(request):
    """Paris for even questions; one question cannot be answered."""
    prompt = seen(request.prompt_ids)
    if BROKEN in prompt:
        return Failed("no memory left")
    number = int(prompt.split("Question ")[1].split("?")[0])
    return ScriptedReply(
        (*PROMPTING.codec.encode("Paris" if number % 2 == 0 else "Rome"), EOS)
    )


def make(folder):
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


def trace(**options):
    """One decode of two segments with a beam."""
    return run(
        answers,
        "d1",
        "d2",
        **{"mode": "always", "max_segments": 2, "beam": 2, **options},
    ).answer.trace


def hostile(text):
    """A trace with `text` wherever others can write."""
    made = trace()

    def passage(old):
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
