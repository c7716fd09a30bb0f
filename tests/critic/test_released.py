"""The authors' critic data and critic, in the published shapes: made-up rows, read as they are."""

import json

import pytest
import tiny
from json_files import write_json
from refusals import refused

from critic.case_files import read_labelled, read_questions
from critic.cases import Case
from critic.cli.main import main
from critic.released import parse_released
from critic.student.card import FORMS, read_card
from retrieval.passage import Passage

TOLD = {form: f"You judge {form}." for form in FORMS}
HALL = "Great Hall\nAnn painted it in 1720."
OBJECT = {
    "instruction": "Who?",
    "output": "Ann. In 1720.",
    "target_output": "In 1720.",
    "preceding_sentences": "Ann.",
}
OBJECT |= {"evidence": HALL, "q_id": "q1", "sent_idx": 1}


def combined(task, form, text, label):
    return {"instruction": TOLD[form], "input": text, "output": label, "task": task}


def reply(**fields):
    return {"input": OBJECT, "explanation": "", "raw_output": "", **fields}


RETRIEVE = f"Task instruction: Who?\nPreceding sentences: Ann.\nEvidence: {HALL}\nOutput: In 1720."
COMBINED = [
    combined("retrieval", "Retrieve", "Task instruction: Who?", "[Retrieval]"),
    combined(
        "multi_retrieval", "Retrieve/evidence", RETRIEVE, "[Continue to Use Evidence]"
    ),
    combined(
        "relevance", "IsRel", f"Task instruction: Who?\nEvidence: {HALL}", "[Relevant]"
    ),
    combined(
        "groudness",
        "IsSup",
        f"Task instruction: Who?\nOutput: Ann.\nEvidence: {HALL}",
        "[Fully supported]",
    ),
    combined(
        "utility",
        "IsUse",
        "Task instruction: Who?\nOutput: Ann. In 1720.",
        "[Utility:4]",
    ),
]
"""A row of each form."""


@pytest.mark.parametrize(
    "record, case, label",
    [
        (COMBINED[0], ("Retrieve", "Who?", "", "", ""), "Retrieval"),
        (
            COMBINED[1],
            ("Retrieve", "Who?", "Ann.", "In 1720.", HALL),
            "Continue to Use Evidence",
        ),
        (
            COMBINED[1] | {"input": RETRIEVE.replace("Ann.", "None", 1)},
            ("Retrieve", "Who?", "", "In 1720.", HALL),
            "Continue to Use Evidence",
        ),
        (COMBINED[2], ("IsRel", "Who?", "", "", HALL), "Relevant"),
        (COMBINED[3], ("IsSup", "Who?", "", "Ann.", HALL), "Fully supported"),
        (COMBINED[4], ("IsUse", "Who?", "", "Ann. In 1720.", ""), "4"),
        (
            COMBINED[4] | {"output": "[Relevant]"},
            ("IsUse", "Who?", "", "Ann. In 1720.", ""),
            "",
        ),
        (
            reply(score="[Partially supported] "),
            ("IsSup", "Who?", "Ann.", "In 1720.", HALL),
            "Partially supported",
        ),
        (
            reply(score="", raw_output="[Irrelevant]\nExplanation: no"),
            ("IsRel", "Who?", "", "", HALL),
            "Irrelevant",
        ),
        (reply(score=3), ("IsUse", "Who?", "", "Ann. In 1720.", ""), "3"),
        (reply(score=7), ("IsSup", "Who?", "Ann.", "In 1720.", HALL), ""),
        (
            reply(decision_token="[No Retrieval]"),
            ("Retrieve", "Who?", "Ann.", "In 1720.", HALL),
            "No Retrieval",
        ),
        (
            {"input": "##\nTask instruction: Who?", "output": "Yes"},
            ("Retrieve", "Who?", "", "", ""),
            "Retrieval",
        ),
    ],
)
def test_a_published_row_is_a_case_with_its_label(record, case, label):
    row = parse_released(record, "k")
    group, instruction, preceding, output, evidence = case
    passage = (
        None
        if not evidence
        else Passage("k/evidence", *reversed(evidence.split("\n", 1)))
    )
    expected = Case.of(group, instruction, preceding, output, passage)
    assert (row.group, row.state) == (group, expected.state)
    assert row.label == label
    assert row.label_source == "gpt-4"


@pytest.mark.parametrize(
    "record, said",
    [
        (COMBINED[0] | {"task": "mood"}, "unknown task 'mood'"),
        (
            COMBINED[0] | {"input": "Who?"},
            "'input' must begin with 'Task instruction: ', not 'Who\\?'",
        ),
        (COMBINED[0] | {"input": 7}, "'input' must be text or an object, not 7"),
        (
            {"input": [1], "output": "x"},
            r"'input' must be text or an object, not \[1\]",
        ),
        (
            COMBINED[0] | {"input": "Task instruction: "},
            "the instruction of the case is empty",
        ),
        (COMBINED[2] | {"output": "[Mostly]"}, "the teacher gave no label"),
        (COMBINED[2] | {"input": "Task instruction: Who?"}, "IsRel needs 'evidence'"),
        ({"input": {}}, "no 'score' or 'decision_token' or 'output' in a row"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, record, said):
    path = tmp_path / "train.json"
    write_json(path, [COMBINED[0], record])
    with refused(f"train.json: row 2: .*{said}"):
        list(read_labelled(path, judgeable=True))


def test_published_labels_label_their_own_rows_and_those_without_one_are_set_aside(
    tmp_path, capsys
):
    path, out = tmp_path / "train.json", tmp_path / "out"
    write_json(
        path,
        [
            *COMBINED,
            COMBINED[2] | {"output": "[Mostly]", "input": COMBINED[2]["input"] + "!"},
        ],
    )
    assert main(f"label {path} --gold {path} -o {out}".split()) == 0
    rows = list(read_labelled(out / "labelled.jsonl"))
    assert [row.id for row in rows] == [f"train-{number}" for number in range(1, 6)]
    assert rows == list(read_labelled(path, skip_unlabelled=True))
    (aside,) = (out / "aside.jsonl").read_text().splitlines()
    assert json.loads(aside)["reason"] == "no gold row"
    assert len(list(read_questions(path))) == 6


@pytest.mark.engine
def test_the_published_critic_is_asked_as_it_was_trained(tmp_path, command, refusal):
    critic = tiny.save_llama(tmp_path / "critic", reflection=False)
    rows = tmp_path / "train.json"
    write_json(rows, COMBINED[:4])
    line = f"critic adopt {rows} {critic}"
    assert "IsUse" in refusal(line)
    write_json(rows, COMBINED)
    command(line)
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    codec = read_card(critic, tokenizer)
    for form, record in zip(FORMS, COMBINED, strict=True):
        case = parse_released(record, "k")
        prompt = codec.prompt(case)
        text = f"### Instruction:\n{TOLD[form]}\n\n### Input:\n{record['input']}\n\n### Response:"
        offered = [option for option in prompt.options if option]
        assert len(offered) == (2 if form == "Retrieve" else len(case.labels))
        for option, token in zip(offered, case.labels.tokens, strict=False):
            assert tokenizer.decode([*prompt.ids, *option]) == text + token
    long = Case.of("IsSup", "Who?", "", "Ann.", Passage("p", "word " * 900))
    assert codec.prompt(long).dropped.keys() == {"evidence"}
    asked = f"critic eval {rows} --critic {critic} --engine transformers"
    assert "max_model_len=1024" in command(asked, code=2)[1]
    assert "without critic.json" in refusal(line)
