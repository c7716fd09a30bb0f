"""Bootstrap intervals, AUC, classes and calibration by hand and against scikit-learn and torchmetrics; temperatures."""

import json
import math

import numpy as np
import pytest
import tiny
from json_files import parse_table, read_json
from refusals import refused
from scripted import ScriptedEngine, ScriptedReply

from retrieval.passage import Passage
from selfrag.engines.base import EngineLimits
from selfrag.evaluation.comparison import average, bootstrap
from selfrag.evaluation.intervals import (
    DIFFERENCE,
    SHARE,
    bracketed,
    kappa,
    mean,
    pooled_auc,
)
from selfrag.evaluation.metrics.citations import pair_figures
from selfrag.evaluation.metrics.classification import (
    ANSWERABLE,
    UNANSWERABLE,
    FlowOutcome,
    adaptive_bins,
    brier,
    calibration_error,
    classification,
    equal_bins,
    joint_figures,
    plot_reliability,
    reliability,
)
from selfrag.experiments.reflection_calibration import (
    Observed,
    calibrate,
    fit,
    observe,
    store,
    write,
)
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, Role
from selfrag.reflection.vocabulary import STORED, read_scalings
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken, TrainingRow


def test_mean_with_its_interval():
    values = [1.0] * 60 + [0.0] * 40
    found = mean(values, seed=1)
    assert found.value == pytest.approx(0.6)
    assert found.n == 100
    # normal approximation: 0.6 +- 1.96 * sqrt(0.24 / 100) = 0.504 .. 0.696
    assert (found.low, found.high) == pytest.approx((0.504, 0.696), abs=0.02)
    assert found == mean(values, seed=1)


def test_intervals_keep_a_width_where_all_items_agree():
    """Field audit E1. Of n equal values, the interval of Clopper and Pearson: (0.025)^(1/n) of all items hold it."""
    three, hundred = 0.025 ** (1 / 3), 0.025 ** (1 / 100)
    flagged = classification("UUUAAA", "UUUAAA", ("U", "A")).classes["U"].precision
    cases = [
        (mean([1.0] * 3), three, 1.0),
        (mean([0.0] * 3), 0.0, 1 - three),
        (mean([0.5] * 3), three / 2, 1 - three / 2),
        (mean([0.0] * 100), 0.0, 1 - hundred),  # "rule of three": about 3.7 / n
        (mean([0.0] * 3, bounds=DIFFERENCE), three - 1, 1 - three),
        (pooled_auc([[0.9]] * 3, [[0.1]] * 3), three, 1.0),
        (flagged, three, 1.0),  # only three of six are behind the precision
        # Kappa at total disagreement is -1 here, as both answers are equally frequent.
        (kappa([[(True, True)], [(False, False)]] * 50), 2 * hundred - 1, 1.0),
    ]
    for estimate, low, high in cases:
        assert (estimate.low, estimate.high) == pytest.approx((low, high)), estimate
    for unknown in (mean([7.0] * 3), mean([1.0] * 3, bounds=None)):
        assert unknown.as_dict()["low"] is unknown.as_dict()["high"] is None


def test_differences_and_clusters_keep_a_width_where_all_items_agree():
    """Field audit E1. Of n equal values, the interval of Clopper and Pearson: (0.025)^(1/n) of all items hold it."""
    three = 0.025 ** (1 / 3)
    right = [(1.0, 1.0)] * 3
    wrong = [(0.0, 1.0)] * 3
    clustered = [(8.0, 8.0), (1.0, 1.0), (1.0, 1.0)]
    first, second, rows, tokens = bootstrap(
        [right, wrong, clustered, right], bounds=[SHARE, SHARE, SHARE, None]
    )
    assert bracketed(first.estimate) == "100.0 [29.2, 100.0]"
    difference = (first - second).estimate
    assert (difference.low, difference.high) == pytest.approx((2 * three - 1, 1.0))
    # One question holds 8 of 10 rows: 10^2 / (8^2 + 1 + 1) = 1.5 questions of equal weight.
    assert rows.estimate.low == pytest.approx(0.025 ** (66 / 100))
    assert math.isnan(tokens.estimate.low)
    assert average([first, rows]).estimate.low == pytest.approx(0.025 ** (66 / 200))


