"""The page about training rows: counts by hand, a seeded sample, provenance; all that it holds is text."""

import json
import re
from collections import Counter

import pytest
from hostile import HOSTILE
from json_files import parse_table, write_lines
from refusals import refused
from structure import Structure

from critic.cli.main import main
from critic.inspect import (
    MOST_PARTS,
    Inspection,
    Statistics,
    departure,
    inspect_rows,
    render,
)
from retrieval.passage import Passage
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE
from selfrag.render.documents import MOST_VISIBLE
from selfrag.training.rows import (
    TargetEvidence,
    TargetText,
    TargetToken,
    TrainingRow,
    write_rows,
)

HALL = TargetEvidence(
    Passage(
        "wiki-1",
        "The ceiling was painted by Ann Example in 1720. It shows a hunt.",
        "Great Hall",
    )
)
OTHER = TargetEvidence(Passage("wiki-2", "A hall is a large room.", "Hall"))
TOKENS = dict(
    zip(
        "RNCrifpn12345",
        (*RETRIEVE.tokens, *ISREL.tokens, *ISSUP.tokens, *ISUSE.tokens),
        strict=True,
    )
)


def target(text):
    """Letters of `TOKENS`, E for a passage, and texts in brackets."""
    made = []
    for letter, said in re.findall(r"(\w)|\((.*?)\)", text):
        if said:
            made.append(TargetText(said))
        else:
            made.append(HALL if letter == "E" else TargetToken(TOKENS[letter]))
    return tuple(made)


def short(key="nq-1"):
    parts = target("REr(Ann Example)f5")
    return TrainingRow(key, "nq/short_qa", "who painted the ceiling", parts)


def unaided(key="alpaca-1"):
    parts = target("N(Apple, pear.)4")
    return TrainingRow(key, "alpaca/instruction", "Name two fruits.", parts)


def long(key="asqa-1"):
    parts = target("REr(Ann Example painted it.)pC( It shows a hunt.)fR")
    parts += (OTHER, *target("i( It is famous.)3"))
    asked = "Tell me about the ceiling."
    return TrainingRow(key, "asqa/long_form", asked, parts, weight=2.0)


def hostile(text):
    """A row that holds a hostile text wherever a row can hold text."""
    evidence = TargetEvidence(Passage(f"id{text}", text, text))
    parts = (*target("R"), evidence, *target("r"), TargetText(text), *target("n1"))
    return TrainingRow(f"id{text}", f"source{text}", text, parts)


def provenance(row, text=""):
    """A record as `critic augment` writes it, with `text` in every place for text."""
    mark = json.dumps(text)[1:-1]
    record = RECORD.replace("@", mark).replace("KEY", json.dumps(row.id)[1:-1])
    return json.loads(record)


RECORD = """
{"id": "KEY", "why": "as it came@", "query": "who painted the ceiling@",
 "retrieve": {"label": "Retrieval", "p": {"Retrieval": 0.75}, "ratio": 0.8},
 "isuse": {"label": "5", "p": {"5": 0.5}}, "a key of tomorrow": ["@"],
 "segments": [{
  "start": 0, "end": 9, "token": "[Retrieval]@", "why": "asked for@", "chosen": "wiki-1@", "query": "who painted@",
  "rule": "relevant and fully supported@, best of 3",
  "candidates": [
   {"rank": 1, "id": "wiki-1@", "title": "Great Hall@", "score": 12.5, "isrel":
    {"label": "Relevant@", "p": {"Relevant@": 0.9}, "coverage": 0.99, "source": "token"}},
   {"rank": 2, "id": "wiki-9@", "title": "Great Hall@", "score": 12.5, "issup": null, "isrel":
    {"label": "Relevant@", "p": {"Relevant@": 0.9}, "coverage": 0.99, "source": "token"}}]}]}
"""


