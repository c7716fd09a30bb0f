"""Sentences as sites: offsets into the original, abbreviations, neighbours joined."""

import copy
import pickle

from hypothesis import given
from hypothesis import strategies as st

from retrieval.passage import Passage
from selfrag.intrinsics.contract import Message, State
from selfrag.intrinsics.sentences import merged, response_sites, source_sites


def pieces(text):
    state = State((Message("assistant", text),))
    return [site.text for site in response_sites(state, 0)]


def test_abbreviations_do_not_end_a_sentence():
    text = "Dr. Smith et al. moved to the U.S. in 1999."
    assert pieces(text) == [text]
    assert pieces("See fig. 3 and vol. 2 of it. Then go.") == ["See fig. 3 and vol. 2 of it.", "Then go."]


def test_an_abbreviation_at_the_end_ends_a_sentence():
    assert pieces("It was found by Smith et al. They moved.") == ["It was found by Smith et al.", "They moved."]


@given(st.text(max_size=200))
def test_no_character_but_white_space_is_lost(text):
    state = State((Message("assistant", text),), (Passage("a", text),))
    for sites in (response_sites(state, 0), source_sites(state)):
        assert all(state.holds(site) for site in sites)
        left, at = "", 0
        for site in sites:
            left += text[at : site.begin]
            at = site.end
        assert not (left + text[at:]).strip()


def test_neighbours_become_one_span_and_others_do_not():
    state = State((), (Passage("a", "One. Two.  Three. Four."), Passage("b", "Five.")))
    one, two, three, four, five = source_sites(state)
    assert [site.text for site in merged(state, [two, one, four, five])] == ["One. Two.", "Four.", "Five."]
    assert [site.text for site in merged(state, [three, two])] == ["Two.  Three."]
    assert merged(state, []) == ()


def test_states_travel_between_processes():
    state = State((Message("user", "Q?"),), (Passage("a", "One."),), {"requirement": "x"}, {"temperature": 0})
    assert pickle.loads(pickle.dumps(state)) == state == copy.deepcopy(state)
