"""Passages on disk, their further columns, and conditions on these."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from tables import each

from retrieval import Corpus, Passage, add_files, build_index, open_index
from retrieval.build import compact_index, remove_passages
from retrieval.conditions import Condition, allowed_rows
from retrieval.corpus import FILE, Place, Row
from retrieval.corpus_writing import build_corpus
from retrieval.readers import read_files
from retrieval.reports import ReadReport

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)

FILLED = TEXT.filter(str.strip)


@settings(max_examples=40)
@given(
    st.lists(
        st.builds(Passage, id=FILLED, text=FILLED, title=TEXT),
        min_size=1,
        unique_by=lambda p: p.id,
    )
)
def test_what_goes_in_comes_out_in_order(tmp_path_factory, passages):
    corpus = build_corpus(iter(passages), tmp_path_factory.mktemp("corpus") / "c")
    assert list(corpus) == passages
    assert [corpus[row] for row in range(len(corpus))] == passages
    assert corpus[-1] == passages[-1]
    assert corpus[1:] == passages[1:]


def test_rows_are_found_across_record_batches():
    passages = [
        Passage(f"p{n}", f"text {n} " + "x" * (3_000_000 * (n % 1000 == 7)))
        for n in range(5000)
    ]
    corpus = build_corpus(passages, "c")
    assert len(corpus) == 5000
    for row in (7, 2047, 2048, 4999):
        assert corpus[row] == passages[row]
    assert list(corpus) == passages
    with pytest.raises(IndexError, match="row 5000 of a corpus of 5000"):
        corpus[5000]


def test_the_file_is_memory_mapped_and_opens_as_a_dataset(animals):
    import pyarrow as pa
    from datasets import Dataset

    build_corpus([Passage(str(n), "word " * 2000) for n in range(2000)], "big")
    before = pa.total_allocated_bytes()
    corpus = Corpus.open("big")
    assert corpus[1999].id == "1999"
    assert pa.total_allocated_bytes() - before < 1_000_000
    build_corpus(animals, "c")
    dataset = Dataset.from_file(f"c/{FILE}")
    assert dataset[2]["text"] == animals[2].text
    assert dataset.column_names == ["id", "title", "text"]


def test_the_digest_follows_the_content(animals):
    different = (
        animals,
        animals[::-1],
        [Passage("a", "b", "cd")],
        [Passage("a", "bc", "d")],
    )
    corpora = [build_corpus(rows, str(n)) for n, rows in enumerate(different)]
    digests = {corpus.digest for corpus in corpora}
    assert len(digests) == 4
    assert build_corpus(animals, "again").digest in digests


@pytest.mark.parametrize(
    "passages, fault",
    [
        ([], "no passages"),
        ([Passage("a", "x"), Passage("b", " ")], "passages: row 2: text is empty"),
        ([Passage("a", "x"), Passage("", "y")], "passages: row 2: id is empty"),
        (
            [Passage("a", "x"), Passage("b", "y"), Passage("a", "z")],
            "row 3: id 'a' is already used at passages: row 1",
        ),
    ],
)
def test_bad_passages_are_refused_and_nothing_is_left(tmp_path, passages, fault):
    with refused(fault):
        build_corpus(passages, "c")
    assert list(tmp_path.iterdir()) == []


def test_foreign_places_are_not_written_over(animals):
    Path("thesis").mkdir()
    chapter = Path("thesis/chapter1.tex")
    chapter.write_text("precious")
    for place, fault in (
        (chapter.parent, r"holds other files \(chapter1.tex\)"),
        (chapter, "is a file"),
        (chapter / "c", "cannot write"),
    ):
        with refused(fault):
            build_corpus(animals, place)
    assert chapter.read_text() == "precious"


def test_ids_that_share_a_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(
        "retrieval.corpus_writing.hash", lambda identifier: 7, raising=False
    )
    rows = [Row(Passage(str(n), "text"), Place("a.jsonl", n + 1)) for n in range(5)]
    assert len(build_corpus(rows, "c")) == 5
    with refused(r"a\.jsonl:3: id '2' .* a\.jsonl:3"):
        build_corpus([*rows, rows[2]], "c")


ROWS = """
{"id": "a", "text": "honey one", "year": 2019, "lang": "en", "score": 1, "open": true, "tags": ["x", "y z"]}
{"id": "b", "text": "honey two", "year": 2020, "lang": "de", "score": 2.5, "open": false, "note": "=1+1"}
{"id": "c", "text": "honey three", "year": 2021, "lang": "en", "score": null, "mixed": 3}
{"id": "d", "text": "honey four", "lang": "", "mixed": "three", "open": true}
"""


def jsonl(name, rows):
    Path(name).write_text(rows.strip())
    return Path(name)


@pytest.fixture
def corpus():
    return build_corpus(read_files([jsonl("rows.jsonl", ROWS)]), "corpus")


def test_columns_that_hold_no_value_are_counted():
    first = f'{{"id": "a", "text": "{"one " * 500}", "parts": {{"x": 1}}, "size": {1 << 70}}}'
    second = '{"id": "b", "text": "two", "parts": [["x"]], "none": null, "empty": ""}'
    report = ReadReport()
    list(read_files([jsonl("a.jsonl", f"{first}\n{second}")], report=report))
    skipped = [part.what for part in report.skipped]
    assert skipped == ["column parts of 2 rows", "column size of 1 row"]


CONDITIONS = """
year>=2020 → b c
year=2019.0 → a
year in [2019, 2021] → a c
lang=en → a c
lang in [de, fr] → b
mixed=3 → c
mixed=three → d
note="=1+1" → b
tags has x → a
tags has y z → a
tags has y →
id in [a, d] → a d
"""


@each("condition, ids", CONDITIONS)
def test_conditions(corpus, condition, ids):
    met = allowed_rows(corpus, [condition]).nonzero()[0]
    assert [corpus[int(row)].id for row in met] == ids.split()


WRONG = """
title= → give a condition such as
year → give a condition such as year>=2020
year>=abc → column 'year' holds numbers; >= cannot compare them with abc
lang<3 → column 'lang' holds texts; < cannot compare them with 3
nothing=1 → no column 'nothing'; the columns are: id, title, lang, mixed, note, open, score, tags, year
__import__('os').system('true')>=1 → no column
"""


@each("condition, fault", WRONG)
def test_a_wrong_condition_is_one_line(corpus, condition, fault):
    with refused(fault):
        allowed_rows(corpus, [condition])
    with refused("operator='eval'"):
        allowed_rows(corpus, [Condition("year", "eval", (1,))])


def test_columns_are_bounded_and_rows_before_the_first_value_have_none():
    rows = [
        Row(Passage(str(n), "text"), Place("x", n), {f"c{n}": n} if n > 5 else {})
        for n in range(3000)
    ]
    corpus = build_corpus(rows, "c")
    assert len(corpus.columns()) == 256
    assert allowed_rows(corpus, ["c7=7"]).nonzero()[0].tolist() == [7]


def test_a_search_is_filtered_and_gives_columns_in_every_mode_and_after_every_change(
    encoder,
):
    index = "index"
    build_index([jsonl("rows.jsonl", ROWS)], index, encoder=encoder)

    def hits(*conditions):
        results = []
        for mode in ("dense", "words", "hybrid"):
            retriever = open_index(index, encoder, mode=mode).where(*conditions)
            found = {hit.id: dict(hit.metadata) for hit in retriever(["honey"], 9)[0]}
            results.append(found)
        first, *others = results
        assert others == [first, first]
        for metadata in first.values():
            file = Path(metadata.pop("file")).name
            assert file in ("rows.jsonl", "more.jsonl")
        return first

    assert set(hits()) == {"a", "b", "c", "d"}
    assert hits("year>=2020", "lang=en") == {
        "c": {"year": 2021, "lang": "en", "mixed": "3"}
    }
    assert hits("year>3000") == {}
    new = '{"id": "e", "text": "honey five", "year": 2030.5, "page": 7}'
    add_files(index, [jsonl("more.jsonl", new)], encoder=encoder)
    remove_passages(index, ["b"])
    for _ in range(2):
        assert set(hits("lang=en")) == {"a", "c"}
        assert hits("year>=2025") == {"e": {"year": 2030.5, "page": 7}}
        compact_index(index)
    retriever = open_index(index, encoder)
    narrow = retriever.where("year>=2020").where("lang=en")
    assert [passage.id for passage in narrow(["honey"], 9)[0]] == ["c"]
    assert len(retriever(["honey"], 9)[0]) == 4


def test_a_passage_is_the_same_without_its_metadata():
    bare = Passage("e", "honey five")
    full = Passage("e", "honey five", metadata={"page": 7})
    assert full == bare
    assert hash(full) == hash(bare)
    assert full.key == bare.key
    assert full.as_dict() == {**bare.as_dict(), "metadata": {"page": 7}}
    assert Passage(**json.loads(json.dumps(full.as_dict()))).metadata == {"page": 7}
    assert "metadata" not in bare.as_dict()


@pytest.mark.parametrize("metadata", [None, [1], {"a": [1]}, {"a": None}, {1: "a"}])
def test_metadata_that_no_column_holds_is_refused(metadata):
    with refused("passage 'x': metadata must be"):
        Passage("x", "text", metadata=metadata)
