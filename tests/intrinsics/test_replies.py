"""Replies of every dialect: typed findings for what is right, diagnostics for what is not, never an exception."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_help import ARGUMENTS, plain, published, state, token

from selfrag.intrinsics.catalog import catalog
from selfrag.intrinsics.contract import Code, Completion, TokenLogprob
from selfrag.intrinsics.dialects.output import likelihood
from selfrag.intrinsics.dialects.registry import DIALECTS, intrinsics_of

GIVEN = state("q", "One is. Two is.", documents=("Alpha is. Beta is.",), **ARGUMENTS)
TYPED = {kind.name: kind for kind in catalog()}
EVERY = [("chat", name) for name in TYPED]
EVERY += [(dialect, intrinsic) for dialect in DIALECTS for intrinsic in intrinsics_of(dialect)]
SCORED = st.floats() | st.just(-math.inf) | st.floats(-30, 0)
SCORES = st.lists(st.none() | st.lists(SCORED, max_size=12).map(tuple), max_size=4).map(tuple)
GARBAGE = (
    st.text(max_size=60)
    | st.sampled_from(
        ['{"<r0>"', '[{"r": 0, "c": [0, "x", null, -1]}]', '[{"r": "0", "f": {}}]', "[[[", '{"a": NaN}', "0"]
    )
    | st.recursive(
        st.none() | st.booleans() | st.integers(-3, 12) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["r", "c", "f", "e", "i", "<r0>", "score"]), inner, max_size=3)
        ),
    ).map(json.dumps)
)


@pytest.mark.parametrize(("dialect", "intrinsic"), EVERY)
@settings(max_examples=10)  # of each of a hundred codecs
@given(text=GARBAGE, data=st.data())
def test_nothing_that_a_model_writes_raises(dialect: str, intrinsic: str, text: str, data: st.DataObject):
    made = TYPED[intrinsic].default_codec() if dialect == "chat" else published(dialect, intrinsic)
    request = made.encode(GIVEN)
    tokens = None
    if data.draw(st.booleans()):
        tokens = tuple(TokenLogprob(c, -0.1, ((c, -0.1), ("x", -3.0))) for c in text)
    finish, scores = (
        data.draw(st.sampled_from([None, "stop", "length"])),
        data.draw(SCORES) if dialect == "chat" else (),
    )
    found = made.decode(request, Completion(text, finish, tokens, scores=scores))
    assert found.raw == text or dialect == "chat"
    for finding in found.findings:
        assert GIVEN.holds(finding.site)
        assert all(GIVEN.holds(citation.site) for citation in finding.citations)
        if finding.judgment is not None:
            assert math.isclose(sum(finding.judgment.distribution), 1.0, rel_tol=1e-6)
    if len(request.sites) > 1:
        assert [finding.site for finding in found.findings] == list(request.sites)
    if intrinsic in TYPED:
        kind = TYPED[intrinsic]
        json.dumps(kind(executor=None, codec=made).result(found).as_dict())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dialect", "intrinsic", "raw", "label"),
    [
        ("granite-3.2", "answerability", "unanswerable", "unanswerable"),
        ("granite-3.2", "answerability", " answerable\n", "answerable"),
        ("granite-3.2", "answerability", "unanswerable\n\nThe documents", "unanswerable"),
        ("granite-3.2", "answerability", "answerableanswerable", "answerable"),
        ("granite-3.2", "answerability", "Unanswerable", "unanswerable"),
        ("granite-3.2", "answerability", "I think answerable", None),
        ("granite-3.2", "answerability", "answer", None),
        ("granite-3.3", "uncertainty", "7\n8", "75%"),
        ("granite-3.3", "uncertainty", "70%", None),
        ("granite-3.3", "uncertainty", "12", None),
    ],
)
def test_a_word_may_be_followed_by_more(dialect: str, intrinsic: str, raw: str, label: str | None):
    made = published(dialect, intrinsic)
    found = made.decode(made.encode(state("q", documents=("d.",))), Completion(raw))
    assert [judgment.label for judgment in found.judgments] == ([] if label is None else [label])
    assert bool(found.diagnostics) == (raw.strip() != label)


def test_the_first_of_two_records_counts():
    made = published("mellea", "hallucination_detection")
    raw = '[{"r":0,"f":"faithful","e":""},{"r":0,"f":"unfaithful","e":""},{"r":1,"f":"Partial","e":""}]'
    found = made.decode(made.encode(GIVEN), Completion(raw))
    assert [judgment.label for judgment in found.judgments] == ["faithful", "partial"]
    assert {note.code for note in found.diagnostics} == {Code.DUPLICATE, Code.RECOVERED}


ANSWER = ('"answerable"', '"unanswerable"')
SCORE = (*plain('{"'), *plain("score"), *plain('":'), *plain(' "'))
REASONED = plain('<|analysis|>maybe "answerable"<|final|>')
SAMPLED = TokenLogprob('"un', math.log(0.1), (('"answer', math.log(0.3)),))
UN = token(('"un', 0.75), ('"answer', 0.25))
PLACES = {
    "in the middle of JSON": (
        (*SCORE, token(("no", 0.6), ("yes", 0.4)), *plain('"}')), '{"score": "no"}', (10, 14), ('"yes"', '"no"'),
        (0.4, 0.6),
    ),
    "after reasoning": ((*REASONED, UN, *plain('answerable"')), '"unanswerable"', (0, 14), ANSWER, (0.25, 0.75)),
    "a colon in the same token": (
        (*plain('{"a'), token(('": true', 0.7), ('":false', 0.3)), *plain("}")), '{"a": true}', (6, 10),
        ("true", "false"), (0.7, 0.3),
    ),
    "a number that begins another": (
        (token(("1", 0.8), ("2", 0.2)), token(("0", 0.25), ("}", 0.75))), "10", (0, 2), ("1", "10", "2"),
        (0.6, 0.2, 0.2),
    ),
    "a sampled token outside of the alternatives": (
        (SAMPLED, *plain('answerable"')), '"unanswerable"', (0, 14), ANSWER, (0.3, 0.1),
    ),
    "tokens that do not spell the text": (plain("other"), '"answerable"', (0, 12), ANSWER, None),
    "no tokens": ((), '"answerable"', (0, 12), ANSWER, None),
}  # fmt: skip


@pytest.mark.parametrize(("tokens", "text", "span", "labels", "masses"), PLACES.values(), ids=PLACES)
def test_the_probability_of_each_label_where_one_was_written(tokens, text, span, labels, masses):
    found = likelihood(tokens, text, span, labels)
    assert (found is None) == (masses is None)
    if found is not None:
        assert [share * found.coverage for share in found.distribution] == pytest.approx(masses)


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