def test_one_item_has_no_interval_and_none_has_no_value():
    one = mean([0.5])
    assert one.value == 0.5
    assert one.as_dict()["low"] is None
    assert str(one) == "0.500 n=1"
    for nothing in (
        mean([]),
        pair_figures([], []).f1,
        classification([], [], ("U", "A")).accuracy,
        brier([], []),
    ):
        assert not nothing.defined
        assert nothing.n == 0
        assert str(nothing) == "\N{EN DASH} n=0"
        assert nothing.as_dict()["value"] is None


def test_pooled_auc_pools_scores_and_resamples_items():
    found = pooled_auc([[0.9], [0.3]], [[0.1, 0.2], [0.4]], seed=3)
    assert found.value == pytest.approx(5 / 6)
    # samples are item 1 twice (AUC 1), item 2 twice (0) or both (5/6)
    assert found.n == 2
    assert found.low == 0.0
    assert found.high == 1.0
    assert pooled_auc([[0.5]], [[0.5, 0.9]]).value == 0.25  # a tie is half a win


def test_answerability_by_hand():
    found = classification(list("UUAA"), list("UAAA"), ("U", "A"))
    assert found.confusion == {("U", "U"): 1, ("U", "A"): 1, ("A", "A"): 2}
    # No prediction costs recall and not precision.
    found = classification(list("UUAA"), ["U", None, "A", "other"], ("U", "A"))
    answerable = found.classes["U"]
    assert answerable.precision.value == 1.0
    assert answerable.recall.value == 0.5
    assert found.accuracy.value == 0.5
    assert found.undefined == 2
    assert found.as_dict()["confusion"] == json.loads(
        '{"U": {"U": 1, "": 1}, "A": {"A": 1, "": 1}}'
    )
    for truth, said, message in parse_table("""
["X"] | ["U"] | unknown class 'X'
["U"] | ["U", "A"] | 1 item for 2
"""):
        with pytest.raises(ValueError, match=message):
            classification(truth, said, ("U", "A"))


def test_jafs_by_hand():
    outcomes = [
        FlowOutcome(answerable=False, answered=False),
        FlowOutcome(answerable=True, answered=True, faithfulness=0.8),
        FlowOutcome(answerable=False, answered=True, faithfulness=1.0),
        FlowOutcome(answerable=True, answered=False),
    ]
    assert [one.jafs for one in outcomes] == [1.0, 0.8, 0.0, 0.0]
    found = joint_figures(outcomes)
    assert found.jafs.value == pytest.approx(0.45)
    assert found.responses == 1
    # The paper counts the abstention on an answerable question as 0 (section 5.2.2).
    assert found.faithfulness.value == 0.4
    assert found.response_faithfulness.value == 0.8
    gated = [
        FlowOutcome(answerable=True, answered=i > 0, faithfulness=0.75 if i else None)
        for i in range(10)
    ]
    assert joint_figures(gated).faithfulness.value == pytest.approx(0.675)
    classes = found.answerability.classes
    f1 = [classes[name].f1.value for name in (UNANSWERABLE, ANSWERABLE)]
    assert f1 == pytest.approx([0.5, 0.5])
    # An answer whose faithfulness is unknown is left out, and counted.
    found = joint_figures([FlowOutcome(answerable=True, answered=True), outcomes[0]])
    assert found.jafs.value == 1.0
    assert found.jafs.n == 1
    assert found.unknown == 1
    assert found.responses == 1
    with pytest.raises(ValueError, match="not between"):
        FlowOutcome(answerable=True, answered=True, faithfulness=1.5)


