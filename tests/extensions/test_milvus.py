"""A collection of Milvus finds what the local index finds. All runs on milvus-lite, in a file."""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from tables import each

from retrieval import Passage, index_passages, open_index, remove_passages
from retrieval.conditions import Condition
from retrieval.corpus import Place, Row
from selfrag.common.errors import UserError
from selfrag.extensions.milvus import collections, remote
from selfrag.extensions.milvus.collections import Collection
from selfrag.loading import remote_indexes

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

from strange_milvus import StrangeMilvus

HOSTILE = 'x" or id != "'
NOTE = "a\\b\n\"c'd\t\u2028é"
WORDS = "river stone cloud honey forest winter market garden silver copper"


def row(n):
    words = WORDS.split()
    first, second, third = (words[(n * step + n // 7) % 10] for step in (1, 3, 7))
    text = f"The {first} lies near the {second} and a {third}, number {n}."
    columns = {
        "year": 1990 + 10 * (n % 4),
        "venue": words[n % 3],
        "peer reviewed": n % 2 == 0,
        "weight": n / 4,
    }
    if n in (7, 8):
        columns = {"venue": HOSTILE, "note": NOTE} if n == 8 else {}
    return Row(Passage(f"p{n:02}", text, third), Place("rows", n + 1), columns)


ROWS = list(map(row, range(60)))
QUERIES = ["silver garden", "a river of honey", "winter", "the copper market number 12"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, make_encoder):
    """An index and a collection that no test changes, and their encoder."""
    folder, encoder = tmp_path_factory.mktemp("shared"), make_encoder()
    index_passages(ROWS, folder / "index", encoder=encoder)
    remote.push_index(folder / "index", f"milvus:{folder}/passages.db")
    return folder / "index", f"milvus:{folder}/passages.db", encoder


@pytest.fixture
def index(tmp_path, shared):
    return shutil.copytree(shared[0], tmp_path / "index")


@pytest.fixture
def address(tmp_path, index):
    assert remote.push_index(index, f"milvus:{tmp_path}/passages.db") == (60, 60)
    return f"milvus:{tmp_path}/passages.db"


@pytest.mark.parametrize(
    "mode, most_missed, tolerance",
    [("dense", 0, 1e-5), ("words", 1, 0.2), ("hybrid", 1, 0.2)],
)
def test_it_finds_what_the_local_index_finds(shared, mode, most_missed, tolerance):
    index, address, encoder = shared
    local = open_index(index, encoder, mode=mode)(QUERIES, 10)
    hits = remote.open_index(address, encoder, mode=mode)(QUERIES, 10)
    for ours, theirs in zip(local, hits, strict=True):
        known = {passage.id: passage for passage in ours}
        both = [hit for hit in theirs if hit.id in known]
        assert len(both) >= 10 - most_missed
        for hit in both:
            expected = known[hit.id]
            assert hit == expected.with_score(hit.score)
            assert hit.metadata == expected.metadata
            assert hit.score == pytest.approx(expected.score, abs=tolerance)
        scores = [hit.score for hit in theirs]
        assert scores == sorted(scores, reverse=True)


def ids(retriever, query):
    """What it finds among all passages."""
    return {passage.id for passage in retriever([query], 60)[0]}


@pytest.mark.parametrize(
    "condition",
    [
        "year>=2010",
        "year in [1990, 2020]",
        Condition("peer reviewed", "=", (True,)),
        Condition("venue", "=", (HOSTILE,)),
        Condition("venue", "in", (HOSTILE, 'y" or "1" == "1', "\\")),
        Condition("id", "in", ('"] or id in ["p01', "p02\\", "'")),
        Condition("note", "=", (NOTE,)),
    ],
)
def test_a_condition_keeps_the_same_passages(shared, condition):
    index, address, encoder = shared
    local = open_index(index, encoder, mode="dense").where(condition)
    hits = remote.open_index(address, encoder, mode="hybrid").where(condition)
    assert ids(hits, "river") == ids(local, "river")


@pytest.mark.parametrize(
    "condition, message",
    [
        ("published>=2010", "no passage in .* has a column 'published'"),
        (Condition("year", "or 1 ==", (1,)), "operator='or 1 =='"),
        (Condition('year"] == 1 or metadata["year', ">", (0,)), "has a column"),
    ],
)
def test_a_condition_that_cannot_be_is_one_line(shared, condition, message):
    _, address, encoder = shared
    with refused(message):
        remote.open_index(address, encoder).where(condition)


def test_a_removed_passage_is_never_found(index, address, encoder):
    opened = remote.open_index(address, encoder)
    removed = [passage.id for passage in opened(["silver garden"], 2)[0]]
    remove_passages(index, removed)
    assert remote.push_index(index, address) == (0, 58)
    for retriever in (
        opened,
        remote.open_index(address, encoder, mode="dense"),
        opened.where("year>0"),
    ):
        assert not ids(retriever, "silver garden").intersection(removed)


def test_only_what_is_new_is_sent(tmp_path, index, address, encoder):
    assert remote.push_index(index, address) == (0, 60)
    changed = Row(Passage("p01", "A text about volcanoes."), Place("a", 1), {"year": 1})
    new = Row(Passage(HOSTILE, "More about volcanoes."), Place("a", 2), {})
    rows = [changed, new, *ROWS[2:]]
    index_passages(rows, tmp_path / "later", encoder=encoder)
    assert remote.push_index(tmp_path / "later", address)[0] == 2
    hits = remote.open_index(address, encoder, mode="words")(["volcanoes"], 5)[0]
    assert {hit.id: hit.metadata for hit in hits} == {"p01": {"year": 1}, HOSTILE: {}}


def test_another_encoder_or_language_is_refused(tmp_path, index, address, make_encoder):
    second_encoder = make_encoder(fingerprint="words-2")
    with refused("built with another encoder"):
        remote.open_index(address, second_encoder)
    foreign, bare = tmp_path / "foreign", tmp_path / "bare"
    index_passages(ROWS[:5], foreign, encoder=second_encoder)
    index_passages(ROWS[:5], bare, encoder=make_encoder(), language="none")
    with refused("filled with another encoder"):
        remote.push_index(foreign, address)
    with refused("has language english, not none"):
        remote.push_index(bare, address)
    assert len(Collection(address)) == 60
    address += "/plain"
    remote.push_index(bare, address)
    assert len(remote.open_index(address, make_encoder())(["river"], 3)[0]) == 3
    with refused("has no words"):
        remote.open_index(address, make_encoder(), mode="hybrid")


def test_a_search_has_the_checks_of_the_local_one(tmp_path, address, encoder):
    opened = remote.open_index(address, encoder)
    assert opened([], 3) == []
    assert opened(["river", "river"], 0) == [[], []]
    first, second = opened(["river", "river"], 2)
    assert first == second == opened(["river"], 2)[0]
    by_words = remote.open_index(address, mode="words")
    assert by_words(["", "zzz", "river"], 2)[:2] == [[], []]
    with refused("list of texts"):
        opened("river", 3)
    same = [Passage(f"same{n}", "The silver garden.") for n in range(50)]
    index_passages([*ROWS, *same], tmp_path / "same", encoder=encoder)
    assert remote.push_index(tmp_path / "same", address) == (50, 110)
    hits = opened(["the silver garden"], 10)[0]
    assert len(hits) == len({passage.text for passage in hits}) == 10


def test_what_a_collection_cannot_do_is_one_line(tmp_path, address, encoder, refusal):
    long = [Passage("a", "word " * 14_000)]
    index_passages(long, tmp_path / "long", encoder=encoder)
    with refused("65535"):
        remote.push_index(tmp_path / "long", address)
    assert "checksums" in refusal(f"selfrag index info {address} --verify")
    for line in ("remove {} p01", "add {} rows.jsonl", "sync {} rows.jsonl"):
        said = refusal("selfrag index " + line.format(address))
        assert "is a copy on a server" in said


ADDRESSES = """
milvus://127.0.0.1:1/docs → milvus://127.0.0.1:1/docs: Fail connecting
milvus:NOWHERE/x.db → not exists
milvus:FILE.db → cannot open the file
milvus:EMPTY.db → no collection passages; make it with: selfrag index push DIR
milvus://root:secret@127.0.0.1:1/docs → put USER:PASSWORD into MILVUS_TOKEN
"""


@each("address, message", ADDRESSES)
def test_a_wrong_address_is_one_line_without_secrets(
    tmp_path, monkeypatch, capfd, address, message
):
    monkeypatch.setenv("MILVUS_TOKEN", "root:secret")
    monkeypatch.chdir(tmp_path)
    Path("FILE.db").write_text("no database")
    assert remote_indexes(address) is not None
    with refused(re.escape(message)) as error:
        remote.open_index(address)
    assert "secret" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_token_in_an_answer_of_the_server_is_not_shown(tmp_path, monkeypatch):
    from pymilvus import MilvusException

    monkeypatch.setenv("MILVUS_TOKEN", "root:secret")
    collection = Collection(f"milvus:{tmp_path}/a.db")
    with refused(r"auth failed for \*\*\*") as error, collection.told():
        raise MilvusException(message="auth failed for root:secret")
    assert error.value.__cause__ is None


def test_a_collection_of_somebody_else_is_left_alone(tmp_path, index):
    from pymilvus import MilvusClient

    MilvusClient(f"{tmp_path}/foreign.db").create_collection("passages", dimension=4)
    with refused("selfrag index push"):
        remote.push_index(index, f"milvus:{tmp_path}/foreign.db")


@pytest.fixture(scope="module")
def strange(shared):
    from milvus_lite.server_manager import server_manager_instance as files

    target = files.start_and_get_uri(shared[1].removeprefix("milvus:"))
    with StrangeMilvus(target.removeprefix("http://")) as server:
        yield server


@settings(
    max_examples=int(os.environ.get("SELFRAG_FUZZ", "30")),
    suppress_health_check=list(HealthCheck),
)
@given(st.integers(0), st.sampled_from(["dense", "words", "hybrid"]))
def test_whatever_a_server_sends_is_read_or_refused_in_one_line(
    monkeypatch, shared, strange, seed, mode
):
    for name in ("_CONNECTING", "_ANSWERING", "PREPARING"):
        monkeypatch.setattr(collections, name, 0.2)
    address = f"milvus://127.0.0.1:{strange.port}/passages"
    strange.harm(None)
    Collection(address)
    strange.harm(seed)
    with suppress(UserError):
        retriever = remote.open_index(address, shared[2], mode=mode)
        results = retriever.where("year>=2000")(QUERIES[:2], 5)
        assert all(isinstance(hit, Passage) for hits in results for hit in hits)
        remote.read_card(address)
        remote.push_index(shared[0], address)
