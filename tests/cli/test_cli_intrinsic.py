"""`selfrag intrinsic`: every intrinsic through a real engine on a tiny random model, and inputs that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny

from selfrag.cli.main import main
from selfrag.intrinsics.catalog import catalog, codec_of, find, intrinsics
from selfrag.intrinsics.state import Message, State

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = {
    "messages": [
        {"role": "user", "content": "Who wrote Faust?"},
        {"role": "assistant", "content": "Goethe wrote it. <|im_end|> It is\na play."},
    ],
    "documents": [{"doc_id": "d1", "text": "Faust is a play by Goethe. It has two parts.", "title": "Faust"}],
}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a chat template."""
    path = tiny.save_llama(tmp_path_factory.mktemp("chat"), reflection=False, context=2048)
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(TALK), encoding="utf-8")
    return path


def run(*arguments: object) -> int:
    return main(["intrinsic", *map(str, arguments)])


@pytest.mark.engine
@pytest.mark.parametrize("name", [kind.name for kind in catalog()])
def test_every_intrinsic_answers(name, chat_model, talk, tmp_path, capsys):
    (kind,) = (kind for kind in catalog() if kind.name == name)
    ends = "assistant" in kind.needs.ends_with
    if not ends:
        talk.write_text(json.dumps({**TALK, "messages": TALK["messages"][:1]}), encoding="utf-8")
    extra = [
        part
        for argument in (*kind.needs.arguments, *kind.needs.optional)
        for part in ("--argument", f"{argument}=be short")
    ]
    given = ["--conversation", talk, "--model", chat_model, "--engine", "transformers", *extra]
    assert run(name, *given, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert "diagnostics" in result
    if name in ("hallucination_detection", "citation_generation"):
        response = TALK["messages"][1]["content"]
        assert [response[s["begin"] : s["end"]] for s in result["sentences"]] == [
            s["text"] for s in result["sentences"]
        ]
        assert all(0 < s["judgment"]["coverage"] <= 1 for s in result["sentences"])
    assert run(name, *given) == 0
    assert capsys.readouterr().out.strip()


def test_without_a_name_they_are_listed(capsys):
    assert run() == 0
    *listed, executions, dialects, published = capsys.readouterr().out.splitlines()
    assert run(*published.split()[-1:]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ibm-granite/granitelib-rag-r1.0 (commit 2f0b2c79; ")
    assert last.startswith("ibm-granite/granite-switch-4.1-30b-preview (not pinned; Apache-2.0)")
    assert [line.split()[0] for line in listed] == [kind.name for kind in catalog()]
    assert executions == "executions: tokens, combined, adapter, prompt, overlap, bm25"
    assert dialects.startswith("dialects: chat, granite-3.2, ")


GUEST = """
from dataclasses import replace
from selfrag.intrinsics.questions import Answerability

class Politeness(Answerability):
    name, summary = "politeness", "is the question polite?"
    chat = replace(Answerability.chat, intrinsic="politeness", task="Reply: answerable or unanswerable.")

def shouted(dialect, intrinsic):
    return replace(Answerability.chat, intrinsic=intrinsic, task=f"SAY IT IN {dialect.upper()}")
"""


@pytest.mark.engine
def test_other_packages_add_intrinsics_and_dialects(chat_model, tmp_path, monkeypatch, capsys):
    """As an installed distribution does it: entry points in the groups `selfrag.intrinsics` and `selfrag.dialects`."""
    (tmp_path / "guest_intrinsics.py").write_text(GUEST)
    info = tmp_path / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[selfrag.intrinsics]\npoliteness = guest_intrinsics:Politeness\nother = guest_intrinsics:Politeness\n"
        "broken = guest_intrinsics_missing:X\n[selfrag.dialects]\nshouted = guest_intrinsics:shouted\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert intrinsics()[-3:] == ("broken", "other", "politeness")
    asked = codec_of(find("Politeness"), "shouted").encode(State((Message("user", "Q?"),)))
    assert asked.prompt.messages[0].content.endswith("SAY IT IN SHOUTED")
    given = ["Q?", "--passage", "x", "--model", chat_model, "--engine", "transformers"]
    for name in ("politeness", "answerability"):
        assert run(name, *given, "--dialect", "shouted") == 0
        assert "answerable " in capsys.readouterr().out
    for name, message in (
        ("other", "the entry point 'other' of selfrag.intrinsics names no Capability of that name"),
        ("broken", "the entry point 'broken' of selfrag.intrinsics cannot be loaded: ModuleNotFoundError"),
        ("none", "answer_relevance_rewriter, broken, other, politeness"),
    ):
        assert run(name, *given) == 2
        assert message in capsys.readouterr().err
