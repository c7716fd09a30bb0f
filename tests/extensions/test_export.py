"""Runs as logs of inspect-ai."""

from pathlib import Path

import pytest
from scripted_run import Slow, data_file, job, reply

from selfrag.cli.main import main
from selfrag.evaluation.runner import run
from selfrag.evaluation.task_files import read_task


@pytest.fixture
def folder(tmp_path):
    """A run over one item that is right, one that is wrong and one that fails, with hostile texts."""
    passage = {"id": "p1", "title": "T\ud800", "text": "[31m</script>"}
    rows = [
        {"id": f"q\u2028{number}", "task": "short_qa", "instruction": f"Question {number} \u202e\ud800",
         "answers": ["Paris", "Lutetia"], "passages": [passage], "gold_passage_ids": ["p1"]}
        for number in (3, 4, 5)
    ]  # fmt: skip
    data = data_file(tmp_path, *rows, name="a b.jsonl")
    run(
        job(tmp_path / "run", settings={"limit": 3, "seed": 0}),
        [read_task(data)],
        lambda: Slow(reply, 0.0),
    )
    return tmp_path / "run"


def exported(folder, capsys, *options):
    """What `selfrag eval export` wrote."""
    assert (
        main(
            ["eval", "export", str(folder), *options, "-o", str(folder.parent / "out")]
        )
        == 0
    )
    return Path(capsys.readouterr().out.split("\n")[0])


def test_inspect_reads_the_log(folder, capsys):
    inspect = pytest.importorskip(
        "inspect_ai.log", reason="inspect-ai is not installed"
    )
    path = exported(folder, capsys)
    log = inspect.read_eval_log(str(path))
    assert (log.status, log.eval.task, log.eval.model) == (
        "success",
        "a b",
        "selfrag/finetuned",
    )
    assert [sample.output.completion for sample in log.samples] == [
        "Paris",
        "R\u00f6m",
        "",
    ]
    right, wrong, broken = log.samples
    assert (right.scores["contains"].value, wrong.scores["contains"].value) == (
        1.0,
        0.0,
    )
    # nothing is known of it, which is not 0
    assert "retrieval_rate" not in broken.scores
    scores = {score.name: score for score in log.results.scores}
    assert scores["contains"].metrics["value"].value == pytest.approx(1 / 3)
    assert (
        scores["retrieval_rate"].scored_samples,
        scores["retrieval_rate"].unscored_samples,
    ) == (2, 1)
    first = path.read_bytes()
    assert exported(folder.parent, capsys).read_bytes() == first  # a directory of runs
    assert broken.error.message.startswith("no answer could be generated")
    assert [
        score.name.split("/")[-1] for score in inspect.list_eval_logs(str(path.parent))
    ] == [path.name]
