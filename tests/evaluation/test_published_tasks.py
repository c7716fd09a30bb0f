"""Published tasks: their files in the real schemas, wordings byte for byte, settings, bad files, their page."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from table5 import CHOOSE, CITE, CLAIM

from retrieval.errors import UserError
from selfrag.cli.main import main
from selfrag.decoding.driver import drive
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed
from selfrag.engines.scripted import ScriptedEngine
from selfrag.evaluation.items import Item
from selfrag.evaluation.presets import COLUMNS, PRESETS, Given, preset, rows
from selfrag.evaluation.systems import system_of_task
from selfrag.evaluation.tables import compact
from selfrag.evaluation.task_files import read_task, read_tasks
from selfrag.reflection.weights import Weights

CTX = [{"id": "7", "title": "Ann", "text": "Ann is a painter.", "score": "1.6"}, {"title": "Web", "text": "Found."}]

POPQA = {
    "id": 4222362,
    "subj": "Ann Roe",
    "prop": "occupation",
    "s_pop": 42,
    "possible_answers": '["painter", "artist"]',
    "question": "What is Ann Roe's occupation?",
    "ctxs": CTX,
}
TRIVIA = {"question": "Who painted it?", "answers": ["Ann Roe", "A. Roe"], "ctxs": CTX}
HEALTH = {"claim": "Tea cures all.", "question": "Tea cures all.", "answers": ["REFUTES"], "ctxs": CTX}
ARC = {
    "id": "Mercury_1",
    "question": "What is hot?",
    "choices": {"text": ["Ice", "The sun", "Snow"], "label": ["1", "2", "3"]},
    "answerKey": "2",
    "ctxs": CTX,
}
BIO = {"topic": "Ann Roe", "input": "Question: Tell me a bio of Ann Roe.", "cat": ["rare", "Europe"], "ctxs": CTX}
ASQA = {
    "sample_id": "-633",
    "question": "Who has the record?",
    "qa_pairs": [
        {"context": "x", "question": "Most wins?", "short_answers": ["Ann", "Ann Roe"], "wikipage": None},
        {"context": "x", "question": "Most goals?", "short_answers": ["Bob"], "wikipage": "Goals"},
    ],
    "annotations": [{"knowledge": [], "long_answer": "Ann and Bob."}, {"knowledge": [], "long_answer": "Bob."}],
    "docs": [{"id": "9", "title": "T", "text": "Ann won.", "score": 0.8, "answers_found": [1, 0]}] * 7,
}
QAMPARI_ALCE = {"id": "q1", "question": "Which films?", "answers": [["Jaws"], ["Duel", "The Duel"]], "docs": CTX}
QAMPARI = {
    "qid": "12__wikidata_simple__dev",
    "question_text": "Which films?",
    "answer_list": [
        {"answer_text": "Jaws", "aliases": ["Jaws", "jaws"], "proof": [{"proof_text": "Jaws is.", "pid": "1"}]}
    ],
    "entities": [],
}
ROWS: dict[str, dict[str, Any]] = {
    "popqa": POPQA,
    "triviaqa": TRIVIA,
    "pubhealth": HEALTH,
    "arc-challenge": ARC,
    "biographies": BIO,
    "asqa": ASQA,
    "qampari": QAMPARI_ALCE,
}


def lines(folder: Path, *rows: Any, name: str = "file.jsonl") -> Path:
    path = folder / name
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def read(path: Path, name: str, protocol: str = "paper", **options: Any) -> tuple[Item, ...]:
    return read_task(Given(path, preset(name), protocol), **options).items


def one(folder: Path, name: str, protocol: str = "paper") -> Item:
    (item,) = read(lines(folder, ROWS[name]), name, protocol)
    return item


def test_every_preset_reads_its_file_and_knows_its_metrics(tmp_path: Path) -> None:
    assert list(ROWS) == list(PRESETS)
    for name, what in PRESETS.items():
        for protocol in what.protocols:
            file = read_task(Given(lines(tmp_path, ROWS[name]), what, protocol))
            assert (file.name, file.task.preset, file.task.kind) == (name, f"{name}/{protocol}", what.kind)
            assert file.task.as_dict()["preset"] == f"{name}/{protocol}"
            assert 1 <= len(file.items[0].passages) <= what.protocols[protocol].passages
            assert set(what.published) <= {*what.metrics, *what.judged}


READ: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("popqa", POPQA, {"id": "4222362", "answers": ("painter", "artist"), "query": "What is Ann Roe's occupation?"}),
    ("triviaqa", TRIVIA, {"id": "row-1", "answers": ("Ann Roe", "A. Roe")}),
    ("pubhealth", HEALTH, {"label": "false", "options": ("true", "false")}),
    ("arc-challenge", ARC, {"label": "B", "options": ("Ice", "The sun", "Snow")}),
    ("biographies", BIO, {"topic": "Ann Roe", "query": "Ann Roe", "references": ()}),
    ("asqa", ASQA, {"answer_sets": (("Ann", "Ann Roe"), ("Bob",)), "references": ("Ann and Bob.", "Bob.")}),
    ("qampari", QAMPARI_ALCE, {"answer_sets": (("Jaws",), ("Duel", "The Duel"))}),
    ("qampari", QAMPARI, {"id": QAMPARI["qid"], "answer_sets": (("Jaws", "jaws"),), "query": "Which films?"}),
]


@pytest.mark.parametrize(("name", "row", "wanted"), READ)
def test_a_row_of_a_public_file_is_an_item(
    tmp_path: Path, name: str, row: dict[str, Any], wanted: dict[str, Any]
) -> None:
    (item,) = read(lines(tmp_path, row), name, searched=True)
    assert {key: getattr(item, key) for key in wanted} == wanted


def test_passages_have_ids_and_a_protocol_keeps_the_first(tmp_path: Path) -> None:
    assert [(p.id, p.title) for p in one(tmp_path, "popqa").passages] == [("7", "Ann"), ("p2", "Web")]
    assert [p.id for p in one(tmp_path, "asqa").passages] == ["9", "9#2", "9#3", "9#4", "9#5"]
    many = lines(tmp_path, BIO | {"ctxs": [{"text": str(n)} for n in range(12)]})
    assert [len(read(many, "biographies", how)[0].passages) for how in ("paper", "official")] == [10, 5]
    wrapped = tmp_path / "b.json.gz"  # one array is read as lines are
    wrapped.write_bytes(gzip.compress(json.dumps({"data": [ASQA], "args": []}).encode()))
    assert read(wrapped, "asqa") == read(lines(tmp_path, ASQA, name="c.jsonl.gz"), "asqa")
    with pytest.raises(UserError, match=r"file\.jsonl:2: id '4222362' occurs twice, first in row 1"):
        read(lines(tmp_path, POPQA, POPQA), "popqa")


LIST = "Answer the following question with a list of all correct answers, separated by commas."
OPTIONS = "\nA: Ice\nB: The sun\nC: Snow"
ANN = "[1] Ann\nAnn is a painter.\n\n"
WON = "".join(f"[{n}] T\nAnn won.\n\n" for n in range(1, 6))
OURS = {
    "claims": "Is the following statement correct or not? Say true if it's correct; otherwise say false.",
    "choices": "Given four answer candidates, A, B, C and D, choose the best answer choice.",
    "asqa": "Answer the following question. The question may be ambiguous and have multiple correct answers, and in"
    " that case, you have to provide a long-form answer including all correct answers.",
}
PROMPTS = {  # the documents of a baseline with retrieval, and all that a model without is asked
    **{
        f"popqa/{name}": (ANN, "What is Ann Roe's occupation?") for name in ("paper", "table-5", "official", "baseline")
    },
    **{f"triviaqa/{name}": (ANN, "Who painted it?") for name in ("paper", "table-5", "official", "baseline")},
    **{f"pubhealth/{p}": (ANN, f"{OURS['claims']}\n\n## Input:\n\nTea cures all.") for p in ("paper", "official")},
    "pubhealth/table-5": (ANN, f"{CLAIM}\n\n## Input:\n\nTea cures all."),
    **{f"pubhealth/{p}": (ANN, f"{CLAIM}\n\n### Input:\nTea cures all.") for p in ("baseline", "baseline-scored")},
    "arc-challenge/paper": (ANN, f"{OURS['choices']}\n\n## Input:\n\nWhat is hot?{OPTIONS}"),
    "arc-challenge/table-5": (ANN, f"{CHOOSE}\n\n## Input:\n\nWhat is hot?{OPTIONS}"),
    "arc-challenge/official": (ANN, f"{OURS['choices']}\n\n### Input:\nWhat is hot?{OPTIONS}\nD: "),
    **{
        f"arc-challenge/{p}": (ANN, f"{CHOOSE}\n\n### Input:\nWhat is hot?{OPTIONS}")
        for p in ("baseline", "baseline-scored")
    },
    **{f"biographies/{p}": (ANN, "Tell me a bio about Ann Roe") for p in ("paper", "baseline")},
    "biographies/official": (ANN, "Question: Tell me a bio of Ann Roe."),
    "asqa/paper": ("[1] T\nAnn won.\n\n", f"{OURS['asqa']}\n\n## Input:\n\nWho has the record?"),
    "asqa/official": ("[1] T\nAnn won.\n\n", f"{OURS['asqa']}## Input:\n\nWho has the record?"),
    "asqa/baseline": (WON, f"{CITE}\n\n### Input:\nWho has the record?"),
    "qampari/paper": (ANN, f"{LIST}\n\n## Input:\n\nWhich films?"),
    "qampari/baseline": (f"{ANN}[2] Web\nFound.\n\n", f"{LIST}\n\n### Input:\nWhich films?"),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = tiny.byte_level_tokenizer()
    made.chat_template = "{% for m in messages %}<user>{{ m['content'] }}<bot>{% endfor %}"
    return made


@pytest.mark.parametrize("mark", [f"{name}/{how}" for name, one in PRESETS.items() for how in one.protocols])
@pytest.mark.parametrize("system", ["base", "rag", "finetuned"])
def test_the_whole_prompt_of_a_protocol_byte_for_byte(tmp_path: Path, tokenizer: Any, mark: str, system: str) -> None:
    """Nothing of ours is said; short tasks are read with one document, ASQA with five (section 4.3)."""
    task = preset(mark.partition("/")[0]).task(mark.partition("/")[2])
    found = system_of_task(system, tokenizer, task)
    item = one(tmp_path, *mark.split("/"))
    engine = ScriptedEngine(lambda request: Failed("seen"), tokenizer.eos_token_id)
    list(drive([found.decoder(item, task)], engine, None))
    documents, asked = PROMPTS[mark]
    want = {
        "base": f"<user>{asked}<bot>",
        "rag": f"<user>{documents}{asked}<bot>",
        "finetuned": f"### Instruction:\n{asked}\n\n### Response:\n",
    }[system]
    assert tokenizer.decode(engine.requests[0].prompt_ids) == want


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("popqa", {"possible_answers": "[]"}, "'possible_answers' is empty"),
        ("popqa", {"possible_answers": '[" "]'}, "'possible_answers' has a blank answer"),
        ("popqa", {"possible_answers": None}, "no 'answers' or 'possible_answers' or 'answer'"),
        ("popqa", {"ctxs": []}, "no passages: 'ctxs' or 'docs' is missing or empty"),
        ("popqa", {"ctxs": [{"title": "T"}]}, "passage 1 of 'ctxs' needs a 'text'"),
        ("popqa", {"id": True}, "'id' must be text or a whole number"),
        ("pubhealth", {"answers": ["mixture"]}, "'answers' must be true or false"),
        ("arc-challenge", {"answerKey": "5"}, "'answerKey' '5' is none of the labels 1, 2, 3"),
        ("arc-challenge", {"choices": {"text": ["a"], "label": ["A", "B"]}}, "of the same length"),
        ("arc-challenge", {"choices": {"text": ["a", "a"], "label": ["1", "2"]}}, "two options are equal"),
        ("asqa", {"qa_pairs": []}, "'qa_pairs' must be a list of at least one"),
        ("qampari", {"answers": [[]]}, "'answers' is empty"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, name: str, change: dict[str, Any], message: str) -> None:
    changed = ROWS[name] | {"id": "b", "sample_id": "b"} | change
    second = {key: value for key, value in changed.items() if value is not None}
    with pytest.raises(UserError, match=rf"file\.jsonl:2: .*{message}"):
        read(lines(tmp_path, ROWS[name], second), name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "x.json: no rows"),
        (b"[\n3\n]", "x.json: row 1: a row must be an object, not int"),
        (b'[\n{"question":\n "\xff"}]', "x.json:3: not UTF-8"),
        (b"{]\n", "x.json:1: "),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.json", "triviaqa")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["label", "text"]), inner),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([*ARC, *ASQA, *QAMPARI, *HEALTH, *BIO]), ANYTHING))
def test_whatever_a_row_holds_it_is_an_item_or_a_named_error(record: dict[str, Any]) -> None:
    for what in PRESETS.values():
        with contextlib.suppress(UserError):
            item = what.schema.item(record)
            assert item.query.strip()


def test_settings_are_the_policy_where_it_differs_from_the_defaults() -> None:
    """Algorithm 1 line 6: the critiques at every segment. Eq. 3: an option's critique is added to its probability."""
    assert preset("popqa").settings() == {"passages": 10, "undefined": "force"}
    closed = {"segment_tokens": 50, "undefined": "force", "aggregate": "sum"}
    assert preset("pubhealth").settings() == preset("arc-challenge").settings("table-5") == closed
    assert preset("asqa").settings() == {"threshold": 0.0, "segment_tokens": 300, "undefined": "force"}
    official = preset("asqa").settings("official")
    assert (official["mode"], official["weights"], official["likelihood"]) == ("always", Weights(isuse=0.0), "none")
    short = preset("popqa").settings("official")
    assert (short["retrieve_test"], short["undefined"], short["weights"]) == ("log_ratio", "zero", Weights(isuse=1.0))
    assert [(one.new_tokens, one.segments) for one in map(preset("asqa").task, preset("asqa").protocols)] == [
        (1024, 7),
        (1800, 6),
        (100, 1),
    ]
    written, scored = preset("pubhealth").task("baseline"), preset("pubhealth").task("baseline-scored")
    assert (written.headline, written.new_tokens, written.as_dict()["written"]) == ("option_match", 50, True)
    assert (scored.headline, scored.written) == ("accuracy", False)
    for what in PRESETS.values():
        for name, how in what.protocols.items():
            if how.decoding is not None:
                rebuilt = Decoding(**what.settings(name), max_segments=how.decoding.max_segments)
                assert rebuilt == how.decoding, (what.name, name)


