"""Chat and responses with clients of others: text, citations, the `selfrag` object, streams."""

import json

import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from served import events, random_rag
from strange_server import Reply, StrangeServer
from tables import each
from written import PROMPTING, passages, scripted

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.common.untrusted import UNSEEN
from selfrag.decoding.policy import Decoding
from selfrag.judges.conversation import read_input
from selfrag.render import passage_name
from selfrag.serving.citations import TITLE, url_of

QUESTIONS = [f"question {number}" for number in range(6)]


def client(running):
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def ask(running, question, **fields):
    """What the official client gets of a chat completion."""
    turns = [{"role": "user", "content": question}]
    completions = client(running).chat.completions
    return completions.create(model="selfrag", messages=turns, **fields)


def respond(running, question, **fields):
    """What the official client gets of the route of responses."""
    responses = client(running).responses
    return responses.create(model="selfrag", input=question, **fields)


def test_the_text_is_that_of_generate_with_marks_and_offsets(serve):
    running, cited = serve(), 0
    for question in QUESTIONS:
        answer = random_rag().generate(question)
        message = ask(running, question).choices[0].message
        assert message.content == answer.cited_text()
        claims = [segment for segment in answer.segments if segment.citation]
        for annotation, claim in zip(message.annotations, claims, strict=True):
            span = annotation.url_citation
            text = message.content[span.start_index : span.end_index]
            assert text == claim.text.rstrip()
            assert span.title == claim.citation.title
        cited += len(claims)
    assert cited > 5


@pytest.mark.parametrize(
    "style, mark", [("markdown", " [[1]](selfrag://"), ("none", "")]
)
def test_other_marks(serve, style, mark):
    style = {"selfrag": {"citation_style": style}}
    message = ask(serve(), QUESTIONS[0], extra_body=style).choices[0].message
    assert message.annotations
    assert mark in message.content
    assert ("[" in message.content) == bool(mark)


