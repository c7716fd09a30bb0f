import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Corpus, Passage, UserError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FILLED = TEXT.filter(str.strip)


@settings(max_examples=40)
@given(st.lists(st.builds(Passage, id=FILLED, text=FILLED, title=TEXT), min_size=1, unique_by=lambda p: p.id))
def test_what_goes_in_comes_out_in_order(tmp_path_factory, passages):
    corpus = Corpus.build(iter(passages), tmp_path_factory.mktemp("corpus") / "c")
    assert list(corpus) == passages
    assert [corpus[row] for row in range(len(corpus))] == passages
    assert corpus[-1] == passages[-1]
    assert corpus[1:] == passages[1:]


def test_rows_are_found_across_record_batches(tmp_path):
    passages = [Passage(f"p{n}", f"text {n} " + "x" * (3_000_000 * (n % 1000 == 7))) for n in range(5000)]
    corpus = Corpus.build(passages, tmp_path / "c")
    assert len(corpus) == 5000
    for row in (0, 7, 8, 2047, 2048, 4095, 4096, 4999):
        assert corpus[row] == passages[row]
    assert list(corpus) == passages
    with pytest.raises(IndexError, match="row 5000 of a corpus of 5000"):
        corpus[5000]


def test_the_file_is_memory_mapped_and_opens_as_a_dataset(tmp_path, animals):
    import pyarrow as pa

    Corpus.build([Passage(str(n), "word " * 2000) for n in range(2000)], tmp_path / "big")
    before = pa.total_allocated_bytes()
    corpus = Corpus.open(tmp_path / "big")
    assert corpus[1999].id == "1999"
    assert pa.total_allocated_bytes() - before < 1_000_000
    dataset = Corpus.build(animals, tmp_path / "c").dataset()
    assert dataset[2]["text"] == animals[2].text
    assert dataset.column_names == ["id", "title", "text"]


def test_the_digest_follows_the_content(tmp_path, animals):
    digest = Corpus.build(animals, tmp_path / "a").digest
    assert Corpus.build(animals, tmp_path / "b").digest == digest
    assert Corpus.open(tmp_path / "a").digest == digest
    assert Corpus.build(animals[::-1], tmp_path / "c").digest != digest
    assert (
        Corpus.build([Passage("a", "b", "cd")], tmp_path / "d").digest
        != Corpus.build([Passage("a", "bc", "d")], tmp_path / "e").digest
    )


@pytest.mark.parametrize(
    ("passages", "fault"),
    [
        ([], "no passages"),
        ([Passage("a", "x"), Passage("b", " ")], "passages: row 2: text is empty"),
        ([Passage("a", "x"), Passage("", "y")], "passages: row 2: id is empty"),
        ([Passage("a", "x"), Passage("b", "y"), Passage("a", "z")], "row 3: id 'a' is already used at passages: row 1"),
    ],
)
def test_bad_passages_are_refused_and_nothing_is_left(tmp_path, passages, fault):
    with pytest.raises(UserError, match=fault):
        Corpus.build(passages, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_foreign_places_are_not_written_over(tmp_path, animals):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"holds other files \(chapter1.tex\)"):
        Corpus.build(animals, tmp_path / "thesis")
    with pytest.raises(UserError, match="is a file"):
        Corpus.build(animals, tmp_path / "file")
    with pytest.raises(UserError, match="cannot write"):
        Corpus.build(animals, tmp_path / "file" / "c")
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "precious"
