"""Chat and responses with clients of others: text, citations, the `selfrag` object, streams."""

from __future__ import annotations

import json
import os
from typing import Any

import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from served import Running, Serve, random_rag
from written import PROMPTING, passages, scripted

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.common.untrusted import UNSEEN
from selfrag.decoding.policy import Decoding
from selfrag.judges.conversation import read_input
from selfrag.render import passage_name
from selfrag.serving.citations import TITLE, url_of

os.environ.setdefault(
    "LITELLM_LOCAL_MODEL_COST_MAP", "True"
)  # its import would ask the network for prices
QUESTIONS = [f"question {number}" for number in range(6)]


def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def chat(running: Running, question: str, **selfrag: Any) -> Any:
    return client(running).chat.completions.create(
        model="selfrag",
        messages=[{"role": "user", "content": question}],
        extra_body={"selfrag": selfrag},
    )


def test_the_text_is_that_of_generate_with_marks_and_offsets(serve: Serve) -> None:
    running, cited = serve(), 0
    for question in QUESTIONS:
        answer = random_rag().generate(question)
        message = chat(running, question).choices[0].message
        assert message.content == answer.cited_text()
        spans = [one.url_citation for one in message.annotations]
        claims = [segment for segment in answer.segments if segment.citation]
        assert [message.content[one.start_index : one.end_index] for one in spans] == [
            s.text.rstrip() for s in claims
        ]
        assert [one.title for one in spans] == [
            segment.citation.title for segment in claims
        ]
        cited += len(spans)
    assert cited > 5


@pytest.mark.parametrize(
    ("style", "mark"), [("markdown", " [[1]](selfrag://"), ("none", None)]
)
def test_other_marks(serve: Serve, style: str, mark: str | None) -> None:
    message = chat(serve(), QUESTIONS[0], citation_style=style).choices[0].message
    assert message.annotations
    assert mark in message.content if mark else "[" not in message.content


def test_a_stream_sends_the_same_text_and_each_annotation_once(serve: Serve) -> None:
    running = serve()
    for question in QUESTIONS:
        whole = chat(running, question)
        turns = [{"role": "user", "content": question}]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(
            client(running).chat.completions.create(
                model="selfrag", messages=turns, **options
            )
        )
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert (
            "".join(delta.content or "" for delta in deltas)
            == whole.choices[0].message.content
        )
        sent = [
            one
            for delta in deltas
            for one in (delta.model_extra or {}).get("annotations", [])
        ]
        assert sent == [
            one.model_dump() for one in whole.choices[0].message.annotations
        ]
        assert (chunks[-1].usage, chunks[-2].choices[0].finish_reason) == (
            whole.usage,
            "stop",
        )
        ours, theirs = chunks[-2].model_extra, whole.model_extra
        for key in ("segments", "citations", "text", "retrieved"):
            assert ours["selfrag"][key] == theirs["selfrag"][key]
        assert ours["search_results"] == theirs["search_results"]


