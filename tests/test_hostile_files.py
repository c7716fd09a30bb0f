"""Manifests, recipes and rows that were mutated at random are read, or refused in one line.

`SELFRAG_MUTATIONS=2000` tries that many of each.
"""

import json
import os
import random
from pathlib import Path

import pytest
from json_files import read_json
from mutations import mutate
from tiny import byte_level_tokenizer

import critic.demo
from critic.case_files import parse_labelled
from critic.formats import FORMATS
from critic.mixture import load
from critic.pairs import parse_pair
from critic.student.card import FORMS as INSTRUCTED
from critic.student.card import read_card
from critic.teacher.forms import TeacherForms
from critic.teacher.run import TeacherReply
from retrieval.index import IndexManifest
from selfrag.common.errors import UserError
from selfrag.common.validation import validate
from selfrag.evaluation.items import Output, item_of
from selfrag.evaluation.presets import SCHEMAS
from selfrag.evaluation.records import MANIFEST, items_of, read_records
from selfrag.evaluation.task import task_of
from selfrag.judges.conversation import read_conversation
from selfrag.training.intrinsics.certainty import parse_row as parse_certainty
from selfrag.training.intrinsics.rows import parser
from selfrag.training.recipes import GENERATOR, Recipe, read_recipe
from selfrag.training.records import recorded
from selfrag.training.reports import CHECKPOINT, track, write_card
from selfrag.training.rows import parse_row

MUTATIONS = int(os.environ.get("SELFRAG_MUTATIONS", "60"))
PASSAGE = {"id": "p", "title": "T", "text": "Rome is a city."}
TALK = [
    {"role": "user", "content": "Who wrote it?"},
    {"role": "assistant", "content": "Goethe. In 1808."},
]
ASKED = {"id": "i", "dataset": "d", "conversation": TALK[:1], "documents": [PASSAGE]}
SAID = ASKED | {"conversation": TALK}
SPAN = {
    "response_begin": 0,
    "response_end": 7,
    "doc_id": "p",
    "doc_begin": 0,
    "doc_end": 4,
}
QUESTION = {
    "question": "Which?",
    "choices": {"text": ["a", "b"], "label": ["A", "B"]},
    "answerKey": "B",
}
MIXED = [
    *(
        {"task": task, "id": "i", "instruction": "Who?", "answers": ["Ann"]}
        for task in ("short_qa", "long_form")
    ),
    {
        "task": "list",
        "id": "i",
        "instruction": "Who?",
        "answers": [["Ann"], ["Bob", "Rob"]],
        "passages": [PASSAGE],
    },
    {
        "task": "x",
        "id": "i",
        "instruction": "?",
        "label": "B",
        "options": ["x", "y"],
        "support": ["T"],
        "topic": "t",
    },
]
PUBLIC = {
    "questions": {
        "id": 3,
        "possible_answers": '["a", "b"]',
        "question": "?",
        "ctxs": [PASSAGE],
    },
    "claims": {"claim": "It is.", "label": "SUPPORTS", "docs": [PASSAGE]},
    "choices": QUESTION,
    "biographies": {"topic": "Ann", "input": "Tell me."},
    "ambiguous": {
        "question": "?",
        "qa_pairs": [{"short_answers": ["a"]}],
        "annotations": [{"long_answer": "a."}],
    },
    "lists": {"question": "?", "answer_list": [{"answer_text": "a", "aliases": ["b"]}]},
}
SAMPLES = Path(__file__).parent / "critic" / "sources" / "samples"
REPLY = {
    "outcome": "labelled",
    "label": "Relevant",
    "raw": "x",
    "requests": 1,
    "distribution": [0.5, 0.5],
}
INDEX = {
    "passages": 2,
    "corpus": "c",
    "encoder": {
        "name": "e",
        "fingerprint": "f",
        "dim": 8,
        "precision": "float32",
        "source": "s",
    },
    "template": {},
    "files": {"a": 3},
    "added": [{"name": "parts/2-segment", "passages": 1, "corpus": "d"}],
    "language": "en",
}


def listed(*names):
    """The rows of sample files."""
    return [
        json.loads(line)
        for name in names
        for line in (SAMPLES / name).read_text().splitlines()
    ]


def public(record):
    return [schema.item(record) for schema in SCHEMAS.values() if schema.fits(record)]


def refusal(read, values):
    """Why values are not read; empty where they are."""
    try:
        read(values)
    except UserError as error:
        return str(error)
    return ""


def paired(record):
    said = [
        refusal(lambda row, form=form: list(load([row], form)), record)
        for form in FORMATS
    ]
    assert not any("\n" in line for line in said)
    return said


def recipe(tables):
    made = Recipe("mine", GENERATOR, tables, {})
    return [made.table(name) for name in GENERATOR.tables]


GROUPS = {"isrel": {"n": 2, "loss": 0.5, "accuracy": 1.0}}
TOKENIZER = byte_level_tokenizer(reflection=True)
FORMS = {
    "temperature": 1.0,
    "passage": {"bees": {"title": "Bees", "text": "Bees make honey."}},
    "form": [
        {
            "name": "isrel",
            "task": "Judge.",
            "fields": ["Instruction", "Evidence"],
            "question": "Rating:",
            "label": [
                {"surface": "[1]", "name": "Relevant", "meaning": "It helps."},
                {"surface": "[0]", "name": "Irrelevant", "meaning": "It does not."},
            ],
            "example": [
                {"instruction": "Who?", "passage": "bees", "label": "Relevant"}
            ],
        }
    ],
}