def test_a_stream_sends_the_same_text_and_each_annotation_once(serve):
    running = serve()
    for question in QUESTIONS:
        whole = running.chat(question).json()
        message = whole["choices"][0]["message"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last, usage = events(running.chat(question, **options))
        text, annotations = "", []
        for chunk in (*chunks, last):
            delta = chunk["choices"][0]["delta"]
            text += delta.get("content") or ""
            annotations += delta.get("annotations", [])
        assert text == message["content"]
        assert annotations == message["annotations"]
        assert usage["usage"] == whole["usage"]
        assert last["choices"][0]["finish_reason"] == "stop"
        for key in ("segments", "citations", "text", "retrieved"):
            assert last["selfrag"][key] == whole["selfrag"][key]
        assert last["search_results"] == whole["search_results"]


def test_the_responses_route_whole_and_streamed(serve):
    running = serve()
    for question in QUESTIONS:
        expected = ask(running, question).choices[0].message
        whole = respond(running, question)
        assert whole.output_text == expected.content
        [part] = whole.output[0].content
        flat = [annotation.model_dump() for annotation in part.annotations]
        assert flat == [
            {"type": "url_citation", **annotation.url_citation.model_dump()}
            for annotation in expected.annotations
        ]
        sent = list(respond(running, question, stream=True))
        assert " ".join(event.type for event in sent[:4]) == BEGINNING
        assert [event.sequence_number for event in sent] == list(range(len(sent)))
        text, annotations = "", []
        for event in sent:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.output_text.annotation.added":
                assert event.annotation_index == len(annotations)
                annotations.append(event.annotation.model_dump())
        assert text == expected.content == sent[-1].response.output_text
        assert annotations == flat
        assert sent[-1].type == "response.completed"


BEGINNING = (
    "response.created response.in_progress response.output_item.added"
    " response.content_part.added"
)
SETTINGS = """{"mode": "always", "threshold": null, "passages": 3, "beam": 3, "max_segments": 2, "accumulate": "sum",
"no_retrieval_branch": true, "require": {"issup": ["Fully supported"]}}"""


def test_every_setting_of_a_request_reaches_the_decoder(serve):
    running = serve()
    fields = json.loads(SETTINGS)
    settings = {"weights": {"isrel": 2, "issup": 0.5}, **fields}
    name = running.chat(selfrag=settings).json()["selfrag"]["id"]
    kept = running.client.get(f"/v1/answers/{name}").json()
    used = kept["trace"]["decoding"]
    assert used["weights"].items() >= {"isrel": 2, "issup": 0.5, "isuse": 0.5}.items()
    assert used.items() >= fields.items()


def test_earlier_answers_go_in_without_their_marks(serve):
    running = serve()
    turns = json.loads(
        """[{"role": "user", "content": "First?"},
        {"role": "assistant", "content": "One [1] and two. [[2]](https://example.org/a%29b) [10] [x] a[1]"},
        {"role": "user", "content": [{"type": "text", "text": "And then?"}]}]"""
    )
    assert running.chat(messages=turns).status_code == 200
    prompts = ""
    for request in running.service.rag.engine.requests:  # type: ignore[attr-defined]
        prompts += PROMPTING.codec.decode([i for i in request.prompt_ids if i >= 100])
    assert "One and two. [x] a[1]" in prompts
    assert "And then?" in prompts


def test_open_webui_gets_its_sources_before_the_text_that_cites_them(serve):
    running, sources = serve(events=True), 0
    for question in QUESTIONS:
        known = []
        chunks = events(running.chat(question, stream=True))
        for chunk in chunks:
            assert chunk["choices"], "a chunk without choices breaks `chunk.choices[0]`"
            if "event" in chunk:
                data = chunk["event"]["data"]
                assert data["source"]["url"] == data["metadata"][0]["source"]
                known.append(data["source"]["url"])
            for cited in chunk["choices"][0]["delta"].get("annotations", []):
                assert cited["url_citation"]["url"] in known
        assert known == chunks[-1]["citations"]
        sources += len(known)
    assert sources > 5
    assert (
        '"event"' not in running.chat("Q", stream=True, selfrag={"events": False}).text
    )


STRANGE = "javascript:alert(1) https://e.org/a)b(c http:// https://[ <script> \x1b[31m"
HOSTILE = st.text() | st.sampled_from([*STRANGE.split(), "x" * 9999])


@example("id", "title", "javascript://e.org/%0aalert(1)")
@given(HOSTILE, HOSTILE, HOSTILE)
def test_links_of_passages_are_addresses_or_inert(name, title, url):
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


def test_chat_openai_of_langchain(serve):
    langchain = pytest.importorskip(
        "langchain_openai", reason="langchain-openai is not installed"
    )
    model = langchain.ChatOpenAI(
        base_url=f"{serve().url}/v1", api_key="none", model="selfrag", temperature=0.2
    )
    whole = model.invoke("question 0")
    assert whole.content == random_rag().generate("question 0").cited_text()
    assert whole.usage_metadata["output_tokens"] > 0
    streamed = "".join(chunk.text for chunk in model.stream("question 0"))
    assert streamed == whole.content


FIRST = {"role": "user", "content": "A?"}
LAST = {"role": "user", "content": "question 1"}
EARLIER = """
{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {}}]} →
{"role": "assistant"} →
{"role": "assistant", "content": null, "refusal": "No."} → No.
{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]} → No.
{"role": "tool", "tool_call_id": "1", "content": "20 C"} → 20 C
{"role": "tool", "content": [{"type": "text", "text": "20 C"}]} → 20 C
{"role": "function", "name": "f", "content": "20 C"} → 20 C
{"role": "developer", "content": "Be short.", "name": null} → Be short.
"""


@each("turn, text", EARLIER)
def test_turns_of_other_models_and_tools_are_taken(serve, turn, text):
    """Field audit S2 and S3. The output of a tool is a turn, a call of one says nothing; `ask` reads both alike."""
    sent = json.loads(turn)
    kept = {"role": sent["role"].replace("function", "tool"), "content": text}
    expected = [FIRST, kept, LAST] if text else [FIRST, LAST]
    messages = read_input([FIRST, sent, LAST]).messages
    read = [{"role": turn.role, "content": turn.content} for turn in messages]
    assert read == expected
    answer = random_rag().generate(expected)
    reply = serve().chat(messages=[FIRST, sent, LAST])
    assert reply.json()["choices"][0]["message"]["content"] == answer.cited_text()


def test_calls_and_outputs_of_tools_in_the_input_of_responses(serve):
    """Field audit S3 and S5."""
    items = json.loads(
        """[{"role": "user", "content": "A?"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "20 C"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "question 1"}]}]"""
    )
    answer = random_rag().generate([FIRST, {"role": "tool", "content": "20 C"}, LAST])
    assert respond(serve(), items).output_text == answer.cited_text()


@pytest.mark.parametrize(
    "route, schema, question",
    [
        ("chat/completions", "ChatRequest", {"messages": [LAST]}),
        ("responses", "ResponsesRequest", {"input": "question 1"}),
    ],
)
def test_null_is_a_field_that_was_left_out(serve, route, schema, question):
    """Field audit S2 and S7: an assistant's `content: null` and `"stream": null` were refused."""
    http = serve().client
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    names = [*schemas[schema]["properties"], "temperature", "top_p", "user", "seed"]
    body = dict.fromkeys(names) | question | {"model": "selfrag"}
    reply = http.post(f"/v1/{route}", json=body)
    assert reply.status_code == 200, reply.text


CUT = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "[Relevant]They sleep for hours.[Fully supported][Utility:5]</s>",
}


