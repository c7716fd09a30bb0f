"""The demo rows from a small made-up copy of the source files: layouts, splits, determinism and strict reading."""

import gzip
import json

import pytest
from refusals import refused

from retrieval.passage import Passage
from scripts.demo_model.demo_rows import claims, distilled
from scripts.demo_model.demo_rows.mixture import STAGES, Mixture, make, mix, set_aside
from scripts.demo_model.demo_rows.sources import load
from selfrag.evaluation.normalisation import contains_any
from selfrag.training.rows import (
    TargetEvidence,
    TargetText,
    TargetToken,
    TrainingRow,
    read_rows,
    write_rows,
)

CITIES = (
    "Paris",
    "Rome",
    "Oslo",
    "Bern",
    "Kyiv",
    "Lima",
    "Riga",
    "Cairo",
    "Quito",
    "Seoul",
)
FACT = "Is the following statement correct or not? Say true if it's correct; otherwise say false.\n\n## Input:\n\n"


def write_jsonl(path, records):
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def _body(city):
    return (
        f"{city} is a large city on a river with many old bridges and markets. "
        f"Its mayor in 1990 was a person called Mayor {city}son of the city. "
        "The people there like to walk along the water in the evening. "
        "Trains leave every hour for the mountains and for the sea. "
        "The old town has a museum, a theatre, a library and three schools. "
    )


def _pair(
    dataset,
    kind,
    instruction,
    output,
    gold=None,
):
    pair = {
        "id": instruction,
        "dataset": dataset,
        "kind": kind,
        "instruction": instruction,
        "output": output,
    }
    return pair | ({"gold_passages": gold} if gold else {})


@pytest.fixture
def data(tmp_path):
    for name in ("corpus", "train", "intrinsics"):
        (tmp_path / name).mkdir()
    corpus = [
        {"id": f"w{i}", "title": city, "text": _body(city)}
        for i, city in enumerate(CITIES)
    ]
    write_jsonl(tmp_path / "corpus/wiki-mix.jsonl.gz", corpus)
    queries = [
        {
            "id": f"nq-{i}",
            "text": f"who was mayor of {city.lower()}",
            "split": "train",
            "answers": [f"Mayor {city}son"],
        }
        for i, city in enumerate(CITIES[:8])
    ] + [
        {
            "id": "nq-9",
            "text": "who was mayor of seoul",
            "split": "dev",
            "answers": ["Mayor Seoulson"],
        }
    ]
    write_jsonl(tmp_path / "corpus/queries.jsonl", queries)
    qrels = [
        "query-id\tcorpus-id\tscore",
        *(f"nq-{i}\tw{i}\t1" for i in (*range(8), 9)),
    ]
    (tmp_path / "corpus/qrels.tsv").write_text("\n".join(qrels) + "\n")
    gold = [{"title": "Chess", "text": "Chess is a board game for two players."}]
    summary = "Chess is a board game. Go is played with stones."
    pairs = [
        _pair("raschka", "instruction", "Rhyme 'cat'.", "hat"),
        _pair("raschka", "instruction", "What is the capital of Peru?", "Lima"),
        _pair("arc", "multiple_choice", "Choose.\n\n## Input:\n\nQ?\nA: a\nB: b", "B"),
        *(
            _pair("fever", "fact_check", f"{FACT}Chess {i}.", "true", gold)
            for i in range(3)
        ),
        _pair(
            "quotesum",
            "long_form",
            "what is chess?",
            summary,
            [*gold, {"title": "Go", "text": "Go is an old game played with stones."}],
        ),
    ]
    write_jsonl(tmp_path / "train/pairs.jsonl", pairs)
    critic = [
        ("k1", "nomiracl", "IsRel", "judged_non_relevant", "Irrelevant", ""),
        (
            "k2",
            "wice",
            "IsSup",
            "gold_evidence",
            "Partially supported",
            "Chess is a game for two or three players.",
        ),
        ("k4", "fever", "IsSup", "gold_evidence", "Fully supported", "chess 1."),
        ("k5", "fever", "IsSup", "gold_evidence", "Fully supported", "Chess is old."),
        ("k3", "gsm8k", "IsUse", "solution_cut_before_the_end", "2", "First"),
    ]
    keys = ("id", "dataset", "group", "rule", "label", "output")
    label = {"preceding": "", "evidence": gold[0], "instruction": "what is chess"}
    rows = [label | dict(zip(keys, row, strict=True)) for row in critic]
    write_jsonl(
        tmp_path / "train/critic.jsonl.gz",
        [*rows[:4], rows[4] | {"instruction": "Add 2 and 2."}],
    )
    question = {
        "dataset": "squad2",
        "conversation": [{"role": "user", "content": "Who won?"}],
        "label": "unanswerable",
    }
    documents = [{"doc_id": "d1", "title": "Chess", "text": gold[0]["text"]}]
    write_jsonl(
        tmp_path / "intrinsics/answerability_train.jsonl.gz",
        [{"id": "u1", "documents": documents} | question],
    )
    return tmp_path


def _tokens(row):
    names = {TargetEvidence: "Evidence", TargetText: "Text"}
    return [
        part.token if isinstance(part, TargetToken) else names[type(part)]
        for part in row.target
    ]


