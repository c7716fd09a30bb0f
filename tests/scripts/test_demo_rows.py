"""The demo rows from a small made-up copy of the source files: layouts, splits, determinism and strict reading."""

import gzip
import shutil
from pathlib import Path

import pytest
from json_files import parse_table
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

FILES = Path(__file__).with_name("demo_sources")


@pytest.fixture
def data(tmp_path):
    """A small made-up copy of the source files; those of the corpus and of annotations are packed."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    for name in (
        "corpus/wiki-mix.jsonl",
        "train/critic.jsonl",
        "intrinsics/answerability_train.jsonl",
    ):
        file = tmp_path / name
        packed = gzip.compress(file.read_bytes())
        file.with_name(f"{file.name}.gz").write_bytes(packed)
        file.unlink()
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
    by_source = {row.source: " ".join(_tokens(row)) for row in rows}
    for sources, layout in parse_table("""
nq/gold fever/verdict fever/labelled_verdict |
    [Retrieval] Evidence [Relevant] Text [Fully supported] [Utility:5]
nq/bm25 squad2/unanswerable nomiracl/judged | [Retrieval] Evidence [Irrelevant] Text [Utility:1]
wice/issup | [Retrieval] Evidence [Relevant] Text [Partially supported] [Utility:3]
gsm8k/utility_2 | [No Retrieval] Text [Utility:2]
raschka/instruction | [No Retrieval] Text [Utility:5]
quotesum/summary | [Retrieval] Evidence [Relevant] Text [Fully supported]
    [Retrieval] Evidence [Relevant] Text [Fully supported] [Utility:5]
"""):
        for source in sources.split():
            assert by_source[source] == layout
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
    sources = ("nq/bm25", "nq/answer_removed", "nq/random")
    negatives = [row for row in rows if row.source in sources]
    assert {*sources[:2]} <= {row.source for row in negatives}
    for row in negatives:
        text = row.target[1].passage.text
        assert not contains_any(text, [answers[row.instruction]])
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
    assert manifest["train"]["rows"] == len(train)
    assert manifest["heldout"]["rows"] == len(heldout)


def test_a_missing_file_and_a_bad_row_are_named(data):
    pairs = data / "train/pairs.jsonl"
    pairs.write_text('{"id": "x"}\n')
    with refused(r"pairs\.jsonl:1: 'instruction' is missing"):
        load(data)
    pairs.unlink()
    with refused(r"pairs\.jsonl .*--data"):
        load(data)


def test_the_stage_that_learns_from_a_critic_leaves_out_rows_that_leave_their_passage(
    tmp_path,
):
    passage = TargetEvidence(Passage("w1", "Chess is a game.", "Chess"))

    def row(name, tokens, instruction="What is chess?"):
        parts = []
        for token in tokens.split("|"):
            parts += [TargetToken(f"[{token}]")] + [passage] * (token == "Retrieval")
        parts.append(TargetText("A game."))
        return TrainingRow(name, "pairs/short_qa", instruction, tuple(parts))

    questions = (f"Question {i}?" for i in range(1000))
    kept_aside = next(text for text in questions if set_aside(text, STAGES[-1]))
    rows = [
        row(*texts)
        for texts in parse_table("""
a | "Retrieval|Relevant|Fully supported"
b | Retrieval|Irrelevant
c | "Retrieval|Relevant|No support / Contradictory"
d | "Retrieval|Relevant|Fully supported|Retrieval|Irrelevant"
f | "No Retrieval"
""")
    ]
    rows.append(row("e", "No Retrieval", kept_aside))  # calibrates the model
    folders = tmp_path / "dgen", tmp_path / "3", tmp_path / "4"
    with refused("dgen"):
        distilled.make(*folders)
    demo = [row(f"demo-{i}", "Retrieval|Irrelevant") for i in range(5)]
    write_rows(folders[1] / "rows.jsonl", demo)
    write_rows(folders[0] / "rows.jsonl", rows)
    distilled.make(*folders, 2)
    taken = [taken.id for taken in read_rows(folders[2] / "rows.jsonl")]
    assert {name for name in taken if not name.startswith("demo")} == {"a", "f"}
    assert len(taken) == 4