def scripted_rag(tree, *found):
    return SelfRAG(
        PROMPTING,
        scripted({"Q": tree}),
        lambda queries, k: [passages(*found)] * len(queries),
    )


@pytest.mark.parametrize(
    "most, text, reason",
    [
        (None, "They sleep for hours. [1]", "stop"),
        (5, "They [1]", "length"),
        (1, "", "length"),
    ],
)
def test_defect_8_a_cut_answer_has_the_finish_reason_length(serve, most, text, reason):
    """Field audit S1."""
    running = serve(scripted_rag(CUT, "d1"))
    (choice,) = ask(running, "Q", max_tokens=most).choices
    assert choice.message.content == text
    assert choice.finish_reason == reason
    chunks = list(ask(running, "Q", max_tokens=most, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, reason]
    response = respond(running, "Q", max_output_tokens=most)
    *_, last = respond(running, "Q", max_output_tokens=most, stream=True)
    status = "completed" if reason == "stop" else "incomplete"
    assert last.type == f"response.{status}"
    for reply in (response, last.response):
        assert reply.output_text == text
        assert reply.status == reply.output[0].status == status
        details = reply.incomplete_details
        assert (details and details.reason) == (
            None if reason == "stop" else "max_output_tokens"
        )
    about = running.chat("Q", max_tokens=most).json()["selfrag"]
    assert about["finish"] == reason
    ends = [segment["finish"] for segment in about["segments"]]
    assert ends == [reason] * bool(text)


NOTHING = "nothing found"


@pytest.mark.parametrize(
    "own, setting, text, abstained, reason",
    [
        ("Own words.", "abstain", "I don't know the answer", True, NOTHING),
        ("Own words.", "write", "Own words.", False, NOTHING),
        ("I don't know.", "write", "I don't know.", True, "the model refused"),
    ],
)
def test_what_is_no_answer_is_told_to_clients(
    serve, own, setting, text, abstained, reason
):
    """Nothing found, and the model's own refusal: whole, streamed, as a response and ranked again."""
    tree = CUT | {"[No Retrieval]": f"{own}</s>"}
    running = serve(scripted_rag(tree))
    fields = {"selfrag": {"evidence": [], "without_evidence": setting}}
    reply = running.chat(**fields).json()
    about = reply["selfrag"]
    (choice,) = reply["choices"]
    assert choice["message"]["content"] == text
    assert choice["message"]["refusal"] is None
    assert choice["finish_reason"] == "stop"
    told = {"abstained": abstained, "reason": reason}
    expected = told | {"without_evidence": setting == "write", "citations": []}
    assert about.items() >= expected.items()
    assert about["usage"]["searches"] == 0
    *_, last = events(running.chat(stream=True, **fields))
    assert last["selfrag"].items() >= expected.items()
    body = {"model": "selfrag", "input": "Q", **fields}
    response = running.client.post("/v1/responses", json=body).json()
    assert response["selfrag"].items() >= expected.items()
    body = {"answer_id": about["id"], "weights": {"isrel": 2.0}}
    again = running.client.post("/v1/rescore", json=body).json()
    assert again.items() >= {"content": text, "exact": True, **told}.items()


def test_what_a_model_thinks_is_sent_beside_its_answer(serve):
    said = Reply(
        b'{"choices": [{"finish_reason": "stop", "message":'
        b' {"content": "<think>Is it 120?</think>It is 80 degrees."}}]}'
    )
    fields = {"selfrag": {"mode": "never"}}
    with (
        StrangeServer(lambda path, body: said) as model,
        SelfRAG.from_pretrained(f"m@{model.url}/v1", continuation="none") as rag,
    ):
        running = serve(rag)
        reply = running.chat("Q", **fields).json()
        sent = events(running.chat("Q", stream=True, **fields))
    assert reply["choices"][0]["message"]["content"] == "It is 80 degrees."
    assert "120" not in json.dumps(sent[:-1])
    for about in (reply["selfrag"], sent[-1]["selfrag"]):
        assert about["reasoning"] == "Is it 120?"


def test_issue_50_a_setting_drops_old_turns_as_chat_does(serve):
    """At 2d68d6f3 more than 200 messages were refused, and there was no such setting."""
    exchange = [FIRST, {"role": "assistant", "content": "word " * 10}]
    system = {"role": "system", "content": "Be short."}
    turns = [system, *exchange * 150, LAST]
    with pytest.raises(openai.BadRequestError) as refused:
        respond(serve(), turns)
    assert refused.value.code == "context_length_exceeded"
    recent = random_rag().recent_turns(turns, Decoding())
    exchanges = (len(recent) - 2) // 2
    assert recent == [system, *exchange * exchanges, LAST]
    assert 2048 - 100 < sum(len(turn["content"]) + 16 for turn in recent) <= 4096 - 956
    running = serve(drop_old_turns=True)
    text = random_rag().generate(recent).cited_text()
    reply = running.chat(messages=turns).json()
    assert reply["choices"][0]["message"]["content"] == text
    assert respond(running, turns).output_text == text
    models = client(running).models
    assert [model.id for model in models.list()] == ["selfrag"]
    with pytest.raises(openai.NotFoundError, match="'gpt'"):
        models.retrieve("gpt")


PLACES = """
{"file": "/docs/a b.pdf", "page": 3, "start": 5, "end": 9} → file:///docs/a%20b.pdf#page=3
{"file": "/docs/\u00e4.md", "start": 5, "end": 9} → file:///docs/%C3%A4.md#char=5,9
{"file": "/docs/a.docx", "start": 5, "end": 9} → file:///docs/a.docx
{"file": "/docs/a.md", "start": "x", "end": 9} → file:///docs/a.md
{"file": "/docs/rows.jsonl", "url": "https://e.org/a"} → https://e.org/a
{"file": "relative.md"} → selfrag://guide-1
{"file": 5, "page": true} → selfrag://guide-1
"""


@each("metadata, url", PLACES)
def test_issue_50_citations_lead_to_the_file(serve, metadata, url):
    metadata = json.loads(metadata)
    rag = random_rag(3)
    hit = Passage("guide-1", "Text.", "Guide", metadata=metadata)
    rag.retriever = lambda queries, k: [[hit]] * len(queries)
    running, always = serve(rag), {"mode": "always"}
    reply = running.chat("Q", selfrag=always).json()
    for annotation in reply["choices"][0]["message"]["annotations"]:
        assert annotation["url_citation"]["url"] == url
    assert [cited["metadata"] for cited in reply["selfrag"]["citations"]] == [metadata]
    segment = rag.generate("Q", mode="always").as_dict()["segments"][0]
    assert segment["citation"]["metadata"] == metadata
    response = respond(running, "Q", extra_body={"selfrag": always})
    for annotation in response.output[0].content[0].annotations:
        assert annotation.url == url
    chunks = events(running.chat("Q", stream=True, selfrag=always | {"events": True}))
    [event] = [chunk["event"] for chunk in chunks if "event" in chunk]
    source = event["data"]["metadata"][0]
    expected = {"source": url, "name": source["name"], **metadata}
    if "url" in expected:
        expected["source_url"] = expected.pop("url")
    assert source == expected
