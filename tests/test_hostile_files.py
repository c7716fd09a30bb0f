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
SAMPLES = Path(__file__).parent / "critic" / "sources" / "samples"
VALUES = json.loads("""{
"index manifest": [{"passages": 2, "corpus": "c", "template": {}, "files": {"a": 3}, "language": "en",
    "encoder": {"name": "e", "fingerprint": "f", "dim": 8, "precision": "float32", "source": "s"},
    "added": [{"name": "parts/2-segment", "passages": 1, "corpus": "d"}]}],
"reply of a teacher": [{"outcome": "labelled", "label": "Relevant", "raw": "x", "requests": 1,
    "distribution": [0.5, 0.5]}],
"training row": [{"id": "i", "source": "s", "instruction": "?",
    "target": [{"token": "[Relevant]"}, {"passage": PASSAGE}]}],
"critic row": [{"id": "i", "group": "IsRel", "instruction": "?", "evidence": PASSAGE, "label": "Relevant"}],
"pair": [{"id": "i", "instruction": "?", "output": "a", "gold_passages": [PASSAGE]}],
"evaluation row": [
    {"task": "short_qa", "id": "i", "instruction": "Who?", "answers": ["Ann"]},
    {"task": "long_form", "id": "i", "instruction": "Who?", "answers": ["Ann"]},
    {"task": "list", "id": "i", "instruction": "Who?", "answers": [["Ann"], ["Bob", "Rob"]], "passages": [PASSAGE]},
    {"task": "x", "id": "i", "instruction": "?", "label": "B", "options": ["x", "y"], "support": ["T"],
     "topic": "t"}],
"published row": [
    {"id": 3, "possible_answers": "[\\"a\\", \\"b\\"]", "question": "?", "ctxs": [PASSAGE]},
    {"claim": "It is.", "label": "SUPPORTS", "docs": [PASSAGE]},
    {"question": "Which?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"},
    {"topic": "Ann", "input": "Tell me."},
    {"question": "?", "qa_pairs": [{"short_answers": ["a"]}], "annotations": [{"long_answer": "a."}]},
    {"question": "?", "answer_list": [{"answer_text": "a", "aliases": ["b"]}]}],
"record of a run": [{"id": "i", "text": "a", "cited": ["p"], "read": [], "retrieved": true, "segments": [["a", null]],
    "usage": {"requests": 1}}],
"rewrite": [{ASKED, "rewrite": "Who?", "changed": true, "relevant": ["p"]}],
"answerability": [{ASKED, "label": "answerable"}],
"hallucination": [{SAID, "label_level": "sentence", "sentences": [{"begin": 0, "end": 7, "label": "faithful"}]}],
"citation": [{SAID, "documents": [{"doc_id": "p", "text": "Text."}],
    "citations": [{"response_begin": 0, "response_end": 7, "doc_id": "p", "doc_begin": 0, "doc_end": 4}]}],
"certainty": [{ASKED, "answer": "a", "score": 0.5, "right": true}],
"forms of a teacher": [{"temperature": 1.0, "passage": {"bees": {"title": "Bees", "text": "Bees make honey."}},
    "form": [{"name": "isrel", "task": "Judge.", "fields": ["Instruction", "Evidence"], "question": "Rating:",
        "label": [{"surface": "[1]", "name": "Relevant", "meaning": "It helps."},
                  {"surface": "[0]", "name": "Irrelevant", "meaning": "It does not."}],
        "example": [{"instruction": "Who?", "passage": "bees", "label": "Relevant"}]}]}],
"conversation": [{TALK, "documents": [PASSAGE]}],
"run manifest": [{"identity": {"a": 1},
    "files": {"set": {"path": "x", "settings": {"sha256": "s", "task": {"preset": ""}}}}}],
"training manifest": [{"config": {"lora": {"rank": 4}, "seed": 3}, "inputs": {"rows": "r", "base": "b"},
    "facts": {"rows": 3, "tokens": 9, "rows_left_out": {"x": 1}, "held_out": 1}}],
"training log": [{"step": 1, "tokens": 9, "seconds": 2.0, "norm": 0.5, "rate": 1.0, "loss": 1.0, GROUPS,
    "labels": {"[Relevant]": {"n": 1}}, "validation": {"loss": 1.0, GROUPS}}],
"records": [{"id": "i", "scores": {"f1": [1.0, 1.0]}, "error": null}]
}"""
.replace("ASKED", 'EVIDENCE, "conversation": [{"role": "user", "content": "Who wrote it?"}]')
.replace("SAID", 'EVIDENCE, "conversation": [TURNS]')
.replace("EVIDENCE", '"id": "i", "dataset": "d", "documents": [PASSAGE]')
.replace("TALK", '"messages": [TURNS]')
.replace("TURNS", '{"role": "user", "content": "Who wrote it?"}, {"role": "assistant", "content": "Goethe. In 1808."}')
.replace("GROUPS", '"groups": {"isrel": {"n": 2, "loss": 0.5, "accuracy": 1.0}}')
.replace("PASSAGE", '{"id": "p", "title": "T", "text": "Rome is a city."}')
)  # fmt: skip
"""Samples by the names of their readers, and of kinds of files."""


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