def test_the_responses_route_whole_and_streamed(serve: Serve) -> None:
    running = serve()
    for question in QUESTIONS:
        expected = chat(running, question).choices[0].message
        whole = client(running).responses.create(model="selfrag", input=question)
        assert whole.output_text == expected.content
        [part] = whole.output[0].content  # type: ignore[union-attr]
        flat = [one.model_dump() for one in part.annotations]  # type: ignore[union-attr]
        assert flat == [
            {"type": "url_citation", **one.url_citation.model_dump()}
            for one in expected.annotations
        ]
        events = list(
            client(running).responses.create(
                model="selfrag", input=question, stream=True
            )
        )
        begins = ("created", "in_progress", "output_item.added", "content_part.added")
        assert [event.type for event in events[:4]] == [
            f"response.{name}" for name in begins
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        by_type = {
            kind: [e for e in events if e.type == f"response.output_text.{kind}"]
            for kind in KINDS
        }
        assert "".join(event.delta for event in by_type["delta"]) == expected.content
        assert [
            event.annotation.model_dump() for event in by_type["annotation.added"]
        ] == flat
        assert [
            event.annotation_index for event in by_type["annotation.added"]
        ] == list(range(len(flat)))
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == expected.content


KINDS = ("delta", "annotation.added")


def test_every_setting_of_a_request_reaches_the_decoder(serve: Serve) -> None:
    running = serve()
    plain = {
        "mode": "always",
        "threshold": None,
        "passages": 3,
        "beam": 3,
        "max_segments": 2,
        "accumulate": "sum",
    }
    plain |= {"no_retrieval_branch": True}
    require = {"issup": ["Fully supported", "Partially supported"]}
    given = chat(
        running, "Q", weights={"isrel": 2, "issup": 0.5}, require=require, **plain
    )
    used = running.client.get(
        f"/v1/answers/{given.model_extra['selfrag']['id']}"
    ).json()["trace"]["decoding"]
    assert (used["weights"]["isrel"], used["weights"]["isuse"]) == (2, 0.5)
    assert sorted(used["require"]["issup"]) == sorted(require["issup"])
    assert {name: used[name] for name in plain} == plain


def test_earlier_answers_go_in_without_their_marks(serve: Serve) -> None:
    running = serve()
    turns = [
        {"role": "user", "content": "First?"},
        {
            "role": "assistant",
            "content": "One [1] and two. [[2]](https://example.org/a%29b) [10] [x] a[1]",
        },
        {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
    ]
    assert (
        running.client.post(
            "/v1/chat/completions", json={"model": "selfrag", "messages": turns}
        ).status_code
        == 200
    )
    seen = running.service.rag.engine.requests  # type: ignore[attr-defined]
    prompts = [
        PROMPTING.codec.decode([i for i in request.prompt_ids if i >= 100])
        for request in seen
    ]
    assert any(
        "One and two. [x] a[1]" in prompt and "And then?" in prompt
        for prompt in prompts
    )


def test_open_webui_gets_its_sources_before_the_text_that_cites_them(
    serve: Serve,
) -> None:
    running, sources = serve(events=True), 0
    for question in QUESTIONS:
        known: list[str] = []
        reply = running.chat(question, stream=True)
        chunks = [
            json.loads(line[6:])
            for line in reply.text.splitlines()
            if line.startswith("data: {")
        ]
        for chunk in chunks:
            assert chunk["choices"], "a chunk without choices breaks `chunk.choices[0]`"
            if "event" in chunk:
                data = chunk["event"]["data"]
                assert data["source"]["url"] == data["metadata"][0]["source"]
                known.append(data["source"]["url"])
            cited = chunk["choices"][0]["delta"].get("annotations", [])
            assert {one["url_citation"]["url"] for one in cited} <= set(known)
        assert known == chunks[-1]["citations"]
        sources += len(known)
    assert sources > 5
    assert (
        '"event"' not in running.chat("Q", stream=True, selfrag={"events": False}).text
    )


HOSTILE = st.text() | st.sampled_from(
    [
        "javascript:alert(1)",
        "https://e.org/a)b(c",
        "http://",
        "https://[",
        "<script>",
        "\x1b[31m",
        "x" * 9999,
    ]
)


@example("id", "title", "javascript://e.org/%0aalert(1)")
@given(HOSTILE, HOSTILE, HOSTILE)
def test_links_of_passages_are_addresses_or_inert(
    name: str, title: str, url: str
) -> None:
    passage = Passage(
        name, "Text", title, metadata={"url": url, "file": f"/{url}", "page": len(url)}
    )
    link = url_of(passage)
    assert link.startswith(("http://", "https://", "selfrag://", "file:///"))
    assert link.isascii()
    assert link.isprintable()
    assert not set(link) & set(' ()<>"`\\')
    assert len(passage_name(passage, TITLE)) <= 400
    assert not UNSEEN.search(passage_name(passage, TITLE))


def test_chat_openai_of_langchain(serve: Serve) -> None:
    langchain = pytest.importorskip(
        "langchain_openai", reason="langchain-openai is not installed"
    )
    model = langchain.ChatOpenAI(
        base_url=f"{serve().url}/v1", api_key="none", model="selfrag", temperature=0.2
    )
    expected = random_rag().generate(QUESTIONS[0]).cited_text()
    whole = model.invoke(QUESTIONS[0])
    assert whole.content == expected
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream(QUESTIONS[0])) == expected


def test_litellm(serve: Serve) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    turns = [{"role": "user", "content": QUESTIONS[0]}]
    asked = {
        "model": "openai/selfrag",
        "api_base": f"{serve().url}/v1",
        "api_key": "none",
        "messages": turns,
    }
    expected = random_rag().generate(QUESTIONS[0]).cited_text()
    message = litellm.completion(**asked).choices[0].message
    assert message.content == expected
    assert len(message.annotations or []) == expected.count("[")
    parts = litellm.completion(**asked, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected
    given = {"max_segments": 1, "mode": "never"}
    short = (
        litellm.completion(**asked, extra_body={"selfrag": given}).choices[0].message
    )
    assert short.content == random_rag().generate(QUESTIONS[0], **given).cited_text()


# A model that searches by tags.


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {}}],
}
EARLIER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (CALLED, {}),
    ({"role": "assistant"}, {}),
    (
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": "No."},
    ),
    (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": "No."},
    ),
    (
        {"role": "tool", "tool_call_id": "1", "content": "20 C"},
        {"role": "tool", "content": "20 C"},
    ),
    (
        {"role": "tool", "content": [{"type": "text", "text": "20 C"}]},
        {"role": "tool", "content": "20 C"},
    ),
    (
        {"role": "function", "name": "f", "content": "20 C"},
        {"role": "tool", "content": "20 C"},
    ),
    (
        {"role": "developer", "content": "Be short.", "name": None},
        {"role": "developer", "content": "Be short."},
    ),
]


