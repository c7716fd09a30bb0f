"""Grades of a scripted chat model: figures worked out by hand, and what a missing grade costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from selfrag.evaluation.metrics.citations import CitedSentence
from selfrag.evaluation.metrics.grading import Grader
from selfrag.intrinsics.contract import Completion, Failed, Request
from selfrag.intrinsics.state import Message, State

WANTED = {"Does the last message": "abstention", "How far": "support", "any key point": "relevance",
          "The sentence is one": "need", "Rate the": "quality"}  # fmt: skip


class Says:
    """Gives the label of a kind of question and a piece of what is judged; fails where there is none."""

    def __init__(self, labels: Mapping[tuple[str, str], str]) -> None:
        self.labels = labels
        self.seen: list[str] = []

    def run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Request) -> Completion | Failed:
        (turn,) = request.prompt.messages
        self.seen.append(turn.content)
        kind = next(name for words, name in WANTED.items() if words in turn.content)
        found = [label for (of, piece), label in self.labels.items() if of == kind and piece in turn.content]
        if not found:
            return Failed("no answer")
        (slot,) = request.slots
        scores = tuple(math.log(0.9 if one == found[0] else 0.01) for one in slot.surfaces)
        return Completion("", "stop", scores=(scores,))


def test_three_grades_of_support_as_longbench_cite_counts_them():
    says = Says(
        {
            ("support", "Goethe wrote Faust."): "fully",
            ("support", "He wrote it in Rome."): "partly",
            ("support", "It is prose."): "none",
            ("need", "Sentence: So much for that."): "no",
            ("need", "Sentence: It sold well."): "yes",
            ("relevance", "By Goethe."): "relevant",
            ("relevance", "A river."): "irrelevant",
        }
    )
    response = [
        CitedSentence("Goethe wrote Faust.", ("By Goethe.", "A river.")),
        CitedSentence("He wrote it in Rome.", ("By Goethe.",)),
        CitedSentence("It is prose.", ("A river.",)),
        CitedSentence("So much for that."),
        CitedSentence("It sold well."),
    ]
    (found, nothing, silent) = Grader(says, "m").cites(["Who?"] * 3, [response, [], [CitedSentence("It is blue.")]])
    # (1 + 0.5 + 0 + 1 + 0) / 5 and 2 of 4 citations; without a grade there is no figure.
    assert (found.recall, found.precision) == (0.5, 0.5)
    assert (nothing.recall, nothing.precision, nothing.f1) == (0.0, 0.0, 0.0)
    assert silent is None
    assert any("By Goethe." in one and "A river." in one for one in says.seen)  # what a sentence cites is one support


def test_a_model_says_who_does_not_know():
    said = ["Nobody can tell from this.", "Perhaps Goethe, who knows.", "Goethe.", "?"]
    kinds = dict(zip(said, ("unknown", "partly", "answer"), strict=False))
    grader = Grader(Says({("abstention", one): label for one, label in kinds.items()}), "m")
    states = [State((Message("user", "Who wrote Faust?"), Message("assistant", one))) for one in said]
    assert grader.abstained(states) == [True, False, False, None]


def test_quality_is_rated_against_a_reference():
    grader = Grader(Says({("quality", "Reference: In 1808."): "10", ("quality", "Reference: Goethe"): "04"}), "m")
    state = State((Message("user", "When?"), Message("assistant", "1808.")))
    assert grader.quality([state] * 3, ["In 1808.", "Goethe", "Nobody"]) == [1.0, pytest.approx(1 / 3), None]
