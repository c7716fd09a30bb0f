"""A server of a model that searches by tags: its citations, its settings, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from served import Serve
from tagged import model, two_searches

from selfrag.serving.service import ServedSearchTags


def served(**options: Any) -> tuple[Any, list[str]]:
    scripted, searched, _ = model(two_searches, **options)
    return ServedSearchTags.of(scripted), searched


def test_it_searches_and_cites(serve: Serve) -> None:
    own, searched = served()
    running = serve(own)
    reply = running.chat("Who?").json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "Text of d2. [1]"
    assert [one["url_citation"]["title"] for one in message["annotations"]] == ["Title of d2"]
    assert searched == ["first", "second one"]
    kept = running.client.get(f"/v1/answers/{reply['selfrag']['id']}").json()
    assert [decision["query"] for decision in kept["trace"]["decisions"]] == [None, "first", "second one"]
    assert running.client.post("/retrieve", json={"queries": ["a"]}).json()["result"][0][0]["id"] == "d1"


def test_a_stream_and_a_conversation_of_which_the_last_turn_is_asked(serve: Serve) -> None:
    own, searched = served()
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Who?"},
    ]
    body = {"model": "selfrag", "messages": turns, "stream": True}
    with serve(own).client.stream("POST", "/v1/chat/completions", json=body) as reply:
        text = "".join(reply.iter_text())
    assert "Text of d2. [1]" in text
    assert text.endswith("data: [DONE]\n\n")
    assert len(searched) == 2


def test_settings_of_its_budget(serve: Serve) -> None:
    own, searched = served()
    running = serve(own)
    given = {"passages": 1, "passage_tokens": 50, "answer_tokens": 500}
    assert running.chat("Who?", selfrag=given).json()["choices"][0]["message"]["content"] == "Text of d2."
    short = running.chat("Who?", max_tokens=3)
    assert short.status_code == 400
    assert "no answer within its budget" in short.json()["error"]["message"]
    evidence = [{"id": "d2", "text": "Text of d2."}]
    searched.clear()
    assert running.chat("Who?", selfrag={"evidence": evidence}).json()["citations"] == ["selfrag://d2"]
    assert searched == []


@pytest.mark.parametrize("given", [{"threshold": 0.5}, {"flow": "qr"}, {"weights": {"issup": 2.0}}, {"beam": 4}])
def test_settings_of_reflection_tokens_are_refused(serve: Serve, given: dict[str, Any]) -> None:
    own, _ = served()
    reply = serve(own).chat("Who?", selfrag=given)
    assert reply.status_code == 400
    assert f"selfrag.{next(iter(given))}: this model searches by tags" in reply.json()["error"]["message"]
