"""What a codec teaches, it reads back: the same codec makes training examples and understands replies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_help import exact, published, state

from selfrag.errors import UserError
from selfrag.intrinsics.contract import Completion, Gold, Reflection, Request, Target
from selfrag.intrinsics.dialects.registry import DIALECTS, DialectCodec, intrinsics_of

RESPONSE = "One is so. Two is so. Three is so."
DOCUMENTS = ("Alpha is. Beta is.", "", "Gamma is. Delta is.")
GIVEN = state("q", RESPONSE, documents=DOCUMENTS, requirement="short")
LABELLED = [
    (dialect, intrinsic)
    for dialect in DIALECTS
    for intrinsic in ("answerability", "uncertainty", "requirement_check")
    if intrinsic in intrinsics_of(dialect)
]


def learned(codec: DialectCodec, request: Request, targets: tuple[Target, ...]) -> Reflection:
    """What is read of a model that writes the targets."""
    if not request.slots:
        return codec.decode(request, Completion(targets[0].text, "stop"))
    (slot,), (target,) = request.slots, targets
    assert target.prefill == slot.prefill
    scores = tuple(math.log(0.9 if surface == target.text else 0.01) for surface in slot.surfaces)
    return codec.decode(request, Completion(scores=(scores,)))


@pytest.mark.parametrize(("dialect", "intrinsic"), LABELLED)
@pytest.mark.parametrize("make", [exact, published])
def test_labels(dialect: str, intrinsic: str, make):
    codec = make(dialect, intrinsic)
    request = codec.encode(GIVEN)
    for name in codec.binding.labels.names:
        found = learned(codec, request, codec.teach(request, Gold(labels=(name,))))
        assert found.judgments[0].label == name
    assert codec.teach(request, Gold(labels=(None,))) == ()
    with pytest.raises(UserError, match="unknown"):
        codec.teach(request, Gold(labels=("maybe",)))


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_sentences(dialect: str, data: st.DataObject):
    codec = exact(dialect, "hallucination_detection")
    request = codec.encode(GIVEN)
    names = st.sampled_from(codec.binding.labels.names)
    labels = tuple(data.draw(st.lists(names, min_size=3, max_size=3)))
    found = learned(codec, request, codec.teach(request, Gold(labels=labels)))
    assert tuple(judgment.label for judgment in found.judgments) == labels
    assert codec.teach(request, Gold(labels=(labels[0], None, labels[2]))) == ()


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_citations(dialect: str, data: st.DataObject):
    codec = exact(dialect, "citation_generation")
    request = codec.encode(GIVEN)
    assert len(request.sources) == 4
    cited = st.lists(st.integers(0, 3), max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
    gold = tuple(data.draw(st.lists(cited, min_size=3, max_size=3)))
    found = learned(codec, request, codec.teach(request, Gold(sources=gold)))
    for finding, wanted in zip(found.findings, gold, strict=True):
        assert finding.judgment is not None
        assert finding.judgment.label == ("cited" if wanted else "uncited")
        covered = {
            number
            for number, source in enumerate(request.sources)
            for c in finding.citations
            if c.site.passage == source.passage and c.site.begin <= source.begin and source.end <= c.site.end
        }
        assert covered == set(wanted)
        assert all(GIVEN.holds(citation.site) for citation in finding.citations)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(text=st.text(min_size=1, max_size=30).filter(str.strip))
def test_rewrites(dialect: str, text: str):
    codec = exact(dialect, "query_rewrite")
    request = codec.encode(GIVEN)
    found = learned(codec, request, codec.teach(request, Gold(text=text)))
    assert found.text == text.strip().encode("utf-8", "replace").decode() or "\ufffd" in str(found.text)


def test_what_cannot_be_taught_is_said():
    codec = exact("granite-common", "answer_relevance_classifier")
    with pytest.raises(UserError, match="explains itself first"):
        codec.teach(codec.encode(GIVEN), Gold(labels=("relevant",)))
    made = exact("mellea", "hallucination_detection")
    with pytest.raises(UserError, match="2 gold labels for 3 sentences"):
        made.teach(made.encode(GIVEN), Gold(labels=("faithful", "NA")))
    made = exact("mellea", "citation_generation")
    with pytest.raises(UserError, match="outside of 4 sources"):
        made.teach(made.encode(GIVEN), Gold(sources=((4,), (), ())))
    made = exact("mellea", "query_rewrite")
    with pytest.raises(UserError, match="no text"):
        made.teach(made.encode(GIVEN), Gold(text=" "))
