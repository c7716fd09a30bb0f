"""Temperatures and biases of reflection tokens: the arithmetic, and what a model may bring."""

import math

import pytest
import tiny

from selfrag.errors import UserError, VocabularyError
from selfrag.reflection.calibration import STORED, Scaling, as_record, read_scalings
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, Role
from selfrag.reflection.vocabulary import Vocabulary


def test_a_temperature_of_two_takes_the_root():
    """.8 and .2: roots .894 and .447, so 2/3 and 1/3."""
    judged = Scaling(2.0)(Judgment(ISREL, "here", (0.8, 0.2), 0.7))
    assert judged.distribution == pytest.approx((2 / 3, 1 / 3))
    assert (judged.coverage, judged.site) == (0.7, "here")


def test_a_bias_multiplies_the_odds_and_what_has_no_probability_gets_none():
    judged = Scaling(1.0, (0.0, math.log(4), 5.0))(Judgment(ISSUP, "here", (0.8, 0.2, 0.0), 1.0))
    assert judged.distribution == pytest.approx((0.5, 0.5, 0.0))


@pytest.mark.parametrize(
    "record",
    [
        [],
        {"isrel": 2.0},
        {"isrel": {"temperature": 0, "biases": {}}},
        {"isrel": {"temperature": True, "biases": {}}},
        {"isrel": {"temperature": 1.0, "biases": {"Relevant": 1.0}}},
        {"isrel": {"temperature": 1.0, "biases": {"Relevant": 1.0, "Irrelevant": "2"}}},
        {"certainty": {"temperature": 1.0, "biases": {}}},
    ],
)
def test_a_bad_record_is_one_line(record):
    with pytest.raises(UserError) as caught:
        read_scalings(record)
    assert "\n" not in str(caught.value)
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.init_kwargs[STORED] = record or [1]
    with pytest.raises(VocabularyError):
        Vocabulary.from_tokenizer(tokenizer)


def test_a_saved_tokenizer_brings_its_scalings(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = tiny.byte_level_tokenizer()
    scalings = {Role.RELEVANCE: Scaling(1.25, (0.0, -0.5)), Role.SUPPORT: Scaling(0.8)}
    tokenizer.init_kwargs[STORED] = as_record(scalings)
    tokenizer.save_pretrained(tmp_path)
    vocabulary = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(tmp_path))
    assert vocabulary.scalings == scalings
    assert not vocabulary.uncalibrated().scalings
