"""Label probabilities off generated tokens: equal to enumeration where nothing is lost, never above it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_help import plain, token

from selfrag.intrinsics.contract import TokenLogprob
from selfrag.intrinsics.dialects.output import likelihood

ANSWER = ('"answerable"', '"unanswerable"')


def test_a_label_in_the_middle_of_json():
    tokens = (*plain('{"'), *plain("score"), *plain('":'), *plain(' "'), token(("no", 0.6), ("yes", 0.4)), *plain('"}'))
    found = likelihood(tokens, '{"score": "no"}', (10, 14), ('"yes"', '"no"'))
    assert found is not None
    assert found.distribution == pytest.approx((0.4, 0.6))
    assert found.coverage == pytest.approx(1.0)


def test_reasoning_before_the_reply_does_no_harm():
    tokens = (
        *plain('<|analysis|>maybe "answerable"<|final|>'),
        token(('"un', 0.75), ('"answer', 0.25)),
        *plain('answerable"'),
    )
    found = likelihood(tokens, '"unanswerable"', (0, 14), ANSWER)
    assert found is not None
    assert found.distribution == pytest.approx((0.25, 0.75))


def test_a_colon_in_the_same_token():
    tokens = (*plain('{"a'), token(('": true', 0.7), ('":false', 0.3)), *plain("}"))
    found = likelihood(tokens, '{"a": true}', (6, 10), ("true", "false"))
    assert found is not None
    assert found.distribution == pytest.approx((0.7, 0.3))


def test_a_number_that_begins_another():
    tokens = (token(("1", 0.8), ("2", 0.2)), token(("0", 0.25), ("}", 0.75)))
    found = likelihood(tokens, "10", (0, 2), ("1", "10", "2"))
    assert found is not None
    assert found.distribution == pytest.approx((0.6, 0.2, 0.2))


def test_tokens_that_do_not_spell_the_text():
    assert likelihood(plain("other"), '"answerable"', (0, 12), ANSWER) is None
    assert likelihood((), '"answerable"', (0, 12), ANSWER) is None


def test_a_sampled_token_outside_of_the_alternatives_counts():
    sampled = TokenLogprob('"un', math.log(0.1), (('"answer', math.log(0.3)),))
    found = likelihood((sampled, *plain('answerable"')), '"unanswerable"', (0, 14), ANSWER)
    assert found is not None
    assert found.distribution == pytest.approx((0.75, 0.25))
    assert found.coverage == pytest.approx(0.4)


LABELS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=2, max_size=4, unique=True)


@given(LABELS, st.data())
def test_against_enumeration_of_a_scripted_model(names: list[str], data: st.DataObject):
    """A model that writes labels by pieces of one to three characters; each piece has a random weight."""
    surfaces = [f'"{name}"' for name in names]
    weights: dict[tuple[str, str], int] = {}

    def pieces(prefix: str) -> dict[str, float]:
        possible = sorted(
            {s[len(prefix) : len(prefix) + n] for s in surfaces if s.startswith(prefix) for n in (1, 2, 3)}
        )
        found = {p: weights.setdefault((prefix, p), data.draw(st.integers(1, 9))) for p in possible if p}
        total = sum(found.values())
        return {piece: weight / total for piece, weight in found.items()}

    def enumerate_all(prefix: str, probability: float) -> dict[str, float]:
        if prefix in surfaces:
            return {prefix: probability}
        total: dict[str, float] = {}
        for piece, p in pieces(prefix).items():
            for label, mass in enumerate_all(prefix + piece, probability * p).items():
                total[label] = total.get(label, 0.0) + mass
        return total

    truth = enumerate_all("", 1.0)
    text, tokens = "", []
    while text not in surfaces:
        options = pieces(text)
        chosen = data.draw(st.sampled_from(sorted(options)))
        top = tuple((piece, math.log(p)) for piece, p in options.items())
        tokens.append(TokenLogprob(chosen, math.log(options[chosen]), top))
        text += chosen
    found = likelihood(tokens, text, (0, len(text)), surfaces)
    if found is None:
        return  # the whole way was shared by several labels, and others left it unseen
    masses = [p * found.coverage for p in found.distribution]
    for surface, mass in zip(surfaces, masses, strict=True):
        assert mass <= truth[surface] + 1e-9
    if found.coverage > 1 - 1e-9:
        assert found.distribution == pytest.approx([truth[s] for s in surfaces])
