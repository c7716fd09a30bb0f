"""The demo rows from a small made-up copy of the source files: layouts, splits, determinism and strict reading."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from demo_rows import claims, instructions, long_form, short_form
from demo_rows.drafts import Cutter, Lengths
from demo_rows.instructions import looks_up
from demo_rows.mixture import Mixture, make, mix
from demo_rows.sources import load
from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.evaluation.normalisation import contains_any
from selfrag.training.rows import Evidence, Row, Text, Token, read_rows

CITIES = ("Paris", "Rome", "Oslo", "Bern", "Kyiv", "Lima", "Riga", "Cairo", "Quito", "Seoul")
FACT = "Is the following statement correct or not? Say true if it's correct; otherwise say false.\n\n## Input:\n\n"


def _lines(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def _body(city: str) -> str:
    return (
        f"{city} is a large city on a river with many old bridges and markets. "
        f"Its mayor in 1990 was a person called Mayor {city}son of the city. "
        "The people there like to walk along the water in the evening. "
        "Trains leave every hour for the mountains and for the sea. "
        "The old town has a museum, a theatre, a library and three schools. "
    )


def _pair(dataset: str, kind: str, instruction: str, output: str, gold: list[dict] | None = None) -> dict:
    pair = {"id": instruction, "dataset": dataset, "kind": kind, "instruction": instruction, "output": output}
    return pair | ({"gold_passages": gold} if gold else {})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    corpus = [{"id": f"w{i}", "title": city, "text": _body(city)} for i, city in enumerate(CITIES)]
    _lines(tmp_path / "corpus/wiki-mix.jsonl.gz", corpus)
    queries = [
        {"id": f"nq-{i}", "text": f"who was mayor of {city.lower()}", "split": "train", "answers": [f"Mayor {city}son"]}
        for i, city in enumerate(CITIES[:8])
    ] + [{"id": "nq-9", "text": "who was mayor of seoul", "split": "dev", "answers": ["Mayor Seoulson"]}]
    _lines(tmp_path / "corpus/queries.jsonl", queries)
    qrels = ["query-id\tcorpus-id\tscore", *(f"nq-{i}\tw{i}\t1" for i in (*range(8), 9))]
    (tmp_path / "corpus/qrels.tsv").write_text("\n".join(qrels) + "\n")
    gold = [{"title": "Chess", "text": "Chess is a board game for two players."}]
    sources = [*gold, {"title": "Go", "text": "Go is an old game played with stones."}]
    summary = "Chess is a board game. Go is played with stones."
    pairs = [
        _pair("raschka", "instruction", "Rhyme 'cat'.", "hat"),
        _pair("raschka", "instruction", "What is the capital of Peru?", "Lima"),
        _pair("arc", "multiple_choice", "Choose.\n\n## Input:\n\nQ?\nA: a\nB: b", "B"),
        *(_pair("fever", "fact_check", f"{FACT}Chess {i}.", "true", gold) for i in range(3)),
        _pair("quotesum", "long_form", "what is chess?", summary, sources),
    ]
    _lines(tmp_path / "train/pairs.jsonl", pairs)
    label = {"instruction": "what is chess", "preceding": "", "output": "", "evidence": gold[0]}
    critic = [
        {"id": "k1", "dataset": "nomiracl", "group": "IsRel", "rule": "judged_non_relevant", "label": "Irrelevant"},
        {"id": "k2", "dataset": "wice", "group": "IsSup", "rule": "gold_evidence", "label": "Partially supported"},
        {"id": "k4", "dataset": "fever", "group": "IsSup", "rule": "gold_evidence", "label": "Fully supported"},
        {"id": "k5", "dataset": "fever", "group": "IsSup", "rule": "gold_evidence", "label": "Fully supported"},
        {"id": "k3", "dataset": "gsm8k", "group": "IsUse", "rule": "solution_cut_before_the_end", "label": "2"},
    ]
    outputs = {
        "k2": "Chess is a game for two or three players.",
        "k3": "First",
        "k4": "chess 1.",
        "k5": "Chess is old.",
    }
    asked = {"k3": "Add 2 and 2."}
    critic = [label | {"instruction": asked.get(r["id"], "what is chess")} | r for r in critic]
    _lines(tmp_path / "train/critic.jsonl.gz", [row | {"output": outputs.get(row["id"], "")} for row in critic])
    choices = [
        {"dataset": "arc", "question": f"{i}?", "options": [f"no{i}", f"yes{i}"], "label": "B"} for i in range(4)
    ]
    _lines(tmp_path / "intrinsics/uncertainty_train.jsonl", choices)
    question = {"dataset": "squad2", "conversation": [{"role": "user", "content": "Who won?"}], "label": "unanswerable"}
    documents = [{"doc_id": "d1", "title": "Chess", "text": gold[0]["text"]}]
    _lines(tmp_path / "intrinsics/answerability_train.jsonl.gz", [{"id": "u1", "documents": documents} | question])
    return tmp_path


def _tokens(row: Row) -> list[str]:
    return [part.token if isinstance(part, Token) else type(part).__name__ for part in row.target]


def _rows(data: Path, **changes) -> list[Row]:
    return list(mix(load(data), Mixture(heldout_per_mille=0, **changes)).train)


def test_layouts(data: Path) -> None:
    rows = _rows(data)
    by_source = {row.source: _tokens(row) for row in rows}
    retrieved = ["[Retrieval]", "Evidence"]
    assert by_source["nq/gold"] == [*retrieved, "[Relevant]", "Text", "[Fully supported]", "[Utility:5]"]
    assert by_source["fever/verdict"] == [*retrieved, "[Relevant]", "Text", "[Fully supported]", "[Utility:5]"]
    for source in ("nq/bm25", "squad2/unanswerable", "nomiracl/judged"):
        assert by_source[source] == [*retrieved, "[Irrelevant]", "Text", "[Utility:1]"]
    assert by_source["wice/issup"] == [*retrieved, "[Relevant]", "Text", "[Partially supported]", "[Utility:3]"]
    assert by_source["gsm8k/utility_2"] == ["[No Retrieval]", "Text", "[Utility:2]"]
    assert by_source["raschka/instruction"] == ["[No Retrieval]", "Text", "[Utility:5]"]
    step = ["[Retrieval]", "Evidence", "[Relevant]", "Text", "[Fully supported]"]
    assert by_source["quotesum/summary"] == [*step, *step, "[Utility:5]"]


def test_labelled_claims_that_no_pair_has_are_fact_checks(data: Path) -> None:
    rows = [r for r in _rows(data, claims=claims.Quota(labelled=9, copies=2)) if r.source == "fever/labelled_verdict"]
    assert [(row.instruction, row.target[3]) for row in rows] == [(f"{FACT}Chess is old.", Text("true"))] * 2


def test_each_letter_is_right_equally_often(data: Path) -> None:
    rows = [r for r in _rows(data, instructions=instructions.Quota(listed=4)) if r.source == "arc/listed"]
    assert sorted(row.target[1].text for row in rows) == ["A", "A", "B", "B"]
    for row in rows:
        assert f"{row.target[1].text}: yes" in row.instruction


def test_every_target_is_well_formed(data: Path) -> None:
    for row in _rows(data):
        tokens = _tokens(row)
        assert sum(token.startswith("[Utility:") for token in tokens) == 1
        assert tokens[-1].startswith("[Utility:")
        assert tokens.count("[Relevant]") + tokens.count("[Irrelevant]") == tokens.count("Evidence")
        assert not ("[Irrelevant]" in tokens and "[Fully supported]" in tokens)


def test_gold_passages_hold_the_answer_and_negatives_do_not(data: Path) -> None:
    rows = _rows(data)
    gold = [row for row in rows if row.source == "nq/gold"]
    assert len(gold) == 8
    for row in gold:
        passage, answer = row.target[1], row.target[3]
        assert isinstance(passage, Evidence)
        assert isinstance(answer, Text)
        assert answer.text in passage.passage.text
    answers = {row.instruction: row.target[3].text for row in gold if isinstance(row.target[3], Text)}
    negatives = [row for row in rows if row.source in ("nq/bm25", "nq/answer_removed", "nq/random")]
    assert {"nq/bm25", "nq/answer_removed"} <= {row.source for row in negatives}
    for row in negatives:
        passage = row.target[1]
        assert isinstance(passage, Evidence)
        assert not contains_any(passage.passage.text, [answers[row.instruction]])


def test_nothing_of_a_development_query_is_used(data: Path) -> None:
    rows = _rows(data)
    assert not any("seoul" in row.instruction.casefold() for row in rows)
    assert not any(isinstance(p, Evidence) and p.passage.id == "w9" for row in rows for p in row.target)


def test_the_same_seed_gives_the_same_files_and_instructions_are_split(data: Path, tmp_path: Path) -> None:
    mixture = Mixture(heldout_per_mille=400)
    first, second = tmp_path / "a", tmp_path / "b"
    manifest = make(data, first, mixture)
    assert make(data, second, mixture) == manifest
    for name in ("rows.jsonl", "heldout.jsonl", "manifest.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    train, heldout = list(read_rows(first / "rows.jsonl")), list(read_rows(first / "heldout.jsonl"))
    assert train
    assert heldout
    assert not {row.instruction for row in train} & {row.instruction for row in heldout}
    assert (manifest["train"]["rows"], manifest["heldout"]["rows"]) == (len(train), len(heldout))
    assert sum(manifest["train"]["first"].values()) == len(train)
    assert [r.id for r in mix(load(data), Mixture(seed=1)).train] != [r.id for r in train]


def test_quotas_bound_every_builder(data: Path) -> None:
    rows = _rows(
        data,
        short_form=short_form.Quota(0, 0, 0, 0, 0, 0, 0, 0),
        claims=claims.Quota(1, 0, 0, 0),
        instructions=instructions.Quota(0, 0, 0, 0, 0),
        long_form=long_form.Quota(0, 0, 0),
    )
    assert {row.source for row in rows} == {"nq/gold", "fever/verdict", "raschka/instruction", "quotesum/summary"}
    assert sum(row.source == "fever/verdict" for row in rows) == 1


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("What is the capital of Peru?", True),
        ("Describe how a rainbow is formed.", True),
        ("What is the opposite of 'tall'?", False),
        ("What is the square root of 225?", False),
        ("Write a poem about Peru.", False),
        ("What is this?\n\n## Input:\n\nPenguin", False),
    ],
)
def test_questions_of_fact_are_no_example_of_no_retrieval(instruction: str, expected: bool) -> None:
    assert looks_up(instruction) is expected


def test_a_missing_file_and_a_bad_row_are_named(data: Path) -> None:
    pairs = data / "train/pairs.jsonl"
    pairs.write_text(pairs.read_text() + '{"id": "x"}\n')
    with pytest.raises(UserError, match=r"pairs\.jsonl:8: 'dataset' must be text"):
        load(data)
    choices = data / "intrinsics/uncertainty_train.jsonl"
    kept = choices.read_text()
    for label in ("E", "AB", ""):
        choices.write_text(json.dumps({"dataset": "a", "question": "q", "options": ["x"], "label": label}))
        pairs.write_text("")
        with pytest.raises(UserError, match=r"uncertainty_train\.jsonl:1: 'label' must be the letter of an option"):
            load(data)
    choices.write_text(kept)
    pairs.unlink()
    with pytest.raises(UserError, match=r"pairs\.jsonl is missing; --data must name"):
        load(data)


def test_a_qrel_of_an_unknown_passage_is_named(data: Path) -> None:
    path = data / "corpus/qrels.tsv"
    path.write_text(path.read_text() + "nq-1\tw77\t1\n")
    with pytest.raises(UserError, match=r"queries\.jsonl:2: .*'w77' is not in the corpus"):
        load(data)


def test_a_wrong_answer_is_another_answer_of_the_same_passage() -> None:
    passage = Passage("p", "Ann was born in 1950. Bob was born in 1960.", "T")
    asked = [
        short_form.Question("squad2", "When was Ann born?", ("1950",), passage),
        short_form.Question("squad2", "When was Bob born?", ("1960",), passage),
    ]
    drafts = list(short_form._wrong_answers(asked, Cutter(Lengths(), random.Random(0))))
    assert [(d.instruction, d.target[3], d.weight) for d in drafts] == [
        ("When was Ann born?", Text("1960"), 0.4),
        ("When was Bob born?", Text("1950"), 0.4),
    ]
    assert all(Token("[No support / Contradictory]") in d.target for d in drafts)


def test_a_paragraph_of_the_same_article_without_the_answer_is_a_negative(data: Path) -> None:
    sources = load(data)
    gold = next(iter(sources.corpus.values()))
    other = replace(gold, id="other", text="It says something else altogether about the same thing.")
    corpus = {gold.id: gold, other.id: other, "third": replace(gold, id="third", text="Here too the answer is zebra.")}
    asked = [short_form.Question("nq", "which animal", ("zebra",), gold)]
    cutter = Cutter(Lengths(), random.Random(0))
    drafts = list(short_form._same_article(replace(sources, corpus=corpus), asked, cutter, random.Random(0)))
    assert [d.source for d in drafts] == ["nq/same_article"]
    assert any(isinstance(p, Evidence) and p.passage.id == "other" for p in drafts[0].target)


def test_long_passages_come_with_every_label() -> None:
    """A first mixture had long passages nearly always relevant, and the model took length for relevance."""
    text = " ".join(f"Sentence number {n} has exactly seven words." for n in range(60))
    cutter = Cutter(Lengths(usual=(60, 120), long=190, long_share=0.45), random.Random(0))
    lengths = [len(cutter(Passage("p", text)).text.split()) for _ in range(400)]
    assert 0.35 < sum(n > 150 for n in lengths) / 400 < 0.55
    assert max(lengths) <= 190
