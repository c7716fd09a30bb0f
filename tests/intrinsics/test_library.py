"""A model with its adapters as a library, dialects by name, and a new intrinsic as a small class."""

import json
import sys
from dataclasses import replace

import pytest
from answering import scoring

from retrieval.passage import Passage
from selfrag.errors import MissingExtraError, UserError
from selfrag.intrinsics import (
    Answerability,
    Capability,
    Library,
)
from selfrag.intrinsics.capability import Documents, Needs, Result
from selfrag.intrinsics.catalog import AdapterCard, check_cards, codec_of, find, fingerprint
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.contract import Message, State
from selfrag.intrinsics.dialects import registry
from selfrag.intrinsics.reflectors import adapters_of
from selfrag.intrinsics.sentences import last_query
from selfrag.reflection.labels import Label, LabelSet, Role

PASSAGES = ["Faust is a play by Goethe. It has two parts.", "Water boils."]


def test_adapters_go_by_the_name_of_the_intrinsic():
    executor = scoring(answerable=0.9, unanswerable=0.1)
    library = Library(executor, {"answerability": "ad"})
    assert library.get(Answerability)("Who?", PASSAGES)
    library["Query-Rewrite"]("Who?")
    assert [request.adapter for request in executor.requests] == ["ad", None]


def test_an_unknown_adapter_name_is_refused_before_a_model_is_loaded():
    with pytest.raises(UserError, match="unknown intrinsic 'answers'"):
        Library.from_pretrained("demo", adapters={"answers": "x"})
    with pytest.raises(UserError, match="unknown intrinsic 'answers'"):
        Library.at_endpoint("http://127.0.0.1:9", "m", adapters={"answers": "x"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intrinsic": "uncertainty"}, "trained for intrinsic 'uncertainty', not 'answerability'"),
        ({"dialect": "mellea"}, "trained for dialect 'mellea', not 'chat'"),
        ({"prompt": "0"}, "answerability was trained with other prompts"),
        ({"prompt": fingerprint(replace(Answerability.default_codec(), prefill="Well: "))}, "with other prompts"),
    ],
)
def test_an_adapter_that_was_trained_for_something_else_is_refused(change, message, tmp_path):
    card = AdapterCard("answerability", "chat", fingerprint(codec_of(Answerability, "chat")))
    given = {"answerability": str(tmp_path)}
    for changed, refused in ((card, False), (replace(card, **change), True)):
        (tmp_path / AdapterCard.FILE).write_text(json.dumps(changed.as_dict()))
        for check in (lambda: check_cards(given, "chat"), lambda: adapters_of(given, "other")):
            if refused:
                with pytest.raises(UserError, match=message):
                    check()
            else:
                check()
    with pytest.raises(UserError, match=r"intrinsic\.json cannot be used"):
        AdapterCard.read(tmp_path / "none")


def test_without_nltk_only_what_splits_sentences_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    monkeypatch.setitem(sys.modules, "nltk.tokenize.punkt", None)
    registry._tokenizer.cache_clear()
    for name in ("answerability", "query_rewrite"):
        assert codec_of(find(name), "granite-3.2").encode(State((Message("user", "Who wrote Faust?"),))).prompt
    turns = (Message("user", "Who wrote Faust?"), Message("assistant", "Goethe did. In 1808."))
    with pytest.raises(MissingExtraError, match="granite"):
        codec_of(find("hallucination_detection"), "granite-3.2").encode(State(turns, (Passage("1", "A play."),)))
    registry._tokenizer.cache_clear()


POLITENESS = LabelSet(Role.COMPLIANCE, (Label("polite", 1.0, "polite"), Label("rude", 0.0, "rude")))


class Politeness(Capability[Result]):
    """All that a new intrinsic needs."""

    name = "politeness"
    role = Role.COMPLIANCE
    needs = Needs(("user",), Documents.UNUSED)
    summary = "is the question polite?"

    @classmethod
    def default_codec(cls):
        return LabelCodec(cls.name, POLITENESS, lambda state: "Polite or rude?", last_query, documents=False)

    def result(self, reflection):
        assert reflection.judgments[0].probability("polite") == pytest.approx(0.8)
        return Result(reflection.diagnostics)


def test_a_new_intrinsic_is_one_small_class():
    executor = scoring(polite=0.8, rude=0.2)
    assert Library(executor).get(Politeness)("Could you say who wrote Faust?").diagnostics == ()
    assert executor.requests[0].slots[0].surfaces == ("polite", "rude")
