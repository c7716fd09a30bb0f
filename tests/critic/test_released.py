"""The authors' critic data and critic, in the published shapes: made-up rows, read as they are."""

import json

import pytest
import tiny
from json_files import parse_table, write_json
from refusals import refused

from critic.case_files import read_labelled, read_questions
from critic.cases import Case
from critic.cli.main import main
from critic.released import parse_released
from critic.student.card import FORMS, read_card
from retrieval.passage import Passage

TOLD = {form: f"You judge {form}." for form in FORMS}
HALL = "Great Hall\nAnn painted it in 1720."
OBJECT = json.loads("""{"instruction": "Who?", "output": "Ann. In 1720.", "target_output": "In 1720.",
 "preceding_sentences": "Ann.", "evidence": "Great Hall\\nAnn painted it in 1720.", "q_id": "q1", "sent_idx": 1}""")


def combined(task, form, text, label):
    return {"instruction": TOLD[form], "input": text, "output": label, "task": task}


def reply(**fields):
    return {"input": OBJECT, "explanation": "", "raw_output": "", **fields}


COMBINED = [
    combined(task, form, text.replace("$", "Task instruction: Who?\n").strip(), label)
    for task, form, text, label in (
        ("retrieval", "Retrieve", "$", "[Retrieval]"),
        (
            "multi_retrieval",
            "Retrieve/evidence",
            f"$Preceding sentences: Ann.\nEvidence: {HALL}\nOutput: In 1720.",
            "[Continue to Use Evidence]",
        ),
        ("relevance", "IsRel", f"$Evidence: {HALL}", "[Relevant]"),
        (
            "groudness",
            "IsSup",
            f"$Output: Ann.\nEvidence: {HALL}",
            "[Fully supported]",
        ),
        ("utility", "IsUse", "$Output: Ann. In 1720.", "[Utility:4]"),
    )
]
"""A row of each form."""


def released(fields):
    """A reply of the teacher, or a row of `COMBINED` with changes, or the fields alone."""
    if "row" in fields:
        return COMBINED[fields["row"]] | {k: fields[k] for k in fields if k != "row"}
    return fields if "input" in fields else reply(**fields)


@pytest.mark.parametrize(
    "fields, group, texts, evidence, label",
    parse_table(
        r"""
{"row": 0} | Retrieve | ["Who?"] | 0 | Retrieval
{"row": 1} | Retrieve | ["Who?", "Ann.", "In 1720."] | 1 | Continue to Use Evidence
{"row": 1, "input": "Task instruction: Who?\nPreceding sentences: None\nEvidence: HALL\nOutput: In 1720."}
    | Retrieve | ["Who?", "", "In 1720."] | 1 | Continue to Use Evidence
{"row": 2} | IsRel | ["Who?"] | 1 | Relevant
{"row": 3} | IsSup | ["Who?", "", "Ann."] | 1 | Fully supported
{"row": 4} | IsUse | ["Who?", "", "Ann. In 1720."] | 0 | "4"
{"row": 4, "output": "[Relevant]"} | IsUse | ["Who?", "", "Ann. In 1720."] | 0 | ""
{"score": "[Partially supported] "} | IsSup | ["Who?", "Ann.", "In 1720."] | 1 | Partially supported
{"score": "", "raw_output": "[Irrelevant]\nExplanation: no"} | IsRel | ["Who?"] | 1 | Irrelevant
{"score": 3} | IsUse | ["Who?", "", "Ann. In 1720."] | 0 | "3"
{"score": 7} | IsSup | ["Who?", "Ann.", "In 1720."] | 1 | ""
{"decision_token": "[No Retrieval]"} | Retrieve | ["Who?", "Ann.", "In 1720."] | 1 | No Retrieval
{"input": "##\nTask instruction: Who?", "output": "Yes"} | Retrieve | ["Who?"] | 0 | Retrieval
""".replace("HALL", HALL.replace("\n", r"\n"))
    ),
)
def test_a_published_row_is_a_case_with_its_label(
    fields, group, texts, evidence, label
):
    row = parse_released(released(fields), "k")
    passage = Passage("k/evidence", *reversed(HALL.split("\n"))) if evidence else None
    expected = Case.of(group, *texts, evidence=passage)
    assert row.group == group
    assert row.state == expected.state
    assert row.label == label
    assert row.label_source == "gpt-4"


@pytest.mark.parametrize(
    "fields, said",
    parse_table(r"""
{"row": 0, "task": "mood"} | unknown task 'mood'
{"row": 0, "input": "Who?"} | 'input' must begin with 'Task instruction: ', not 'Who\?'
{"row": 0, "input": 7} | 'input' must be text or an object, not 7
{"input": [1], "output": "x"} | 'input' must be text or an object, not \[1\]
{"row": 0, "input": "Task instruction: "} | the instruction of the case is empty
{"row": 2, "output": "[Mostly]"} | the teacher gave no label
{"row": 2, "input": "Task instruction: Who?"} | IsRel needs 'evidence'
{"input": {}} | no 'score' or 'decision_token' or 'output' in a row
"""),
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, fields, said):
    path = write_json(tmp_path / "train.json", [COMBINED[0], released(fields)])
    with refused(f"train.json: row 2: .*{said}"):
        list(read_labelled(path, judgeable=True))


def test_published_labels_label_their_own_rows_and_those_without_one_are_set_aside(
    tmp_path, capsys
):
    path, out = tmp_path / "train.json", tmp_path / "out"
    other = COMBINED[2] | {"output": "[Mostly]", "input": COMBINED[2]["input"] + "!"}
    write_json(path, [*COMBINED, other])
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