ROWS = [
    made(f"{made.__name__}-{n}")
    for made, count in ((short, 60), (unaided, 40), (long, 3))
    for n in range(count)
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    return path


def test_table_3_counts_rows_that_retrieve_at_least_once(file):
    statistics = inspect_rows([file]).statistics
    counts = {name: (t.rows, t.retrieving) for name, t in statistics.sources.items()}
    asqa = {"asqa/long_form": (3, 3)}
    assert counts == {"nq/short_qa": (60, 60), "alpaca/instruction": (40, 0)} | asqa
    long = statistics.sources["asqa/long_form"]
    labels = [*map(long.labels, (RETRIEVE, ISREL, ISSUP, ISUSE))]
    assert labels == [[6, 0, 3], [3, 3], [3, 3, 0], [0, 0, 3, 0, 0]]
    assert long.words == {11: 3}  # 4 + 4 + 3 words, passages left out
    total = statistics.total
    assert total.rows == 103
    assert total.retrieving == 63
    assert total.passages == {0: 40, 1: 60, 2: 3}
    assert total.segments == {1: 100, 3: 3}


def test_the_sample_is_seeded_and_takes_from_every_source_whatever_the_shards(
    file, tmp_path
):
    def sample(**options):
        return inspect_rows([file], **options).sample

    def ids(rows):
        return {row.id for row in rows}

    first = sample(count=13, seed=1)
    assert ids(first) != ids(sample(count=13, seed=2))
    by_source = Counter(row.source.partition("/")[0] for row in first)
    assert by_source == {"nq": 5, "alpaca": 5, "asqa": 3}
    assert sample(count=0) == ()
    assert len(sample(count=1_000)) == 103
    assert ids(sample(count=9, seed=1)) <= ids(first)
    shards = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    write_rows(shards[0], ROWS[:70])
    write_rows(shards[1], ROWS[70:])
    found = inspect_rows(shards, count=13, seed=1)
    assert found.sample == first
    assert found.statistics == inspect_rows([file]).statistics
    with refused("'short-0'"):
        inspect_rows([shards[0], shards[0]])


def test_provenance_is_kept_for_the_sample_and_counted_for_all(file, tmp_path):
    records = tmp_path / "provenance.jsonl"
    write_lines(records, (provenance(row) for row in ROWS[:50]))
    found = inspect_rows([file], count=10, provenance=[records])
    assert found.recorded == 50
    assert found.rules == {"relevant and fully supported": 50}
    assert set(found.provenance) == {row.id for row in found.sample} & {
        row.id for row in ROWS[:50]
    }


@pytest.mark.parametrize(
    "parts, expected",
    parse_table("""
REr(a)f5 | ""
N(a)REi(b)C(c)pREr(d)f5 | ""
(a)5 | text, [Utility:5]
N(a) | nothing
"5" | [Utility:5]
N5(a)5 | [Utility:5], text, [Utility:5]
NEr(a)5 | passage, [Relevant], text, [Utility:5]
RE(a)5 | [Retrieval], passage, text, [Utility:5]
N(a)R(b)5 | [Retrieval], text, [Utility:5]
C(a)f5 | [Continue to Use Evidence], text, [Fully supported], [Utility:5]
REi(a)p5 | [Partially supported], [Utility:5]
"""),
)
def test_a_target_that_departs_from_the_form_of_table_4_is_told(parts, expected):
    assert departure(target(parts)).partition(" where ")[0] == expected


def test_the_command_writes_a_page(file, tmp_path, capsys):
    records, out = tmp_path / "provenance.jsonl", tmp_path / "page.html"
    write_lines(records, [provenance(ROWS[0])])
    pages = []
    # a folder of critic augment
    for files in (f"{file} --provenance {records}", tmp_path):
        assert main(f"inspect {files} -o {out} -n 103 --replace".split()) == 0
        said = f"103 of 103 rows, 1 with provenance in {out}\n"
        assert capsys.readouterr().out == said
        pages.append(out.read_text())
    assert pages[0].count("<article ") == 103
    assert pages[0] == pages[1]


def test_bad_input_is_one_line_and_leaves_no_page(file, tmp_path, refusal):
    nameless, out = tmp_path / "nameless.jsonl", tmp_path / "page.html"
    nameless.write_text("{}\n")
    inspect = f"critic inspect {file} -o {out}"
    assert "count=-1" in refusal(f"{inspect} -n -1")
    assert "provenance record" in refusal(f"{inspect} -p {nameless}")
    assert not out.exists()


TAGS = """html head meta title style body a header h1 h2 h3 p ul li span bdi nav main section div table caption
    thead tbody tr th td svg text rect figure figcaption fieldset legend label input article details summary pre
    strong"""
ATTRIBUTES = """lang charset http-equiv content name class href id scope tabindex role aria-label aria-labelledby
    viewbox width height x y text-anchor dir type checked"""


def rendered(rows, records=None, files=(("rows", "0"),)):
    statistics, records = Statistics(), records or {}
    for row in rows:
        statistics.add(row)
    return render(
        Inspection(
            tuple(files), 7, statistics, tuple(rows), records, recorded=len(records)
        )
    )


def page(*args, **rest):
    """The page of rows, which is inert."""
    found = Structure(rendered(*args, **rest))
    found.check_inert(TAGS, ATTRIBUTES)
    return found


def of(text):
    """A page with a text in every place for text."""
    row = hostile(text)
    return page([row], {row.id: provenance(row, text)}, files=[(row.id, row.id)])


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_text_is_text(name):
    found = of(f"x{HOSTILE[name]}")
    assert found.skeleton() == of("x").skeleton()  # no character became mark-up
    assert not found.unseen()
    found.text().encode()


def test_huge_rows_are_cut_and_say_so():
    parts = (*target("N"), *[TargetText("word ")] * 5_000, *target("5"))
    text = rendered([TrainingRow("big", "s", "a" * 1_000_000, parts)])
    assert len(text) < 80_000
    assert f"({1_000_000 - MOST_VISIBLE:,} more characters)" in text
    assert f"{5_002 - MOST_PARTS:,} more parts" in text


def test_a_row_shows_its_tokens_text_folded_passages_and_provenance_for_the_ear_and_the_keyboard_too():
    rows = [short(), unaided(), long()]
    found = page(rows, {row.id: provenance(row) for row in rows[:1]})
    said = (
        "[Continue to Use Evidence]|Ann Example painted it.|asqa-1|weight 2|Tell me about the ceiling.|"
        "who painted the ceiling|relevant and fully supported, best of 3|Retrieval 0.75|12.5|a key of"
    ).split("|")
    assert [part for part in said if part not in found.text()] == []
    assert found.tags.count(("details", (("class", "passage"),))) == 3
    assert HALL.passage.text in found.text("div")
    assert found.text("summary").count("why these tokens") == 1
    assert all(
        dict(attrs).get("aria-label") for tag, attrs in found.tags if tag == "svg"
    )
    found.check_heard()


def test_provenance_of_another_making_is_tolerated():
    odd = {"isrel": {"label": ["x"], "p": {"x": 1}}, "score": "high"}
    segments = [
        1,
        None,
        "x",
        {},
        {"candidates": [2, {}, odd], "retrieve": {"p": {"a": None}}},
    ]
    for record in (
        {},
        {"segments": None, "retrieve": 3, "isuse": [], "why": {"a": 1}},
        {"segments": segments * 20},
    ):
        assert "why these tokens" in page([short()], {short().id: record}).text(
            "summary"
        )
