"""Chat models that reflect by prompts, against the brute-force reference, on random trees.

`SELFRAG_REFERENCE=10000` tries so many examples.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_model import policies, random_search, seeds, weights
from reference import Said, Unanswerable
from reference_chat import ChatReference, Talker, TalkingExecutor, first_sentence
from test_reference import agree, failing, half, many, note
from written import Characters, Searches

from selfrag.common.errors import DecodingError
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.decoding.sentence_ends import sentence_end
from selfrag.decoding.trace import Trace
from selfrag.judges.chat_model import ChatModel
from selfrag.judges.reflection_prompts import reflection_wording
from selfrag.runtime import QuestionFailed, SegmentFinal, drive

presets = st.sampled_from([Decoding.light(), Decoding.light(mode="always"), Decoding()])
chat_policies = presets | policies.filter(
    lambda policy: policy.segment_end != "retrieval"
)


class ChatWorld:
    """One question to a random chat model, decoded by both."""

    def __init__(self, seed, failures=0.0):
        self.talker, self.find = Talker(seed, failures), random_search(seed)

    def decoded(self, policy):
        """Return the answer; what was streamed on the way is the beginning of it."""
        model = ChatModel(
            TalkingExecutor(self.talker),
            Characters(),
            reflection_wording(),
            knows_tokens=False,
        )
        *committed, end = drive([decode("Q", model, policy)], None, Searches(self.find))
        if isinstance(end, QuestionFailed):
            raise end.error
        assert (
            tuple(
                event.segment for event in committed if isinstance(event, SegmentFinal)
            )
            == end.answer.segments
        )
        assert Trace.from_json(end.answer.trace.to_json()) == end.answer.trace
        return end.answer

    def said(self, policy):
        """Return what the reference says, or why it says nothing."""
        reference = ChatReference(
            self.talker, lambda query: self.find(query)[: policy.searched], policy
        )
        try:
            return reference.decode("Q")
        except Unanswerable as reason:
            # rounding decides whether there is a candidate that could be generated
            assume(not reference.close)
            return str(reason)

    def compare(self, policy):
        """Return the answer that both give; None if both refuse for the same reason."""
        said = self.said(policy)
        if isinstance(said, str):
            with pytest.raises(DecodingError) as raised:
                self.decoded(policy)
            assert str(raised.value) == said
            return None
        answer = self.decoded(policy)
        agree(answer, said)
        return answer


@many
@given(seeds, chat_policies, failing)
def test_a_chat_model_is_decoded_as_by_the_reference(seed, policy, failures):
    ChatWorld(seed, failures).compare(policy)


@half
@given(seeds, chat_policies, weights)
def test_a_rescoring_that_is_exact_is_what_the_reference_decodes(seed, policy, other):
    world = ChatWorld(seed)
    answer = world.compare(policy)
    if answer is None:
        return
    rescored = answer.rescore(other)
    if rescored.exact:
        note("exact")
        said = world.said(replace(policy, weights=other))
        assert isinstance(said, Said)
        agree(rescored, said)
    assert answer.rescore(policy.weights) == answer


@many
@given(
    st.lists(
        st.sampled_from((*".!?\n 3", "Dr", "Be", " Two", " one", ".5")), max_size=12
    )
)
def test_sentences_end_where_the_reference_sees_their_end(parts):
    text = "".join(parts)
    assert sentence_end(text) == first_sentence(text)


def test_a_segment_that_stands_again_in_what_follows_has_the_likelihood_of_its_place():
    policy = Decoding(mode="always", without_evidence="write", max_segments=1)
    assert ChatWorld(98523).compare(policy).text == "?"


def test_after_a_blank_segment_retrieve_is_not_asked_for():
    policy = Decoding(segment_tokens=1, max_segments=4, passages=2, pool="deepest")
    assert ChatWorld(3).compare(policy) is not None
