"""Search by words and both ways at once."""

import numpy as np
import pytest

from retrieval import DenseRetriever, HybridRetriever, Passage, UserError, WordRetriever, index_passages, open_index
from retrieval.build import compact_index
from retrieval.index import load_manifest
from retrieval.search import Fusion
from retrieval.words import LANGUAGES, WordIndex, add_words


def by_words(index, query, k=9):
    return [passage.id for passage in open_index(index, mode="words")([query], k)[0]]


def test_stems_and_titles_are_found_and_no_encoder_is_needed(index):
    assert by_words(index, "barking") == ["dog"]
    assert by_words(index, "the owl and the bee") == ["owl", "bee"] or by_words(index, "owl bee") == ["bee", "owl"]
    assert by_words(index, "the of zebra") == []


@pytest.mark.parametrize("query", ["a AND (", "body:honey OR *", "row:0", "+honey -bees ^5", "\\", "\ud800"])
def test_a_query_holds_no_syntax(index, query):
    assert set(by_words(index, query)) <= {"bee"}


def test_the_default_is_both_and_a_mode_can_be_named(index, encoder):
    kinds = {None: HybridRetriever, "hybrid": HybridRetriever, "dense": DenseRetriever, "words": WordRetriever}
    for mode, kind in kinds.items():
        assert type(open_index(index, encoder, mode=mode)) is kind
    with pytest.raises(UserError, match="mode='both'"):
        open_index(index, encoder, mode="both")
    with pytest.raises(UserError, match="language='klingon'"):
        compact_index(index, language="klingon")
    found = open_index(index, encoder)(["honey from flowers", "nothing known"], 5)
    assert [len(passages) for passages in found] == [5, 5]
    assert found[0][0].id == "bee"
    assert found[0][0].score == 1.0


def test_an_index_without_words_says_how_to_get_them(tmp_path, animals, encoder):
    index_passages(animals, tmp_path / "i", encoder=encoder, language="none")
    assert type(open_index(tmp_path / "i", encoder)) is DenseRetriever
    with pytest.raises(UserError, match=r"has no words; add them with: selfrag index compact \S+ --language english"):
        open_index(tmp_path / "i", encoder, mode="words")
    encoder.texts.clear()
    compact_index(tmp_path / "i", language="english")
    assert by_words(tmp_path / "i", "honey") == ["bee"]
    compact_index(tmp_path / "i", language="none")
    assert load_manifest(tmp_path / "i").part("words") is None
    assert not list((tmp_path / "i" / "parts").glob("*"))
    assert encoder.texts == []


@pytest.mark.parametrize("share", [0.9, 0.001, 0.0])
def test_a_filter_of_words_is_exact(tmp_path, share, monkeypatch):
    monkeypatch.setattr("retrieval.words._LISTED_ROWS", 100)
    passages = [Passage(str(n), f"{'honey ' * (n % 5)} {'bee ' * (n % 3)} and more {n}") for n in range(2000)]
    add_words(tmp_path / "w", passages, 0, "english")
    words = WordIndex(tmp_path / "w", "english")
    allowed = np.random.default_rng(0).random(2000) < share
    every, found = words.search("honey bees", 2000), words.search("honey bees", 10, allowed)
    expected = [row for row in every.rows[0].tolist() if allowed[row]][:10]
    assert found.rows[0].tolist() == expected


def test_every_language_has_its_stems(tmp_path):
    for language in LANGUAGES:
        add_words(tmp_path / language, [Passage("a", "2024 honey")], 0, language)
        assert WordIndex(tmp_path / language, language).search("2024", 5).rows.tolist() == [[0]]


FIRST, SECOND = [(3, 9.0), (1, 5.0), (2, 1.0)], [(2, 4.0), (3, 2.0)]


@pytest.mark.parametrize(
    ("fusion", "first", "second", "fused"),
    [
        (Fusion(), FIRST, SECOND, [(2, 0.5), (3, 0.5), (1, 0.25)]),  # scores scaled to 0..1, equal ones by row
        (Fusion(weight=1.0), FIRST, SECOND, [(3, 1.0), (1, 0.5), (2, 0.0)]),
        (Fusion(), [], [], []),
        (Fusion(), [("b", 7.0)], [("a", 7.0)], [("a", 0.5), ("b", 0.5)]),
        (Fusion("rrf"), FIRST[:2], [(1, 4.0), (4, 2.0)], [(1, 0.5 / 7 + 0.5 / 6), (3, 0.5 / 6), (4, 0.5 / 7)]),
    ],
)
def test_fusion_of_two_rankings(fusion, first, second, fused):
    found = fusion(first, second, 3)
    assert [key for key, _ in found] == [key for key, _ in fused]
    assert [score for _, score in found] == pytest.approx([score for _, score in fused])


@pytest.mark.parametrize("settings", [{"method": "sum"}, {"weight": 2}, {"weight": float("nan")}])
def test_a_wrong_fusion_is_one_line(settings):
    with pytest.raises(UserError, match=r"fusion=|weight="):
        Fusion(**settings)
