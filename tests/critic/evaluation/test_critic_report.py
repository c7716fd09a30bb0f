"""The evaluation run from files, its report, and the commands."""

import json

import pytest
from student_cases import labelled

from critic.cli.main import main
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


@pytest.mark.engine
def test_the_train_command_counts_without_training(rows, tiny_llama_plain, tmp_path, capsys):
    arguments = ["--base", str(tiny_llama_plain), "--out", str(tmp_path / "o"), "--per-label", "IsSup=2", "--dry-run"]
    assert main(["train", str(rows), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "rows        6 of 52 in the file" in shown
    assert "left out" not in shown
    assert "2 IsSup/Partially supported" in shown
    for line in ("tokens", "steps       1,", "parameters", "memory", "time"):
        assert f"\n{line}" in shown
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tra", "x"], "No such option"),  # defect 37: official code takes the beginning of an option for it
        (["--style", "emoji"], "'emoji' is not one of"),
        (["--per-label", "IsSup"], "write GROUP=N or GROUP=all"),
        (["--processes", "2"], "recipe critic/cpu is for one process"),
    ],
)
def test_what_the_train_command_cannot_do_is_one_line(rows, tmp_path, capsys, more, said):
    assert main(["train", str(rows), "--base", "b", "--out", str(tmp_path / "o"), *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
