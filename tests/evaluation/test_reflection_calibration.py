"""Fitting temperatures of reflection tokens: on a scripted model that is too sure, and through the command."""

from __future__ import annotations

import json
import math

import pytest
import tiny

from retrieval.passage import Passage
from selfrag.cli.main import main
from selfrag.engines.base import Limits
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.errors import UserError
from selfrag.evaluation.reflection_calibration import Observed, calibrate, fit, observe, store, table, write
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, Role
from selfrag.reflection.vocabulary import STORED, Vocabulary, read_scalings
from selfrag.tokenization import HFTextCodec
from selfrag.training.rows import Evidence, Row, Text, Token


def sure(rights: int, wrongs: int, p: float = 0.99) -> list[Observed]:
    """A model that is sure of Relevant, and right in some rows."""
    judgment = Judgment(ISREL, "row", (p, 1 - p), 1.0)
    return [Observed(f"q{i}", judgment, int(i >= rights)) for i in range(rights + wrongs)]


def test_the_temperature_makes_confidence_the_share_that_is_right():
    """Right in 80 of 100 rows: the log-odds of .99 become those of .8, so T is near log 99 / log 4."""
    scaling = fit(sure(80, 20), biased=False)
    assert scaling.temperature == pytest.approx(math.log(99) / math.log(4), rel=0.1)
    assert scaling(sure(1, 0)[0].judgment).probability("Relevant") == pytest.approx(0.8, abs=0.02)


def test_figures_are_of_rows_that_were_not_fitted():
    found = calibrate(sure(80, 20))[Role.RELEVANCE]
    before, after = found.error
    assert before.value == pytest.approx(0.19, abs=1e-6)
    assert after.value < 0.06
    assert found.loss[1].value < found.loss[0].value
    assert "| isrel | 100 | 3.1" in table({Role.RELEVANCE: found})


@pytest.fixture
def prompting() -> Prompting:
    tokenizer = tiny.byte_level_tokenizer()
    return Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))


def test_tokens_are_read_where_a_row_has_them(prompting):
    """The prefix is all that the row has before the token; the passage stands in it."""
    vocabulary = prompting.vocabulary
    parts = (
        Token("[Retrieval]"),
        Evidence(Passage("p", "Text.", "Title")),
        Token("[Irrelevant]"),
        Text("Yes."),
        Token("[Utility:4]"),
    )
    engine = ScriptedEngine(
        lambda request: Reply(
            (vocabulary.eos_id,), {0: {vocabulary.ids["[Relevant]"]: 0.3, vocabulary.ids["[Irrelevant]"]: 0.1}}
        ),
        vocabulary.eos_id,
        limits=Limits(max_model_len=500, vocab_size=10_000),
    )
    found = observe([Row("r", "set/kind", "Is it?", parts)], prompting, engine)
    assert [(one.judgment.role, one.right) for one in found] == [("retrieve", 0), ("isrel", 1), ("isuse", 3)]
    assert found[1].judgment.distribution == pytest.approx((0.75, 0.25))
    evidence = prompting.evidence(Passage("p", "Text.", "Title"), 256).ids
    prompt = (*prompting.prompt("Is it?"), vocabulary.ids["[Retrieval]"], *evidence)
    assert engine.requests[1].prompt_ids == prompt


def test_results_are_written_and_stored(tmp_path):
    observed = sure(80, 20)
    found = calibrate(observed)
    write(observed, found, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["calibration.json", "calibration.md", "reliability-isrel.svg"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "reflection.json").write_text('{"format": 1}')
    store(found, adapter)
    record = json.loads((adapter / "reflection.json").read_text())
    assert record["format"] == 1
    assert read_scalings(record[STORED]) == {Role.RELEVANCE: found[Role.RELEVANCE].scaling}
    with pytest.raises(UserError, match="neither"):
        store(found, tmp_path / "out")


def test_a_folder_that_cannot_hold_the_result_is_refused_before_the_model_loads(tmp_path, capsys):
    command = ["eval", "calibration", str(tmp_path / "rows"), "--out", str(tmp_path / "out"), "--model", "none"]
    assert main([*command, "--store", str(tmp_path)]) == 2
    assert "holds neither tokenizer_config.json" in capsys.readouterr().err