# Four answers at 0.95 with three right, one at 0.25 that is wrong: 0.8 * 0.2 + 0.2 * 0.25 = 0.21.
CONFIDENCE, CORRECT = [0.95, 0.95, 0.95, 0.95, 0.25], [1, 1, 1, 0, 0]


def test_five_answers_by_hand():
    found = calibration_error(CONFIDENCE, CORRECT)
    assert found.value == pytest.approx(0.21)
    assert found.n == 5
    low, high = reliability(CONFIDENCE, CORRECT)
    assert low.count == 1
    assert low.confidence == 0.25
    assert low.accuracy == 0.0
    assert high.count == 4
    assert high.low == 0.95
    assert high.high == 0.95
    assert high.accuracy == 0.75
    assert math.isnan(calibration_error([], []).value)
    assert reliability([], []) == ()
    # Adaptive bins hold equal counts and keep ties together: (2 * |0.15 - 0.5| + 0.2 + 0.1) / 4.
    error = calibration_error([0.15, 0.15, 0.8, 0.9], [1, 0, 1, 1], adaptive=True)
    assert error.value == pytest.approx(0.25)
    assert adaptive_bins([0.4, 0.1, 0.3, 0.2], 2).tolist() == [1, 0, 1, 0]
    assert set(adaptive_bins([0.5] * 7, 3)) == {0}
    # A border belongs to the upper bin, and one to the last.
    assert equal_bins([0.0, 0.1, 0.0999, 1.0]).tolist() == [0, 1, 0, 9]
    for confidence, message in (
        ([1.2], "no probability"),
        ([math.nan], "nan"),
        ([0.1, 0.2], "2 confidences for 1"),
    ):
        for figure in (calibration_error, brier, reliability):
            with pytest.raises(ValueError, match=message):
                figure(confidence, [1])


def test_figures_agree_with_torchmetrics_and_scikit_learn():
    torch = pytest.importorskip("torch")
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    sklearn = pytest.importorskip("sklearn.metrics")
    curve = pytest.importorskip("sklearn.calibration").calibration_curve
    random = np.random.default_rng(1)
    confidence = random.random(1000)
    correct = (random.random(1000) < confidence).astype(int)
    said, right = confidence.tolist(), correct.tolist()
    theirs = torchmetrics.binary_calibration_error(
        torch.tensor(confidence), torch.tensor(correct), n_bins=10
    )
    assert calibration_error(said, right).value == pytest.approx(
        float(theirs), abs=1e-6
    )
    assert brier(said, right).value == pytest.approx(
        sklearn.brier_score_loss(correct, confidence)
    )
    for adaptive, strategy in ((False, "uniform"), (True, "quantile")):
        accuracy, mean = curve(correct, confidence, n_bins=10, strategy=strategy)
        shown = reliability(said, right, adaptive=adaptive)
        np.testing.assert_allclose([one.confidence for one in shown], mean, atol=0.002)
        # quantile borders move one
        np.testing.assert_allclose(
            [one.accuracy for one in shown], accuracy, atol=0.011
        )
    for count in (1, 2, 5, 30):
        truth, predicted = (
            [str(label) for label in random.choice(list("abc"), count)]
            for _ in range(2)
        )
        found = classification(truth, predicted, ("a", "b", "c"))
        expected = sklearn.precision_recall_fscore_support(
            truth, predicted, labels=list("abc"), zero_division=0
        )
        for at, one in enumerate(found.classes.values()):
            figures = (one.precision.value, one.recall.value, one.f1.value, one.support)
            assert figures == pytest.approx(tuple(column[at] for column in expected))
        weighted, macro = (
            sklearn.f1_score(
                truth,
                predicted,
                labels=sorted(set(truth)),
                average=average,
                zero_division=0,
            )
            for average in ("weighted", "macro")
        )
        f1 = (found.weighted_f1.value, found.macro_f1.value)
        assert f1 == pytest.approx((weighted, macro))
        gold, given = random.random((2, count, 6)) < 0.3
        pairs = pair_figures(
            *([set(np.flatnonzero(row)) for row in rows] for rows in (gold, given))
        )
        expected = sklearn.precision_recall_fscore_support(
            gold, given, average="micro", zero_division=0
        )[:3]
        found = [getattr(pairs, name).value for name in ("precision", "recall", "f1")]
        assert found == pytest.approx(expected)


