"""The evaluation run from files, its report, and the commands."""

import json

import pytest
from student_cases import labelled

from critic.evaluation import MAJORITY, TFIDF, Subjects, report, run_evaluation
from selfrag.errors import UserError
from selfrag.jsonl import write_jsonl


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "critic.jsonl"
    write_jsonl(path, [row.as_dict() for row in labelled(each=4)])
    return path


def test_baselines_are_written_one_after_the_other_with_a_manifest_and_reported_beside_the_paper(tmp_path, rows):
    out, seen = tmp_path / "new" / "folder" / "figures.json", []

    def say(text):
        seen.append(list(json.loads(out.read_text())["critics"]) if out.exists() else [])

    found = run_evaluation(rows, Subjects(train=rows), out=out, say=say)
    assert seen == [[], [TFIDF]]
    assert found[MAJORITY].groups["IsUse"].accuracy.value == pytest.approx(0.2)
    written = json.loads(out.read_text())
    assert list(written["manifest"]["rows"]) == [rows.name]
    assert len(written["judgments"][TFIDF]) == 4 * 13
    assert written["critics"][MAJORITY]["groups"]["IsRel"]["accuracy"]["n"] == 8
    text = report(found, TFIDF)
    assert "| Llama2-7B (paper) | 0.938 | 0.802 | 0.935 | 0.735 |" in text
    assert f"| {MAJORITY} |" in text
    assert "| set1/rule |" in text
    assert set(found[TFIDF].parts["IsRel"]) == {"human", "derived", "set0/rule", "set1/rule"}
    assert found[TFIDF].parts["IsRel"]["human"].accuracy.n == 4


def test_what_cannot_be_evaluated_is_named_before_a_model_is_asked(tmp_path, rows):
    bad = [row.as_dict() for row in labelled(each=1)]
    at = next(n for n, row in enumerate(bad, 1) if row["group"] == "IsRel")
    bad[at - 1]["evidence"] = {"title": "T", "text": ""}
    write_jsonl(tmp_path / "bad.jsonl", bad)
    write_jsonl(tmp_path / "one.jsonl", [row.as_dict() for row in labelled(each=2) if row.label != "Irrelevant"])
    (tmp_path / "empty.jsonl").write_text("")
    for file, train, out, said in (
        (tmp_path / "bad.jsonl", rows, None, rf"bad\.jsonl:{at}: the text of 'evidence' is empty"),
        (rows, tmp_path / "one.jsonl", None, "IsRel has rows of one label only"),
        (tmp_path / "empty.jsonl", rows, None, "holds no rows"),
        (rows, rows, rows / "x.json", "cannot write"),
    ):
        with pytest.raises(UserError, match=said):
            run_evaluation(file, Subjects(tiny_folder(tmp_path), train=train), out=out, say=pytest.fail)
    with pytest.raises(UserError, match="nothing to evaluate"):
        Subjects()


def tiny_folder(tmp_path):
    """A folder that is taken for a model, until it is loaded."""
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"
