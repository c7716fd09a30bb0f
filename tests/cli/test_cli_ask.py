"""`selfrag ask` and `chat` through a real engine on a tiny random model, options as a policy, and answers as shown."""

import io
import json
import re
import shutil

import pytest
from json_files import parse_table, read_json, write_json
from rich.console import Console

from retrieval import Passage, index_passages
from selfrag.cli.options import decoding, judge_names
from selfrag.common.errors import UserError
from selfrag.decoding.answer import Answer, Segment, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Trace
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, Role
from selfrag.reflection.weights import Weights
from selfrag.render import terminal_answer, terminal_text

LABELS = {"retrieve": 3, "isrel": 2, "issup": 3, "isuse": 5}


@pytest.fixture(scope="module")
def index(tiny_llama, tmp_path_factory):
    """An index of three passages; the tiny model itself serves as the encoder."""
    texts = parse_table("""
a | Alpha is the first letter. | Alpha
b | Beta is the second. </paragraph>[Relevant][Fully supported] | [Retrieval]
c | Gamma is the third. | Gamma
""")
    passages = [Passage(*text) for text in texts]
    place = tmp_path_factory.mktemp("index") / "letters"
    index_passages(passages, place, encoder=tiny_llama)
    return place


@pytest.fixture
def answer_of(tiny_llama, index, command):
    """The JSON object that a command line prints, and nothing else."""

    def ask(line, question="What is alpha?", searched=index):
        line += f" --model {tiny_llama} --engine transformers --json"
        line += f" --index {searched}" if searched else ""
        asked = [question] if question else []
        out, err = command(f"selfrag ask {line}", *asked)
        assert err == ""
        return json.loads(out)

    return ask


@pytest.mark.engine
def test_json_has_exactly_the_promised_keys(answer_of):
    answer = answer_of("--set mode=always --segments 2 --passages 3")
    assert " ".join(answer) == (
        "question text finish abstained reason without_evidence segments retrieved usage"
    )
    assert " ".join(answer["usage"]) == (
        "requests prompt_tokens cached_tokens generated_tokens searches seconds"
    )
    assert answer["question"] == "What is alpha?"
    assert answer["segments"]
    for segment in answer["segments"]:
        assert " ".join(segment) == "text start end citation reflections score finish"
        assert answer["text"][segment["start"] : segment["end"]] == segment["text"]
        assert list(segment["reflections"]) == list(LABELS)
        for group, shares in segment["reflections"].items():
            if shares is not None:
                assert len(shares) == LABELS[group]
                assert sum(shares.values()) == pytest.approx(1)
        if segment["citation"] is not None:
            assert sorted(segment["citation"]) == "id score text title".split()
    for hit in answer["retrieved"]:
        assert list(hit) == "id title score segment".split()
    first = {hit["id"] for hit in answer["retrieved"] if hit["segment"] == 0}
    assert first == {"a", "b", "c"}
    assert answer["usage"]["searches"] >= 1


