"""Metadata of passages and conditions on it."""

import json

import pytest

from retrieval import Corpus, Passage, UserError, build_index, open_index
from retrieval.build import add_files, compact_index, remove_passages
from retrieval.corpus import Place, Row
from retrieval.filters import Condition, allowed_rows

ROWS = [
    {"id": "a", "text": "honey one", "year": 2019, "lang": "en", "score": 1, "open": True, "tags": ["x"]},
    {"id": "b", "text": "honey two", "year": 2020, "lang": "de", "score": 2.5, "open": False, "note": "=1+1"},
    {"id": "c", "text": "honey three", "year": 2021, "lang": "en", "score": None, "mixed": 3},
    {"id": "d", "text": "honey four", "lang": "", "mixed": "three", "open": True},
]


def jsonl(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def corpus(tmp_path):
    from retrieval.readers import read_files

    return Corpus.build(read_files([jsonl(tmp_path / "rows.jsonl", ROWS)]), tmp_path / "corpus")


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("year>=2020", "bc"),
        ("year=2019.0", "a"),
        ("year in [2019, 2021]", "ac"),
        ("lang=en", "ac"),
        ("lang in [de, fr]", "b"),
        ("mixed=3", "c"),
        ("mixed=three", "d"),
        ('note="=1+1"', "b"),
        ("id in [a, d]", "ad"),
        ("title=", None),
    ],
)
def test_conditions(corpus, condition, ids):
    if ids is None:
        with pytest.raises(UserError, match="give a condition such as"):
            allowed_rows(corpus, [condition])
        return
    assert "".join(one.id for one, met in zip(corpus, allowed_rows(corpus, [condition]), strict=True) if met) == ids


@pytest.mark.parametrize(
    ("condition", "fault"),
    [
        ("year", "give a condition such as year>=2020"),
        ("year>=abc", "column 'year' holds numbers; >= cannot compare them with abc"),
        ("lang<3", "column 'lang' holds texts; < cannot compare them with 3"),
        ("nothing=1", "no column 'nothing'; the columns are: id, title, lang, mixed, note, open, score, year"),
        ("tags=x", "no column 'tags'"),
        ("__import__('os').system('true')>=1", "no column"),
    ],
)
def test_a_wrong_condition_is_one_line(corpus, condition, fault):
    with pytest.raises(UserError) as caught:
        allowed_rows(corpus, [condition])
    assert fault in str(caught.value)
    with pytest.raises(UserError, match="operator='eval'"):
        allowed_rows(corpus, [Condition("year", "eval", (1,))])


def test_columns_are_bounded_and_rows_before_the_first_value_have_none(tmp_path):
    rows = [Row(Passage(str(n), "text"), Place("x", n), {f"c{n}": n} if n > 5 else {}) for n in range(3000)]
    corpus = Corpus.build(rows, tmp_path / "c")
    assert len(corpus.columns()) == 256
    assert allowed_rows(corpus, ["c7=7"]).nonzero()[0].tolist() == [7]


def test_a_search_is_filtered_in_every_mode_and_after_every_change(tmp_path, encoder):
    index = tmp_path / "index"
    build_index([jsonl(tmp_path / "rows.jsonl", ROWS)], index, encoder=encoder)

    def found(*conditions):
        return [
            {passage.id for passage in open_index(index, encoder, mode=mode).where(*conditions)(["honey"], 9)[0]}
            for mode in ("dense", "words", "hybrid")
        ]

    assert found() == [{"a", "b", "c", "d"}] * 3
    assert found("year>=2020", "lang=en") == [{"c"}] * 3
    assert found("year>3000") == [set()] * 3
    add_files(
        index, [jsonl(tmp_path / "more.jsonl", [{"id": "e", "text": "honey five", "year": 2030.5}])], encoder=encoder
    )
    remove_passages(index, ["b"])
    assert found("year>=2020") == [{"c", "e"}] * 3
    assert found("lang=en") == [{"a", "c"}] * 3
    compact_index(index)
    assert found("year>=2020") == [{"c", "e"}] * 3
    retriever = open_index(index, encoder)
    narrow = retriever.where("year>=2020").where("lang=en")
    assert [passage.id for passage in narrow(["honey"], 9)[0]] == ["c"]
    assert len(retriever(["honey"], 9)[0]) == 4


def test_passages_come_with_their_columns_and_are_the_same_without(tmp_path, encoder):
    index = tmp_path / "index"
    build_index([jsonl(tmp_path / "rows.jsonl", ROWS)], index, encoder=encoder)
    add_files(index, [jsonl(tmp_path / "more.jsonl", [{"id": "e", "text": "honey five", "page": 7}])], encoder=encoder)
    remove_passages(index, ["a"])
    for mode in ("dense", "words", "hybrid"):
        found = {passage.id: passage for passage in open_index(index, encoder, mode=mode)(["honey"], 9)[0]}
        assert {name: dict(passage.metadata) for name, passage in found.items()} == {
            "b": {"year": 2020, "lang": "de", "score": 2.5, "open": False, "note": "=1+1"},
            "c": {"year": 2021, "lang": "en", "mixed": "3"},
            "d": {"mixed": "three", "open": True},
            "e": {"page": 7},
        }
        bare = Passage("e", "honey five", score=found["e"].score)
        assert (found["e"], hash(found["e"]), found["e"].key) == (bare, hash(bare), bare.key)
        assert found["e"].as_dict() == {**bare.as_dict(), "metadata": {"page": 7}}
        assert Passage(**json.loads(json.dumps(found["e"].as_dict()))).metadata == {"page": 7}
    assert "metadata" not in bare.as_dict()


@pytest.mark.parametrize("metadata", [None, [1], {"a": [1]}, {"a": None}, {1: "a"}])
def test_metadata_that_no_column_holds_is_refused(metadata):
    with pytest.raises(UserError, match="passage 'x': metadata must be"):
        Passage("x", "text", metadata=metadata)
