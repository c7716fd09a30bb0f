"""One hostile document, through every door by which text leaves: nothing that a reader cannot see goes out with it."""

import json
import re
from io import StringIO

import anyio
import pytest
from rich.console import Console
from scripted import ScriptedEngine
from served import events
from written import EOS, LIMITS, PROMPTING, reply

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.cli.main import main
from selfrag.common.untrusted import MOST_CUT, UNSEEN
from selfrag.render import html as answer_html
from selfrag.render import terminal_answer
from selfrag.render.tables import markdown_table, quoted
from selfrag.serving.service import Service
from selfrag.viewer.traces import traces_page
from selfrag.viewer.trees import svg

HIDDEN = "\x1b[2J\x07\x00\x9b\u202e\u200b\u2066\ufeff\U000e0041"
EVIL = Passage(
    f"id{HIDDEN}",
    f"They sleep{HIDDEN} for hours.",
    f"Bears{HIDDEN}",
    metadata={
        "file": f"/docs/{HIDDEN}.pdf",
        "heading": f"Sleep{HIDDEN}" + "x" * 2 * MOST_CUT,
        f"column{HIDDEN}": f"value{HIDDEN}",
        "date": f"2026{HIDDEN}",
        "url": f"https://example.org/{HIDDEN}",
    },
)
WRITTEN = f"[Relevant]They{HIDDEN} sleep.[Fully supported][Utility:5]</s>"
QUESTION = f"Who{HIDDEN} sleeps?"
ASKED = {"mode": "always", "passages": 1}


@pytest.fixture
def rag():
    """A model that quotes the document with all that is in it."""

    def write(request):
        return reply(WRITTEN)

    engine = ScriptedEngine(write, EOS, limits=LIMITS)
    return SelfRAG(PROMPTING, engine, lambda queries, k: [[EVIL]] * len(queries))


def texts_of(value):
    """Every text of a decoded JSON value, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)


def check(value):
    """Nothing unseen is in a value, and the document is."""
    texts = list(texts_of(value))
    assert any("They" in text for text in texts)
    for text in texts:
        assert not UNSEEN.search(text), repr(text[:200])


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_line(rag, monkeypatch, capsys, options):
    monkeypatch.setattr("selfrag.cli.options.load", lambda *_: rag)
    question = QUESTION.replace("\0", "")  # which no argument can hold
    assert main(["ask", question, "--set", "mode=always", *options]) == 0
    out = capsys.readouterr().out
    check([out])
    if options:
        check(json.loads(out))


def test_text_and_pages_of_an_answer(rag):
    answer = rag.generate(QUESTION, **ASKED)
    assert HIDDEN in answer.text, "the model must have quoted it"
    console = Console(record=True, width=200, file=StringIO())
    console.print(terminal_answer(answer))
    page = traces_page({"": answer.trace})
    data = re.search(r'<script type="application/json" id="given">(.*?)</script>', page)
    check([console.export_text(), str(answer), answer_html(answer)])
    check([page, svg(answer.trace)])
    check(json.loads(data[1]))


def test_http(rag, serve):
    running = serve(rag, events=True)
    whole = running.chat(QUESTION, selfrag=ASKED)
    check(whole.json())
    check(events(running.chat(QUESTION, stream=True, selfrag=ASKED)))
    body = {"model": "selfrag", "input": QUESTION, "selfrag": ASKED}
    post = running.client.post
    check(post("/v1/responses", json=body).json())
    check(events(post("/v1/responses", json=body | {"stream": True})))
    name = whole.json()["selfrag"]["id"]
    check(running.client.get(f"/v1/answers/{name}").json())
    check(post("/v1/rescore", json={"answer_id": name, "threshold": 0.5}).json())
    check(post("/retrieve", json={"queries": [QUESTION], "topk": 1}).json())
    check(post("/search", json={"query": QUESTION}).json())
    refused = running.chat(QUESTION, model=f"They{HIDDEN}")
    check(refused.json())
    check(running.chat(selfrag={f"They{HIDDEN}": 1}).json())


def test_agents(rag):
    pytest.importorskip("mcp", reason="mcp is not installed")
    from mcp import Client

    from selfrag.extensions.mcp.tools import make_server

    async def ask():
        async with Client(make_server(Service(rag))) as client:
            calls = {
                "ask": {"question": QUESTION, "mode": "always"},
                "search": {"query": QUESTION},
                f"They{HIDDEN}": {},
            }
            for tool, arguments in calls.items():
                yield await client.call_tool(tool, arguments)

    async def collect():
        return [result async for result in ask()]

    for result in anyio.run(collect):
        check([part.text for part in result.content])
        if not result.is_error:
            check(result.structured_content)
            longest = max(map(len, texts_of(result.structured_content)))
            assert longest <= MOST_CUT + 40


def test_langchain(rag):
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from selfrag.extensions.frameworks.langchain import ChatSelfRAG, SelfRAGRetriever

    message = ChatSelfRAG(rag=rag, settings=ASKED).invoke(QUESTION)
    check([message.content, message.response_metadata])
    [document] = SelfRAGRetriever(rag=rag).invoke(QUESTION)
    check(["They", document.metadata])


def test_haystack(rag):
    pytest.importorskip("haystack", reason="haystack is not installed")
    from selfrag.extensions.frameworks.haystack import SelfRAGAnswerer

    answerer = SelfRAGAnswerer(settings=ASKED)
    answerer._rag = rag
    [answer] = answerer.run(QUESTION)["answers"]
    check([answer.data, answer.meta, answer.documents[0].meta])


def test_llama_index(rag):
    pytest.importorskip("llama_index", reason="llama-index is not installed")
    from selfrag.extensions.frameworks.llama_index import SelfRAGQueryEngine

    response = SelfRAGQueryEngine(rag=rag, settings=ASKED).query(QUESTION)
    check([response.response, response.metadata])
    check(["They", response.source_nodes[0].node.metadata])


def test_markdown(rag):
    answer = rag.generate(QUESTION, **ASKED)
    cells = [answer.text, EVIL.title]
    check([markdown_table(cells, [cells]), quoted(answer.text)])