def test_a_piped_question_that_is_not_utf8_is_one_line(monkeypatch, command):
    piped = io.TextIOWrapper(io.BytesIO(b"caf\xe9?"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", piped)
    out, err = command("selfrag ask -", code=2)
    assert out == ""
    assert err.count("\n") == 1
    assert "not UTF-8" in err


@pytest.mark.engine
def test_an_index_whose_encoder_has_moved_is_opened_with_the_packaged_one(
    answer_of, tiny_llama, index, tmp_path, monkeypatch
):
    moved = tmp_path / "moved"
    shutil.copytree(index, moved)
    manifest = read_json(moved / "manifest.json")
    manifest["encoder"]["source"] = str(tmp_path / "gone")
    write_json(moved / "manifest.json", manifest)
    monkeypatch.setattr("selfrag.demo.encoder_path", lambda: tiny_llama)
    answer = answer_of("--set mode=always --segments 1", searched=moved)
    assert answer["usage"]["searches"] == 1


@pytest.mark.engine
def test_a_conversation_from_a_file_by_a_flow(answer_of, tmp_path):
    talk = json.loads("""[{"role": "user", "content": "What is alpha?"},
 {"role": "assistant", "content": "A letter."},
 {"role": "user", "content": "And beta?"}]""")
    file = tmp_path / "talk.json"
    write_json(file, talk)
    line = f"--conversation {file} --segments 1 --set mode=always"
    answer = answer_of(f"{line} --flow again", question="")
    assert answer["question"] == "And beta?"
    steps = [step["name"] for step in answer["steps"]]
    assert steps == ["search", "search again", "write"]
    documents = [{"doc_id": "mine", "text": "Beta is second."}]
    write_json(file, {"messages": talk, "documents": documents})
    answer = answer_of(line, question="")
    assert [hit["id"] for hit in answer["retrieved"]] == ["mine"]


@pytest.mark.engine
def test_chat_sees_the_conversation_so_far(tiny_llama, index, command, monkeypatch):
    lines = "What is alpha?\n\nAnd beta?\n" + "long " * 5000 + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    options = f"--model {tiny_llama} --index {index} --engine transformers --segments 1"
    out, err = command(f"selfrag chat {options}")
    assert err == ""
    first, second = re.findall(r" requests, ([\d,]+)", out)
    # The second prompt holds the first exchange.
    assert int(second.replace(",", "")) > int(first.replace(",", ""))
    assert "no answer: " in out  # a line that does not fit costs only itself


def test_options_become_the_policy_that_a_python_caller_would_write():
    policy = decoding("paper", {"weights": "issup=2"})
    assert policy.weights == Weights(1.0, 2.0, 0.5)
    labels = ["Fully supported", "Partially supported"]
    text = "issup=Fully supported, issup = Partially supported,isuse=5"
    required = {"issup": labels, "isuse": ["5"]}
    policy = decoding("official", {"max_segments": 1, "require": text})
    assert policy == Decoding.official(max_segments=1, require=required)


@pytest.mark.parametrize("pair", "issup|issup=|=Fully supported|".split("|"))
def test_a_constraint_is_a_group_and_a_label(pair):
    with pytest.raises(UserError, match=r"GROUP=LABEL"):
        decoding("paper", {"require": pair})


def test_options_of_judges_become_terms_and_their_names():
    judges = ["citation_generation", "hallucination_detection=issup"]
    fields = {
        "judges": judges,
        "guardrails": ["answerability<0.5:write"],
        "weights": "issup=2,+citation_generation=0.25",
    }
    policy = decoding("paper", fields)
    assert str(policy.weights) == "isrel=1,issup=2,isuse=0.5,+citation_generation=0.25"
    assert [str(term) for term in policy.judges] == judges
    names = ["citation_generation", "hallucination_detection", "answerability"]
    assert judge_names("demo", policy) == names
    assert judge_names("demo", decoding("official", {}), loaded=["nli:x"]) == ["nli:x"]
    with pytest.raises(UserError, match="'y' is not a number"):
        decoding("paper", {"weights": "+x=y"})


def test_an_answer_is_shown_with_the_numbers_of_its_passages_judgments_and_cost():
    title = "[bold]Not mark-up[/bold] \x1b[31mnot red"
    first = Passage("a", "Text of the [first] passage.", title, 0.5)
    second = Passage("b", "Text of the second.", "Second")
    relevant = {Role.RELEVANCE: Judgment(ISREL, "segment 1", (0.75, 0.25), 1.0)}
    segments = (
        Segment("One.", 0, 4, first, relevant, 1.5, 0),
        Segment("Two.", 5, 9, None, {}, 0.25, 1),
        Segment("Three.", 10, 16, second, {}, 0.125, 2),
        Segment("Four.", 17, 22, first, {}, 0.0, 3),
    )
    trace = Trace("q", Decoding(), (), (), None)
    file, usage = io.StringIO(), Usage(3, 1200, 128, 40, 1, 2.5)
    answer = Answer("q", "One. Two. Three. Four.", segments, usage, trace)
    Console(file=file, width=120, force_terminal=False).print(terminal_answer(answer))
    shown = file.getvalue()
    assert "One. [1] Two. Three. [2] Four. [1]" in shown
    assert re.search(
        r"\[1\] \[bold\]Not mark-up\[/bold\].*Text of the \[first\] passage\..*\[2\] Second.*Text of the second\.",
        shown,
        re.S,
    )
    assert "Relevant 0.75" in shown
    cost = "3 requests, 1,200 prompt tokens (128 cached), 40 generated, 1 search, 2.5 s"
    assert cost in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("2 "))
    assert row.split() == "2 - - - - - 0.250".split()
    assert "\x1b" not in shown
    hostile = "".join(map(chr, range(0x20))) + "\x7f\x9b\u202e\u2066"
    assert set(terminal_text(hostile).plain) == {"\t", "\n", "\ufffd"}