def toml(value):
    """A value in TOML, which has no null."""
    match value:
        case dict():
            pairs = [f"{json.dumps(key)} = {toml(part)}" for key, part in value.items()]
            return f"{{{', '.join(pairs)}}}"
        case list():
            return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def forms(values):
    text = toml({"x": values}) if not isinstance(values, dict) else ""
    for key, value in dict(values if text == "" else {}).items():
        text += f"{json.dumps(key)} = {toml(value)}\n"
    return TeacherForms.parse(text, "forms.toml", verbatim=False)


def card_of(path):
    """The model card of a run, of which one file is mutated, and its figures on a board."""
    log, manifest = path.parent / "log.jsonl", path.parent / "manifest.json"
    if not log.exists():
        log.write_text("")
    if not manifest.exists():
        manifest.write_text('{"config": {}}')
    track(path.parent, lambda step, figures: None)
    recorded(path.parent)
    return write_card(path.parent, path.parent, CHECKPOINT, base="b", recipe="cpu")


READERS = {
    "index manifest": (lambda values: validate(IndexManifest, values, "manifest.json"), [INDEX]),
    "recipe": (recipe, [dict(read_recipe(name).tables) for name in ("paper", "gpu")]),
    "reply of a teacher": (lambda values: validate(TeacherReply, values), [REPLY]),
    "training row": (
        parse_row,
        [{"id": "i", "source": "s", "instruction": "?", "target": [{"token": "[Relevant]"}, {"passage": PASSAGE}]}]
    ),
    "critic row": (
        parse_labelled,
        [{"id": "i", "group": "IsRel", "instruction": "?", "evidence": PASSAGE, "label": "Relevant"}]
    ),
    "pair": (parse_pair, [{"id": "i", "instruction": "?", "output": "a", "gold_passages": [PASSAGE]}]),
    "evaluation row": (lambda row: task_of(item_of(row)), MIXED),
    "published row": (public, list(PUBLIC.values())),
    "source row": (paired, listed("oasst_trees.jsonl", "kilt_wow.jsonl", "open_instruct.jsonl", "arc.jsonl")),
    "record of a run": (Output.from_record, [{"id": "i", "text": "a", "cited": ["p"], "read": [], "retrieved": True,
                                             "segments": [["a", None]], "usage": {"requests": 1}}]),
    "rewrite": (parser("query_rewrite"), [ASKED | {"rewrite": "Who?", "changed": True, "relevant": ["p"]}]),
    "answerability": (parser("answerability"), [ASKED | {"label": "answerable"}]),
    "hallucination": (
        parser("hallucination_detection"),
        [SAID | {"label_level": "sentence", "sentences": [{"begin": 0, "end": 7, "label": "faithful"}]}]
    ),
    "citation": (parser("citation_generation"), [SAID | {"documents": [{"doc_id": "p", "text": "Text."}],
                                                         "citations": [SPAN]}]),
    "forms of a teacher": (forms, [FORMS]),
    "certainty": (parse_certainty, [ASKED | {"answer": "a", "score": 0.5, "right": True}])
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_issue_48_mutated_values_are_read_or_refused_in_one_line(name):
    read, samples = READERS[name]
    rng = random.Random(48)
    for sample in samples:
        read(sample)
    for _ in range(MUTATIONS):
        assert "\n" not in refusal(read, mutate(rng, rng.choice(samples)))


FILES = {
    "conversation": (
        "talk.json",
        read_conversation,
        {"messages": TALK, "documents": [PASSAGE]},
    ),
    "run manifest": (
        MANIFEST,
        lambda path: items_of(path.parent, "set"),
        {
            "identity": {"a": 1},
            "files": {
                "set": {
                    "path": "x",
                    "settings": {"sha256": "s", "task": {"preset": ""}},
                }
            },
        },
    ),
    "training manifest": (
        "manifest.json",
        card_of,
        {
            "config": {"lora": {"rank": 4}, "seed": 3},
            "inputs": {"rows": "r", "base": "b"},
            "facts": {"rows": 3, "tokens": 9, "rows_left_out": {"x": 1}, "held_out": 1},
        },
    ),
    "training log": (
        "log.jsonl",
        card_of,
        {"step": 1, "tokens": 9, "seconds": 2.0, "norm": 0.5, "rate": 1.0}
        | {"loss": 1.0, "groups": GROUPS, "labels": {"[Relevant]": {"n": 1}}}
        | {"validation": {"loss": 1.0, "groups": GROUPS}},
    ),
    "card of a critic": (
        "critic.json",
        lambda path: read_card(path.parent, TOKENIZER),
        read_json(Path(critic.demo.__file__).parent / "adapter" / "critic.json"),
    ),
    "card of the published critic": (
        "critic.json",
        lambda path: read_card(path.parent, TOKENIZER),
        {"format": "released", "instructions": dict.fromkeys(INSTRUCTED, "Judge.")},
    ),
    "records": (
        "set.jsonl",
        read_records,
        {"id": "i", "scores": {"f1": [1.0, 1.0]}, "error": None},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_issue_48_mutated_files_are_read_or_refused_in_one_line(tmp_path, name):
    file, read, sample = FILES[name]
    rng = random.Random(48)
    for _ in range(MUTATIONS):
        (tmp_path / file).write_text(json.dumps(mutate(rng, sample)) + "\n")
        assert "\n" not in refusal(read, tmp_path / file)