def sure(rights, wrongs):
    """A model that is sure of Relevant, and right in some rows."""
    judgment = Judgment(ISREL, "row", (0.99, 0.01), 1.0)
    return [
        Observed(f"q{i}", judgment, int(i >= rights)) for i in range(rights + wrongs)
    ]


def test_the_temperature_makes_confidence_the_share_that_is_right():
    """Right in 80 of 100 rows: the log-odds of .99 become those of .8, so T is near log 99 / log 4."""
    scaling = fit(sure(80, 20), biased=False)
    assert scaling.temperature == pytest.approx(math.log(99) / math.log(4), rel=0.1)
    assert scaling(sure(1, 0)[0].judgment).probability("Relevant") == pytest.approx(
        0.8, abs=0.02
    )


def test_tokens_are_read_where_a_row_has_them():
    """The prefix is all that the row has before the token; the passage stands in it."""
    prompting = Prompting.from_tokenizer(tiny.byte_level_tokenizer())
    vocabulary, passage = prompting.vocabulary, Passage("p", "Text.", "Title")
    parts = [TargetToken("[Retrieval]"), TargetEvidence(passage)]
    parts += [TargetToken("[Irrelevant]"), TargetText("Yes.")]
    parts.append(TargetToken("[Utility:4]"))
    watched = {vocabulary.ids["[Relevant]"]: 0.3, vocabulary.ids["[Irrelevant]"]: 0.1}
    engine = ScriptedEngine(
        lambda request: ScriptedReply((vocabulary.eos_id,), {0: watched}),
        vocabulary.eos_id,
        limits=EngineLimits(max_model_len=500, vocab_size=10_000),
    )
    found = observe([TrainingRow("r", "set/kind", "Is it?", parts)], prompting, engine)
    right = {one.judgment.role: one.right for one in found}
    assert right == {"retrieve": 0, "isrel": 1, "isuse": 3}
    assert found[1].judgment.distribution == pytest.approx((0.75, 0.25))
    evidence = prompting.evidence(passage, 256).ids
    assert engine.requests[1].prompt_ids == (
        *prompting.prompt("Is it?"),
        vocabulary.ids["[Retrieval]"],
        *evidence,
    )


def test_figures_are_of_rows_that_were_not_fitted_and_are_written_and_stored(tmp_path):
    observed = sure(80, 20)
    found = calibrate(observed)
    figures = found[Role.RELEVANCE]
    before, after = figures.error
    assert before.value == pytest.approx(0.19, abs=1e-6)
    assert after.value < 0.06
    assert figures.loss[1].value < figures.loss[0].value
    write(observed, found, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["calibration.json", "calibration.md", "reliability-isrel.svg"]
    assert "| isrel | 100 | 3.1" in (tmp_path / "out/calibration.md").read_text()
    (tmp_path / "reflection.json").write_text('{"format": 1}')
    store(found, tmp_path)
    record = read_json(tmp_path / "reflection.json")
    assert record["format"] == 1
    assert read_scalings(record[STORED]) == {Role.RELEVANCE: figures.scaling}
    assert (tmp_path / "out/reliability-isrel.svg").read_bytes().startswith(b"<?xml")
    with refused("nothing to draw"):
        plot_reliability({"none": ()}, tmp_path / "other.png")
    with refused("5"):
        calibrate(observed[:4])


def test_a_folder_that_cannot_hold_the_result_is_refused_before_the_model_loads(
    tmp_path, refusal
):
    command = f"selfrag eval calibration {tmp_path}/rows --out {tmp_path}/out"
    error = refusal(f"{command} --model demo --store {tmp_path}")
    assert "tokenizer_config.json" in error