def test_what_a_command_line_names(tmp_path: Path) -> None:
    assert Given.parse("a/b.jsonl") == Given(Path("a/b.jsonl"))
    assert Given.parse("popqa=x=y.jsonl") == Given(Path("x=y.jsonl"), preset("popqa"))
    assert Given.parse("asqa/official=f.json") == Given(Path("f.json"), preset("asqa"), "official")
    own = tmp_path / "popqa=x.jsonl"
    own.touch()
    assert Given.parse(str(own)).preset is None
    with pytest.raises(UserError, match="unknown task 'popkuh'; known: popqa, triviaqa"):
        Given.parse("popkuh=f.jsonl")
    with pytest.raises(UserError, match="popqa has no protocol 'mine'; it has paper, table-5, official, baseline"):
        Given.parse("popqa/mine=f.jsonl")
    with pytest.raises(UserError, match="two files are called popqa"):
        read_tasks([Given.parse("popqa=a.jsonl"), Given.parse("popqa/official=b.jsonl")])


def test_tasks_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tasks"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in PRESETS)
    assert main(["eval", "tasks", "asqa"]) == 0
    shown = capsys.readouterr().out
    assert r"correct answers.## Input:\n\nQUESTION'" in shown
    assert "str_em: 30.0 (7b), 31.7 (13b)" in shown
    assert main(["eval", "tasks", "askew"]) == 2
    assert "unknown task 'askew'; known: popqa" in capsys.readouterr().err


PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "tasks.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_presets() -> None:
    found = re.search(r"<!-- tasks -->\n(.*?)<!-- /tasks -->", PAGE, flags=re.S)
    assert found[1] == compact(COLUMNS, rows())