@pytest.mark.parametrize(("sent", "kept"), EARLIER)
def test_turns_of_other_models_and_tools_are_taken(
    serve: Serve, sent: dict[str, Any], kept: dict[str, Any]
) -> None:
    """Field audit S2 and S3. The output of a tool is a turn, a call of one says nothing; `ask` reads both alike."""
    first, last = (
        {"role": "user", "content": "A?"},
        {"role": "user", "content": "question 1"},
    )
    expected = [first, *([kept] if kept else []), last]
    assert [
        {"role": turn.role, "content": turn.content}
        for turn in read_input([first, sent, last]).messages
    ] == expected
    answer = random_rag().generate(expected)
    reply = serve().chat(messages=[first, sent, last])
    assert reply.json()["choices"][0]["message"]["content"] == answer.cited_text()


def test_calls_and_outputs_of_tools_in_the_input_of_responses(serve: Serve) -> None:
    """Field audit S3 and S5."""
    items = [
        {"role": "user", "content": "A?"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "20 C"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "question 1"}],
        },
    ]
    turns = [
        items[0],
        {"role": "tool", "content": "20 C"},
        {"role": "user", "content": "question 1"},
    ]
    reply = serve().client.post(
        "/v1/responses", json={"model": "selfrag", "input": items}
    )
    assert (
        reply.json()["output"][0]["content"][0]["text"]
        == random_rag().generate(turns).cited_text()
    )


@pytest.mark.parametrize(
    ("route", "body"),
    [("chat/completions", {"messages": []}), ("responses", {"input": ""})],
)
def test_null_is_a_field_that_was_left_out(
    serve: Serve, route: str, body: dict[str, Any]
) -> None:
    """Field audit S2 and S7: an assistant's `content: null` and `"stream": null` were refused."""
    running = serve()
    schema = running.client.get("/openapi.json").json()["components"]["schemas"]
    names = schema["ChatRequest" if "messages" in body else "ResponsesRequest"][
        "properties"
    ]
    question = (
        {"messages": [{"role": "user", "content": "question 1"}]}
        if "messages" in body
        else {"input": "question 1"}
    )
    nulls = dict.fromkeys((*names, "temperature", "top_p", "user", "metadata", "seed"))
    reply = running.client.post(
        f"/v1/{route}", json={**nulls, "model": "selfrag", **question}
    )
    assert reply.status_code == 200, reply.text


CUT = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "[Relevant]They sleep for hours.[Fully supported][Utility:5]</s>",
}


def scripted_rag(tree: Any, *found: str) -> SelfRAG:
    return SelfRAG(
        PROMPTING,
        scripted({"Q": tree}),
        lambda queries, k: [passages(*found)] * len(queries),
    )


