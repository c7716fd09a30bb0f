"""Where rows come from: files of each kind, Hugging Face data sets, and what is wrong with a file."""

import gzip
import json

import pytest

from critic.formats import named
from critic.mixture import Reading, load
from critic.pairs import Dropped, open_dataset
from retrieval.errors import UserError
from selfrag.training.public_rows import raw_rows

ROWS = [{"instruction": f"Say {n}.", "input": "", "output": f"{n}"} for n in range(700)]


def written(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".parquet"):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    text = (lines if "jsonl" in name else json.dumps(ROWS, indent=1)).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.parquet"])
def test_a_file_gives_its_rows_in_order_with_their_places(name, tmp_path):
    rows = list(raw_rows(written(tmp_path, name)))
    assert [row.record for row in rows] == ROWS
    assert [row.key for row in rows] == [str(n) for n in range(700)]
    assert rows[1].place.endswith(f"{name}:2" if "jsonl" in name else f"{name}: row 2")


def test_hugging_face_data_sets_give_the_same_pairs_whole_and_streamed():
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    form = named("stanford_alpaca")
    expected = list(load(ROWS, form))
    assert list(load(whole, form)) == expected
    assert list(load(whole.to_iterable_dataset(num_shards=3), form)) == expected
    # lists of objects are turned inside out
    choices = {"text": ["stone", "cork"], "label": ["A", "B"]}
    row = {"id": "q", "question": "What floats?", "choices": choices, "answerKey": "B"}
    (pair,) = load(datasets.Dataset.from_list([row]), named("arc_easy"))
    assert pair.instruction.endswith("What floats?\nA: stone\nB: cork")
    parts = datasets.DatasetDict({"train": whole.select([0, 1]), "test": whole.select([2])})
    assert [pair.output for pair in load(parts, form, Reading(split="test"))] == ["2"]
    with pytest.raises(UserError, match="no split 'dev'; choose one of train, test"):
        list(load(parts, form, Reading(split="dev")))


def test_a_local_directory_reads_like_the_hub(tmp_path):
    pytest.importorskip("datasets")
    written(tmp_path, "train.jsonl")
    assert [row["output"] for row in open_dataset(str(tmp_path))] == [row["output"] for row in ROWS]
    for name, split in ((tmp_path, "nothing"), (tmp_path / "nowhere", "train")):
        with pytest.raises(UserError, match="hf:"):
            open_dataset(str(name), split=split)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '[{"a": 1},\n 3]', "a.json: row 2: a row must be an object, not int"),
        ("a.json", '{"a": 1}\n{"a": 2}\n', "a.json:2: not JSON .*; JSON lines are named .jsonl"),
        ("a.json", '"text"', "a file of rows, not one str"),
        ("a.json", '{"dev": []}', "no split 'train'; choose one of dev"),
        ("a.json", "[" + '{"a":' * 20_000, "a.json: cannot be read|not JSON"),
        ("a.json", b'[{"a": "\xff"}]', "cannot be read"),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"a.jsonl:2: a row must be an object, not list"),
        ("a.parquet", "not parquet", "not a readable Parquet file"),
        ("a.xml", "<a/>", r"no reader for it; known: \.jsonl"),
    ],
)
def test_a_bad_file_is_one_line(name, content, message, tmp_path):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        list(raw_rows(file))


def test_what_holds_no_rows_or_pairs_is_named():
    with pytest.raises(UserError, match=r"nowhere\.jsonl: cannot be read"):
        raw_rows("nowhere.jsonl")
    with pytest.raises(UserError, match="row 2: a row must be an object, not str"):
        list(load([{"inputs": "a", "targets": "b"}, "text"], named("flan_v2")))
    with pytest.raises(UserError, match=r"no pair in the flan_v2 source .*1 skipped.*row 1: no output"):
        list(load([{"inputs": "a", "targets": ""}], named("flan_v2")))


def test_filters_say_what_they_left_out():
    rows = [
        {"inputs": "short", "targets": "yes"},
        {"inputs": "long " * 6, "targets": "yes"},
        {"inputs": "short", "targets": "long " * 6},
        {"inputs": " ", "targets": "yes"},
        {"inputs": "half \ud800 a character", "targets": "yes"},
    ]
    found = list(load(rows, named("flan_v2"), Reading(most_words=5)))
    assert [outcome.reason for outcome in found if isinstance(outcome, Dropped)] == [
        "more than 5 words in the instruction",
        "more than 5 words in the output",
        "no instruction",
        "text with half a character (a lone surrogate)",
    ]
    row = {"id": "7", "input": "who", "output": [{"answer": "me"}]}
    first, second = load([row, row], named("kilt_nq"))
    assert (first.id, second.reason) == ("nq-7", "an id that occurred before (nq-7)")


def test_other_languages_are_left_out_where_that_is_asked_for():
    pytest.importorskip("py3langid")
    rows = [
        {"inputs": "Describe the weather of the northern coast in winter.", "targets": "It is cold, wet and windy."},
        {"inputs": "Beschreibe das Wetter an der Nordsee im Winter.", "targets": "Es ist kalt, nass und windig dort."},
    ]
    english, german = load(rows, named("flan_v2"), Reading(language="en"))
    assert (english.output, german.reason) == ("It is cold, wet and windy.", "not in 'en'")
    with pytest.raises(UserError, match="'English' is no code of a language"):
        list(load(rows, named("flan_v2"), Reading(language="English")))