TOKENIZER = byte_level_tokenizer(reflection=True)


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
    tables = values if isinstance(values, dict) else {"x": values}
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in tables.items()]
    return TeacherForms.parse("\n".join(lines), "forms.toml", verbatim=False)


def card_of(path):
    """The model card of a run, of which one file is mutated, and its figures on a board."""
    for name, content in (("log.jsonl", ""), ("manifest.json", '{"config": {}}')):
        if not (path.parent / name).exists():
            (path.parent / name).write_text(content)
    track(path.parent, lambda step, figures: None)
    recorded(path.parent)
    return write_card(path.parent, path.parent, CHECKPOINT, base="b", recipe="cpu")


def critic_card(path):
    return read_card(path.parent, TOKENIZER)


VALUES["recipe"] = [dict(read_recipe(name).tables) for name in ("paper", "gpu")]
VALUES["source row"] = listed(
    "oasst_trees.jsonl", "kilt_wow.jsonl", "open_instruct.jsonl", "arc.jsonl"
)
READERS = {
    "index manifest": lambda values: validate(IndexManifest, values, "manifest.json"),
    "recipe": recipe,
    "reply of a teacher": lambda values: validate(TeacherReply, values),
    "training row": parse_row,
    "critic row": parse_labelled,
    "pair": parse_pair,
    "evaluation row": lambda row: task_of(item_of(row)),
    "published row": public,
    "source row": paired,
    "record of a run": Output.from_record,
    "rewrite": parser("query_rewrite"),
    "answerability": parser("answerability"),
    "hallucination": parser("hallucination_detection"),
    "citation": parser("citation_generation"),
    "forms of a teacher": forms,
    "certainty": parse_certainty,
}


@pytest.mark.parametrize("name", READERS)
def test_issue_48_mutated_values_are_read_or_refused_in_one_line(name):
    read, samples = READERS[name], VALUES[name]
    rng = random.Random(48)
    for sample in samples:
        read(sample)
    for _ in range(MUTATIONS):
        assert "\n" not in refusal(read, mutate(rng, rng.choice(samples)))


VALUES["card of a critic"] = [
    read_json(Path(critic.demo.__file__).parent / "adapter" / "critic.json")
]
VALUES["card of the published critic"] = [
    {"format": "released", "instructions": dict.fromkeys(INSTRUCTED, "Judge.")}
]
FILES = {
    "conversation": ("talk.json", read_conversation),
    "run manifest": (MANIFEST, lambda path: items_of(path.parent, "set")),
    "training manifest": ("manifest.json", card_of),
    "training log": ("log.jsonl", card_of),
    "card of a critic": ("critic.json", critic_card),
    "card of the published critic": ("critic.json", critic_card),
    "records": ("set.jsonl", read_records),
}


@pytest.mark.parametrize("name", FILES)
def test_issue_48_mutated_files_are_read_or_refused_in_one_line(tmp_path, name):
    file, read = FILES[name]
    [sample] = VALUES[name]
    rng = random.Random(48)
    for _ in range(MUTATIONS):
        (tmp_path / file).write_text(json.dumps(mutate(rng, sample)) + "\n")
        assert "\n" not in refusal(read, tmp_path / file)
