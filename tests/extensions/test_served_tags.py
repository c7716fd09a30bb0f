"""A server with a model that searches by tags."""

import pytest
from tagged import model, two_searches

from selfrag.extensions.search_tags.formats import served


@pytest.fixture
def tagged(serve):
    """Its server, and what it has searched for."""
    scripted, searched, _ = model(two_searches)
    return serve(served(scripted)), searched


def test_a_model_that_searches_by_tags_searches_and_cites(tagged):
    running, searched = tagged
    reply = running.chat("Who?").json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "Text of d2. [1]"
    [annotation] = message["annotations"]
    assert annotation["url_citation"]["title"] == "Title of d2"
    assert searched == ["first", "second one"]
    kept = running.client.get(f"/v1/answers/{reply['selfrag']['id']}").json()
    queries = [decision["query"] for decision in kept["trace"]["decisions"]]
    assert queries == [None, "first", "second one"]
    result = running.client.post("/retrieve", json={"queries": ["a"]}).json()["result"]
    assert result[0][0]["id"] == "d1"
    # Of a conversation the last turn is asked.
    turns = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "Who?"},
    ]
    text = running.chat(messages=turns, stream=True).text
    assert "Text of d2. [1]" in text
    assert text.endswith("data: [DONE]\n\n")
    assert searched[3:] == ["first", "second one"]


def test_settings_of_its_budget(tagged):
    running, searched = tagged

    def ask(**settings):
        return running.chat("Who?", selfrag=settings).json()

    answer = ask(passages=1, passage_tokens=50, answer_tokens=500)
    assert answer["choices"][0]["message"]["content"] == "Text of d2."
    searched.clear()
    evidence = [{"id": "d2", "text": "Text of d2."}]
    assert ask(evidence=evidence)["citations"] == ["selfrag://d2"]
    assert searched == []
    for setting in (
        {"threshold": 0.5},
        {"flow": "qr"},
        {"weights": {"issup": 2.0}},
        {"beam": 4},
    ):
        reply = running.chat("Who?", selfrag=setting)
        assert reply.status_code == 400
        said = f"selfrag.{next(iter(setting))}: this model searches by tags"
        assert said in reply.json()["error"]["message"]
    error = running.chat("Who?", max_tokens=3).json()["error"]
    assert "no answer within its budget" in error["message"]