@pytest.mark.parametrize(
    ("most", "text", "reason"),
    [
        (None, "They sleep for hours. [1]", "stop"),
        (5, "They [1]", "length"),
        (1, "", "length"),
    ],
)
def test_defect_8_a_cut_answer_has_the_finish_reason_length(
    serve: Serve, most: int | None, text: str, reason: str
) -> None:
    """Field audit S1."""
    running = serve(scripted_rag(CUT, "d1"))
    ask = {
        "model": "selfrag",
        "messages": [{"role": "user", "content": "Q"}],
        "max_tokens": most,
    }
    (choice,) = client(running).chat.completions.create(**ask).choices
    assert (choice.message.content, choice.finish_reason) == (text, reason)
    chunks = list(client(running).chat.completions.create(**ask, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, reason]
    asked = {"model": "selfrag", "input": "Q", "max_output_tokens": most}
    response = client(running).responses.create(**asked)
    *_, last = client(running).responses.create(**asked, stream=True)
    status = "completed" if reason == "stop" else "incomplete"
    for found in (response, last.response):
        assert (found.output_text, found.status, found.output[0].status) == (
            text,
            status,
            status,
        )
        details = found.incomplete_details
        assert (None if details is None else details.reason) == (
            None if reason == "stop" else "max_output_tokens"
        )
    assert last.type == f"response.{status}"
    about = running.chat("Q", max_tokens=most).json()["selfrag"]
    assert (about["finish"], [one["finish"] for one in about["segments"]]) == (
        reason,
        [reason] * bool(text),
    )


@pytest.mark.parametrize("setting", ["abstain", "write"])
def test_defect_7_nothing_found_is_told_to_clients(serve: Serve, setting: str) -> None:
    """Field audit A1, over HTTP."""
    tree = CUT | {"[No Retrieval]": "Own words.</s>"}
    running = serve(scripted_rag(tree))
    controls = {"evidence": [], "without_evidence": setting}
    reply = running.chat("Q", selfrag=controls).json()
    about = reply["selfrag"]
    said = (
        ("I don't know the answer", True, False)
        if setting == "abstain"
        else ("Own words.", False, True)
    )
    assert (
        reply["choices"][0]["message"]["content"],
        about["abstained"],
        about["without_evidence"],
    ) == said
    assert (about["reason"], about["citations"], about["usage"]["searches"]) == (
        "nothing found",
        [],
        0,
    )
    again = running.client.post(
        "/v1/rescore", json={"answer_id": about["id"], "weights": {"isrel": 2.0}}
    ).json()
    assert (again["content"], again["abstained"], again["reason"], again["exact"]) == (
        *said[:2],
        "nothing found",
        True,
    )


def test_issue_50_a_setting_drops_old_turns_as_chat_does(serve: Serve) -> None:
    """At 2d68d6f3 more than 200 messages were refused, and there was no such setting."""
    exchanges = [
        {"role": role, "content": f"{number} {'word ' * 10}"}
        for number in range(150)
        for role in ("user", "assistant")
    ]
    system, question = (
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "question 1"},
    )
    turns = [system, *exchanges, question]
    asked = {"model": "selfrag", "messages": turns}
    with pytest.raises(openai.BadRequestError) as refused:
        client(serve()).chat.completions.create(**asked)
    assert refused.value.code == "context_length_exceeded"
    recent = random_rag().recent_turns(turns, Decoding())
    assert (recent[0], recent[-1], recent[1]["role"]) == (system, question, "user")
    assert recent[1:-1] == exchanges[-len(recent) + 2 :]
    assert 2048 - 100 < sum(len(turn["content"]) + 16 for turn in recent) <= 4096 - 956
    dropping = client(serve(drop_old_turns=True))
    expected = random_rag().generate(recent).cited_text()
    assert (
        dropping.chat.completions.create(**asked).choices[0].message.content == expected
    )
    assert (
        dropping.responses.create(model="selfrag", input=turns).output_text == expected
    )
    assert [model.id for model in dropping.models.list()] == [
        dropping.models.retrieve("selfrag").id
    ]
    with pytest.raises(openai.NotFoundError, match="no model 'gpt' here"):
        dropping.models.retrieve("gpt")


@pytest.mark.parametrize(
    ("metadata", "url"),
    [
        (
            {"file": "/docs/a b.pdf", "page": 3, "start": 5, "end": 9},
            "file:///docs/a%20b.pdf#page=3",
        ),
        (
            {"file": "/docs/\u00e4.md", "start": 5, "end": 9},
            "file:///docs/%C3%A4.md#char=5,9",
        ),
        ({"file": "/docs/a.docx", "start": 5, "end": 9}, "file:///docs/a.docx"),
        ({"file": "/docs/a.md", "start": "x", "end": 9}, "file:///docs/a.md"),
        ({"file": "/docs/rows.jsonl", "url": "https://e.org/a"}, "https://e.org/a"),
        ({"file": "relative.md"}, "selfrag://guide-1"),
        ({"file": 5, "page": True}, "selfrag://guide-1"),
    ],
)
def test_issue_50_citations_lead_to_the_file(
    serve: Serve, metadata: dict[str, Any], url: str
) -> None:
    rag = random_rag(3)
    rag.retriever = lambda queries, k: (
        [[Passage("guide-1", "Text.", "Guide", metadata=metadata)]] * len(queries)
    )
    running = serve(rag)
    reply = chat(running, "Q", mode="always")
    spans = [one.url_citation for one in reply.choices[0].message.annotations]
    assert {one.url for one in spans} == {url}
    assert [one["metadata"] for one in reply.model_extra["selfrag"]["citations"]] == [
        metadata
    ]
    assert (
        rag.generate("Q", mode="always").as_dict()["segments"][0]["citation"][
            "metadata"
        ]
        == metadata
    )
    response = client(running).responses.create(
        model="selfrag", input="Q", extra_body={"selfrag": {"mode": "always"}}
    )
    assert {one.url for one in response.output[0].content[0].annotations} == {url}
    events = [
        json.loads(line[6:])
        for line in running.chat(
            "Q", stream=True, selfrag={"mode": "always", "events": True}
        ).text.splitlines()
        if line.startswith("data: {")
    ]
    [event] = [
        event["event"]["data"]["metadata"][0] for event in events if "event" in event
    ]
    assert event == {
        "source": url,
        "name": event["name"],
        **({"source_url": url} if url.startswith("http") else {}),
    } | {name: value for name, value in metadata.items() if name != "url"}
