"""A server with a model that searches by tags."""

import openai
import pytest
from tagged import model, two_searches

from selfrag.extensions.search_tags.served import ServedSearchTags


def client(running):
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def chat(running, question, **selfrag):
    return client(running).chat.completions.create(
        model="selfrag",
        messages=[{"role": "user", "content": question}],
        extra_body={"selfrag": selfrag},
    )


@pytest.fixture
def tagged(serve):
    """Its server, and what it has searched for."""
    scripted, searched, _ = model(two_searches)
    return serve(ServedSearchTags.of(scripted)), searched


def test_a_model_that_searches_by_tags_searches_and_cites(tagged):
    running, searched = tagged
    reply = running.chat("Who?").json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "Text of d2. [1]"
    assert [
        annotation["url_citation"]["title"] for annotation in message["annotations"]
    ] == ["Title of d2"]
    assert searched == ["first", "second one"]
    kept = running.client.get(f"/v1/answers/{reply['selfrag']['id']}").json()
    assert [decision["query"] for decision in kept["trace"]["decisions"]] == [
        None,
        "first",
        "second one",
    ]
    assert (
        running.client.post("/retrieve", json={"queries": ["a"]}).json()["result"][0][
            0
        ]["id"]
        == "d1"
    )
    # Of a conversation the last turn is asked.
    turns = [
        {"role": role, "content": text}
        for role, text in (("user", "A"), ("assistant", "B"), ("user", "Who?"))
    ]
    text = running.chat(messages=turns, stream=True).text
    assert "Text of d2. [1]" in text
    assert text.endswith("data: [DONE]\n\n")
    assert searched[3:] == ["first", "second one"]


def test_settings_of_its_budget(tagged):
    running, searched = tagged
    budget = {"passages": 1, "passage_tokens": 50, "answer_tokens": 500}
    assert (
        running.chat("Who?", selfrag=budget).json()["choices"][0]["message"]["content"]
        == "Text of d2."
    )
    searched.clear()
    evidence = [{"id": "d2", "text": "Text of d2."}]
    assert running.chat("Who?", selfrag={"evidence": evidence}).json()["citations"] == [
        "selfrag://d2"
    ]
    assert searched == []
    refused = [
        {"threshold": 0.5},
        {"flow": "qr"},
        {"weights": {"issup": 2.0}},
        {"beam": 4},
    ]
    for setting in refused:
        reply = running.chat("Who?", selfrag=setting)
        assert reply.status_code == 400
        assert (
            f"selfrag.{next(iter(setting))}: this model searches by tags"
            in reply.json()["error"]["message"]
        )
    assert (
        "no answer within its budget"
        in running.chat("Who?", max_tokens=3).json()["error"]["message"]
    )
