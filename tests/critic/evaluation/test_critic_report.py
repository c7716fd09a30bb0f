"""The evaluation run from files, its report, and the commands."""

import json

import pytest
from student_cases import labelled

from critic.cli.main import main
from critic.evaluation.figures import report
from critic.evaluation.run import MAJORITY, TFIDF, Subjects, run_evaluation
from selfrag.errors import UserError
from selfrag.jsonl import write_jsonl


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "critic.jsonl"
    write_jsonl(path, [row.as_dict() for row in labelled(each=4)])
    return path


@pytest.fixture(scope="module")
def found(rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.json"
    return run_evaluation(rows, Subjects(train=rows), out=out), out


def test_baselines_are_measured_and_written_with_a_manifest(found, rows):
    evaluations, out = found
    assert list(evaluations) == [TFIDF, MAJORITY]
    assert evaluations[MAJORITY].groups["IsUse"].accuracy.value == pytest.approx(0.2)
    written = json.loads(out.read_text())
    assert list(written["manifest"]["rows"]) == [rows.name]
    assert len(written["judgments"][TFIDF]) == 4 * 13
    assert written["critics"][MAJORITY]["groups"]["IsRel"]["accuracy"]["n"] == 8


def test_the_report_shows_all_critics_beside_the_paper(found):
    text = report(found[0], TFIDF)
    assert "| Llama2-7B (paper) | 0.938 | 0.802 | 0.935 | 0.735 |" in text
    assert f"| {MAJORITY} |" in text
    assert "| set1/rule |" in text


def test_an_empty_file_and_an_empty_choice_are_refused(tmp_path, rows):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no rows"):
        run_evaluation(tmp_path / "empty.jsonl", Subjects(train=rows))
    with pytest.raises(UserError, match="nothing to evaluate"):
        Subjects()


def test_a_row_that_cannot_be_judged_is_named_with_its_line_before_a_model_is_asked(tmp_path, rows):
    bad = [row.as_dict() for row in labelled(each=1)]
    at = next(n for n, row in enumerate(bad, 1) if row["group"] == "IsRel")
    bad[at - 1]["evidence"] = {"title": "T", "text": ""}
    write_jsonl(tmp_path / "bad.jsonl", bad)
    with pytest.raises(UserError, match=rf"bad\.jsonl:{at}: the text of 'evidence' is empty"):
        run_evaluation(tmp_path / "bad.jsonl", Subjects(critic=tmp_path / "none", train=rows))


def test_figures_are_written_after_each_critic_into_a_folder_that_is_made(tmp_path, rows):
    out, seen = tmp_path / "new" / "folder" / "figures.json", []

    def say(text):
        seen.append(list(json.loads(out.read_text())["critics"]) if out.exists() else [])

    run_evaluation(rows, Subjects(train=rows), out=out, say=say)
    assert seen == [[], [TFIDF]]
    (tmp_path / "file").write_text("")
    said = []
    with pytest.raises(UserError, match="cannot write"):
        run_evaluation(rows, Subjects(train=rows), out=tmp_path / "file" / "x.json", say=said.append)
    assert said == []


def test_rows_that_no_baseline_can_be_fitted_to_are_named_before_a_model_is_asked(tmp_path, rows):
    write_jsonl(tmp_path / "train.jsonl", [row.as_dict() for row in labelled(each=2) if row.label != "Irrelevant"])
    with pytest.raises(UserError, match="IsRel has rows of one label only"):
        run_evaluation(rows, Subjects(critic=tmp_path / "none", train=tmp_path / "train.jsonl"))


def test_defect_37_unknown_options_and_values_are_refused(rows, capsys):
    assert main(["eval", str(rows), "--tra", str(rows)]) == 2
    assert main(["train", str(rows), "--base", "b", "--out", "o", "--style", "emoji"]) == 2
    assert main(["train", str(rows), "--base", "b", "--out", "o", "--per-label", "IsSup"]) == 2
    assert "write GROUP=N or GROUP=all" in capsys.readouterr().err


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
        (["--epochs", "0"], "--epochs"),
        (["--processes", "2"], "recipe critic/cpu is for one process"),
        (["--recipe", "nowhere"], "no recipe nowhere"),
        (["--recipe", "fsdp"], "needs GPUs, and there is none here"),
        (["--base", "nobody/at/all"], "no model at nobody/at/all"),
    ],
)
def test_what_the_train_command_cannot_do_is_one_line(rows, tiny_llama_plain, tmp_path, capsys, more, said):
    import torch

    if torch.cuda.is_available() and "fsdp" in more:
        pytest.skip("there are GPUs here")
    assert main(["train", str(rows), "--base", str(tiny_llama_plain), "--out", str(tmp_path / "o"), *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
