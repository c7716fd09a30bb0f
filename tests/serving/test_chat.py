"""Chat and responses with the official client: text, citations, the `selfrag` object, streams."""

from __future__ import annotations

import json
from typing import Any

import openai
from hypothesis import given
from hypothesis import strategies as st
from served import Running, Serve, random_rag
from written import PROMPTING

from retrieval.passage import Passage
from selfrag.rendering import named
from selfrag.serving.citations import TITLE, url_of
from selfrag.untrusted import UNSEEN

QUESTIONS = [f"question {number}" for number in range(6)]


def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def chat(running: Running, question: str, **selfrag: Any) -> Any:
    return client(running).chat.completions.create(
        model="selfrag", messages=[{"role": "user", "content": question}], extra_body={"selfrag": selfrag}
    )


def test_the_text_is_that_of_generate_with_marks_and_offsets(serve: Serve) -> None:
    running, cited = serve(), 0
    for question in QUESTIONS:
        answer = random_rag().generate(question)
        message = chat(running, question).choices[0].message
        assert message.content == answer.cited_text()
        spans = [one.url_citation for one in message.annotations]
        claims = [segment for segment in answer.segments if segment.citation]
        assert [message.content[one.start_index : one.end_index] for one in spans] == [s.text.rstrip() for s in claims]
        assert [one.title for one in spans] == [segment.citation.title for segment in claims]
        cited += len(spans)
    assert cited > 5


def test_a_stream_sends_the_same_text_and_each_annotation_once(serve: Serve) -> None:
    running = serve()
    for question in QUESTIONS:
        whole = chat(running, question)
        turns = [{"role": "user", "content": question}]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client(running).chat.completions.create(model="selfrag", messages=turns, **options))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
        sent = [one for delta in deltas for one in (delta.model_extra or {}).get("annotations", [])]
        assert sent == [one.model_dump() for one in whole.choices[0].message.annotations]
        assert chunks[-1].usage == whole.usage
        assert chunks[-2].choices[0].finish_reason == "stop"
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
        assert flat == [{"type": "url_citation", **one.url_citation.model_dump()} for one in expected.annotations]
        events = list(client(running).responses.create(model="selfrag", input=question, stream=True))
        begins = ("created", "in_progress", "output_item.added", "content_part.added")
        assert [event.type for event in events[:4]] == [f"response.{name}" for name in begins]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == expected.content
        added = [
            event.annotation.model_dump() for event in events if event.type == "response.output_text.annotation.added"
        ]
        assert added == flat
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == expected.content


def test_every_setting_of_a_request_reaches_the_decoder(serve: Serve) -> None:
    running = serve()
    settings: dict[str, Any] = {
        "mode": "always",
        "threshold": None,
        "passages": 3,
        "beam": 3,
        "max_segments": 2,
        "weights": {"isrel": 2, "issup": 0.5},
        "require": {"issup": ["Fully supported", "Partially supported"]},
        "accumulate": "sum",
        "no_retrieval_branch": True,
    }
    given = chat(running, "Q", **settings)
    kept = running.client.get(f"/v1/answers/{given.model_extra['selfrag']['id']}").json()
    used = kept["trace"]["decoding"]
    assert (used["weights"]["isrel"], used["weights"]["isuse"]) == (2, 0.5)
    assert sorted(used["require"]["issup"]) == sorted(settings["require"]["issup"])
    for name in ("mode", "threshold", "passages", "beam", "max_segments", "accumulate", "no_retrieval_branch"):
        assert used[name] == settings[name], name


def test_earlier_answers_go_in_without_their_marks(serve: Serve) -> None:
    running = serve()
    seen = running.service.rag.engine.requests  # type: ignore[attr-defined]
    turns = [
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "One [1] and two. [[2]](https://example.org/a%29b) [10] [x] a[1]"},
        {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
    ]
    assert running.client.post("/v1/chat/completions", json={"model": "selfrag", "messages": turns}).status_code == 200
    prompts = [PROMPTING.codec.decode([i for i in request.prompt_ids if i >= 100]) for request in seen]
    assert any("One and two. [x] a[1]" in prompt and "And then?" in prompt for prompt in prompts)


def test_open_webui_gets_its_sources_before_the_text_that_cites_them(serve: Serve) -> None:
    running, sources = serve(events=True), 0
    for question in QUESTIONS:
        known: list[str] = []
        reply = running.chat(question, stream=True)
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        for chunk in chunks:
            assert chunk["choices"], "a chunk without choices breaks `chunk.choices[0]`"
            if "event" in chunk:
                data = chunk["event"]["data"]
                assert data["source"]["url"] == data["metadata"][0]["source"]
                known.append(data["source"]["url"])
                continue
            for one in chunk["choices"][0]["delta"].get("annotations", []):
                assert one["url_citation"]["url"] in known
        assert known == chunks[-1]["citations"]
        sources += len(known)
    assert sources > 5
    assert '"event"' not in running.chat("Q", stream=True, selfrag={"events": False}).text


HOSTILE = st.text() | st.sampled_from(
    ["javascript:alert(1)", "https://e.org/a)b(c", "http://", "https://[", "<script>", "\x1b[31m", "x" * 9999]
)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_links_of_passages_are_web_addresses_or_inert(name: str, title: str, url: str) -> None:
    passage = Passage(name, "Text", title, metadata={"url": url})
    link = url_of(passage)
    assert link.startswith(("http://", "https://", "selfrag://"))
    assert link.isascii()
    assert link.isprintable()
    assert not set(link) & set(' ()<>"`\\')
    assert len(named(passage, TITLE)) <= 400
    assert not UNSEEN.search(named(passage, TITLE))
