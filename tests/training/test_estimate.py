"""Dry runs: their counts are those of the run."""

from trained import config, log, train

from selfrag.training.estimate import RunEstimate, estimate
from selfrag.training.expansion import expanded_tokenizer
from selfrag.training.run import rows_of


def prepared(base, rows, settings):
    return rows_of(rows, settings)(expanded_tokenizer(base))


def test_counts_are_those_of_the_run(base_dir, rows, tmp_path):
    settings = config(epochs=3)
    found = estimate(prepared(base_dir, rows, settings), settings, None)
    train(rows, base_dir, tmp_path / "run", settings)
    records = log(tmp_path / "run")
    assert found.steps == len(records)
    assert found.tokens == sum(record["tokens"] for record in records)
    assert found.targets == sum(
        group["n"] for record in records for group in record["groups"].values()
    )
    assert found.largest_load == max(record["tokens"] for record in records)


def test_the_lines_of_an_estimate():
    lines = RunEstimate(3, 900, 300, 450).lines(1)
    assert lines == [
        "tokens      900 over 1 pass, 300 of them with a loss",
        "steps       3, at most 450 tokens at once a process",
    ]
