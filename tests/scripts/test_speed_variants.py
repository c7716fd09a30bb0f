"""Engines with a choice taken away: the decoder must not notice, and the loss must be real."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Finish, Generate, Generated
from selfrag.engines.scripted import Reply, ScriptedEngine
from selfrag.prompting import Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from speed.rivals import MISSING, CutAfterwards, Recording, cut, watched
from speed.timing import answer_all, least_tokens
from speed.workload import Item

EOS = 2
VOCABULARY = Vocabulary({token: 50_000 + i for i, token in enumerate(TOKENS)}, EOS)
ID = VOCABULARY.ids
POLICY = Decoding(mode="always", max_segments=2, segment_tokens=20)
ITEMS = [Item("q?", (Passage("a", "A text"), Passage("b", "B text"))), Item("r?", (Passage("a", "A text"),))]


class Characters:
    bos_ids = (1,)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))


PROMPTING = Prompting(Characters(), VOCABULARY)


def write(request: Generate) -> Reply:
    """`Hi.` and retrieval, with a hallucinated passage behind; after the second passage `Ho.` and the end."""
    first = request.prompt_ids.count(VOCABULARY.paragraph_open) == 1
    tail = (ID["[Retrieval]"], ord("x"), ord("y"), EOS) if first else (ID["[Utility:5]"], EOS)
    text = "Hi." if first else "Ho."
    return Reply((ID["[Relevant]"], *map(ord, text), ID["[Fully supported]"], *tail))


def engine() -> ScriptedEngine:
    return ScriptedEngine(write, EOS)


def test_cutting_afterwards_gives_the_same_answers_for_more_tokens():
    ours = answer_all(ITEMS, PROMPTING, POLICY, engine())
    late = CutAfterwards(engine())
    cut_late = answer_all(ITEMS, PROMPTING, POLICY, late)
    assert cut_late.texts == ours.texts == ("Hi. Ho.", "Hi. Ho.")
    assert cut_late.work == ours.work
    assert late.generated_tokens > ours.work.generated_tokens


def test_recording_keeps_every_request_and_changes_nothing():
    recording = Recording(engine())
    run = answer_all(ITEMS, PROMPTING, POLICY, recording)
    assert run.texts == answer_all(ITEMS, PROMPTING, POLICY, engine()).texts
    assert len(recording.requests) == run.work.requests
    assert sum(len(request.prompt_ids) for request in recording.requests) == run.work.prompt_tokens


@pytest.mark.parametrize(("stops", "length", "finish"), [((9,), 2, Finish.STOP), ((), 4, Finish.BUDGET)])
def test_cut_ends_on_the_first_stop_id_and_keeps_it(stops, length, finish):
    result = Generated((7, 9, 8, 9), (-0.1, -0.2, -0.3, -0.4), np.zeros((4, 1), np.float32), Finish.BUDGET)
    short = cut(result, stops)
    assert len(short.token_ids) == len(short.token_logprobs) == len(short.watched) == length
    assert short.finish is finish


def test_an_id_that_a_dictionary_lacks_counts_as_the_official_code_counts_it():
    @dataclass
    class Entry:
        logprob: float

    assert watched({5: Entry(-0.5)}, (5, 6)) == [-0.5, MISSING]


def test_the_least_tokens_are_those_of_the_trie():
    """1 2 3 is computed once, then 4, 5 and 6 behind it, and 9."""
    assert least_tokens([(1, 2, 3, 4), (9,), (1, 2, 3, 5, 6), (1, 2, 3)]) == 7