def _rows(data, **changes):
    return list(mix(load(data), Mixture(heldout_per_mille=0, **changes)).train)


def test_layouts(data):
    rows = _rows(data, claims=claims.Quota(labelled=9))
    by_source = {row.source: _tokens(row) for row in rows}
    retrieved = ["[Retrieval]", "Evidence"]
    for source in ("nq/gold", "fever/verdict", "fever/labelled_verdict"):
        assert by_source[source] == [
            *retrieved,
            "[Relevant]",
            "Text",
            "[Fully supported]",
            "[Utility:5]",
        ]
    for source in ("nq/bm25", "squad2/unanswerable", "nomiracl/judged"):
        assert by_source[source] == [*retrieved, "[Irrelevant]", "Text", "[Utility:1]"]
    assert by_source["wice/issup"] == [
        *retrieved,
        "[Relevant]",
        "Text",
        "[Partially supported]",
        "[Utility:3]",
    ]
    assert by_source["gsm8k/utility_2"] == ["[No Retrieval]", "Text", "[Utility:2]"]
    assert by_source["raschka/instruction"] == ["[No Retrieval]", "Text", "[Utility:5]"]
    step = [*retrieved, "[Relevant]", "Text", "[Fully supported]"]
    assert by_source["quotesum/summary"] == [*step, *step, "[Utility:5]"]
    instructions = {
        row.instruction for row in rows if row.source == "raschka/instruction"
    }
    # a question of fact is no example of no retrieval
    assert instructions == {"Rhyme 'cat'."}


def test_gold_passages_hold_the_answer_and_negatives_do_not(data):
    rows = _rows(data)
    gold = [row for row in rows if row.source == "nq/gold"]
    answers = {row.instruction: row.target[3].text for row in gold}
    assert len(gold) == 8
    assert all(answers[row.instruction] in row.target[1].passage.text for row in gold)
    negatives = [
        row
        for row in rows
        if row.source in ("nq/bm25", "nq/answer_removed", "nq/random")
    ]
    assert {"nq/bm25", "nq/answer_removed"} <= {row.source for row in negatives}
    assert not any(
        contains_any(row.target[1].passage.text, [answers[row.instruction]])
        for row in negatives
    )
    # a development query
    assert not any("seoul" in row.instruction.casefold() for row in rows)


def test_the_same_seed_gives_the_same_files_and_instructions_are_split(data, tmp_path):
    mixture = Mixture(heldout_per_mille=400)
    first, second = tmp_path / "a", tmp_path / "b"
    manifest = make(data, first, mixture)
    assert make(data, second, mixture) == manifest
    for name in ("rows.jsonl", "heldout.jsonl", "manifest.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    train = list(read_rows(first / "rows.jsonl"))
    heldout = list(read_rows(first / "heldout.jsonl"))
    assert train
    assert heldout
    assert not {row.instruction for row in train} & {row.instruction for row in heldout}
    assert (manifest["train"]["rows"], manifest["heldout"]["rows"]) == (
        len(train),
        len(heldout),
    )


def test_a_missing_file_and_a_bad_row_are_named(data):
    pairs = data / "train/pairs.jsonl"
    pairs.write_text('{"id": "x"}\n')
    with refused(r"pairs\.jsonl:1: 'dataset' is missing"):
        load(data)
    pairs.unlink()
    with refused(r"pairs\.jsonl .*--data"):
        load(data)


def test_the_stage_that_learns_from_a_critic_leaves_out_rows_that_leave_their_passage(
    tmp_path,
):
    passage = TargetEvidence(Passage("w1", "Chess is a game.", "Chess"))

    def row(name, *tokens, instruction="What is chess?"):
        parts = [
            part
            for token in tokens
            for part in (
                TargetToken(token),
                *([passage] if token == "[Retrieval]" else []),
            )
        ]
        return TrainingRow(
            name, "pairs/short_qa", instruction, (*parts, TargetText("A game."))
        )

    kept_aside = next(
        text
        for text in (f"Question {i}?" for i in range(1000))
        if set_aside(text, STAGES[-1])
    )
    rows = [
        row("a", "[Retrieval]", "[Relevant]", "[Fully supported]"),
        row("b", "[Retrieval]", "[Irrelevant]"),
        row("c", "[Retrieval]", "[Relevant]", "[No support / Contradictory]"),
        row(
            "d",
            "[Retrieval]",
            "[Relevant]",
            "[Fully supported]",
            "[Retrieval]",
            "[Irrelevant]",
        ),
        row("e", "[No Retrieval]", instruction=kept_aside),  # calibrates the model
        row("f", "[No Retrieval]"),
    ]
    folders = tmp_path / "dgen", tmp_path / "3", tmp_path / "4"
    with refused("dgen"):
        distilled.make(*folders, distilled.Remembered())
    write_rows(
        folders[1] / "rows.jsonl",
        [row(f"demo-{i}", "[Retrieval]", "[Irrelevant]") for i in range(5)],
    )
    write_rows(folders[0] / "rows.jsonl", rows)
    distilled.make(*folders, distilled.Remembered(annotated=2))
    taken = [identifier.id for identifier in read_rows(folders[2] / "rows.jsonl")]
    assert {
        identifier for identifier in taken if not identifier.startswith("demo")
    } == {"a", "f"}
    assert len(taken) == 4
