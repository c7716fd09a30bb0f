"""Texts become passages of whole sentences, and tables passages of whole rows below their header."""

# ruff: noqa: RUF001 - full stops of many scripts

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from retrieval.documents.document import DocumentBuilder
from retrieval.sentences import _is_simple, sentence_finder, sentences
from retrieval.splitting import Splitting, count_words, split
from selfrag.judges.sentences import rules

RULES = sentence_finder()


TEXTS = st.text(
    st.sampled_from(list("ab cd. \n\n!?京都。é\t\u2028\x1f#")), max_size=300
) | st.text(max_size=200)


@given(TEXTS, st.integers(1, 12), st.integers(0, 4))
def test_every_character_is_kept_and_no_passage_is_over_budget(text, words, overlap):
    kept = set()
    for part in split(text, Splitting(words, overlap), RULES):
        assert 0 <= part.start < part.end <= len(text)
        body = text[part.start : part.end]
        assert body == body.strip()
        assert 1 <= count_words(body) <= words
        kept.update(range(part.start, part.end))
    lost = set(range(len(text))) - kept
    assert all(text[place].isspace() for place in lost)


FOUR = "One two three. Four five six. Seven eight nine. Ten eleven twelve."


@pytest.mark.parametrize(
    "text, words, overlap, passages",
    [
        (
            FOUR,
            6,
            1,
            "One two three. Four five six.|Four five six. Seven eight nine.|"
            "Seven eight nine. Ten eleven twelve.",
        ),
        (
            FOUR,
            6,
            0,
            "One two three. Four five six.|Seven eight nine. Ten eleven twelve.",
        ),
        ("a b c d e f g", 3, 0, "a b c|d e f|g"),
        # the overlap gives way to the budget
        (
            "One two. Three four five six seven. Eight.",
            5,
            2,
            "One two.|Three four five six seven.|Eight.",
        ),
        # a blank line ends a sentence, a line end does not
        ("A title\n\nThe body goes\non here.", 6, 0, "A title|The body goes\non here."),
        # lone surrogates do not stop the sentencizer
        ("One \ud800 is. \udc00\ud800 Two.", 3, 0, "One \ud800 is.|\udc00\ud800 Two."),
        ("東" * 25, 10, 0, f"{'東' * 10}|{'東' * 10}|{'東' * 5}"),
    ],
)
def test_sentences_are_packed_within_the_budget(text, words, overlap, passages):
    parts = split(text, Splitting(words, overlap), RULES)
    assert [part.text_in(text) for part in parts] == passages.split("|")


def test_a_huge_word_is_cut_and_scripts_without_spaces_are_counted_by_character():
    assert count_words("東京都 hello") == 4
    assert count_words("ประเทศไทย ของเรา") == 5
    parts = split("x" * 250_000, Splitting(100, 0), RULES)
    assert sum(part.end - part.start for part in parts) == 250_000
    assert max(part.end - part.start for part in parts) <= 6400


def test_an_unknown_spacy_model_is_named_with_the_command():
    with refused("python -m spacy download no_such_model"):
        sentence_finder("no_such_model")


def with_table(rows, *, header=True, before="Fees in crowns.", after=""):
    """Each passage of a document around a table, 12 words long, and the row that it is a part of."""
    builder = DocumentBuilder("doc")
    builder.add_paragraph(before)
    builder.add_table(rows, header=header)
    builder.add_paragraph(after)
    made = builder.build()
    parts = split(made.text, Splitting(words=12, overlap=1), RULES, tables=made.tables)
    assert all(count_words(part.text_in(made.text)) <= 12 for part in parts)
    return [(part.text_in(made.text), part.row) for part in parts]


@pytest.mark.parametrize(
    "table, options, passages, of_row",
    [
        # a small table stays with the text around it
        (
            "Berth|Fee\nB1|10",
            {"after": "So it is."},
            "Fees in crowns.\n\nBerth | Fee\nB1 | 10\n\nSo it is.",
            [],
        ),
        # a long one is cut between its rows, below its header; the sentence before it is repeated, rows are not
        (
            "Berth|Fee\nB1|10\nB2|20\nB3|30\nB4|40\nB5|50",
            {"after": "So it is."},
            "Fees in crowns.\n\nBerth | Fee\nB1 | 10\nB2 | 20/Berth | Fee\nB3 | 30\nB4 | 40\nB5 | 50/So it is.",
            [],
        ),
        (
            "a|0\na|1\na|2\na|3\na|4",
            {"header": False, "before": ""},
            "a | 0\na | 1\na | 2\na | 3/a | 4",
            [],
        ),
        # parts of a row that is longer than a passage know their row
        (
            "Berth|Fee\nB1|10\nB2|one two three four five. six seven eight nine ten. eleven.\nB3|30",
            {"before": ""},
            "Berth | Fee\nB1 | 10/Berth | Fee\nB2 | one two three four five./"
            "Berth | Fee\nsix seven eight nine ten. eleven./Berth | Fee\nB3 | 30",
            [1, 2],
        ),
        # a header that leaves too little room is a row, and is not repeated
        (
            "one two three four|five six seven\na|b",
            {"before": ""},
            "one two three four | five six seven\na | b",
            [],
        ),
    ],
)
def test_d5_tables_are_cut_between_rows_and_repeat_their_header(
    table, options, passages, of_row
):
    """`of_row` names the passages that are parts of row 2."""
    rows = [row.split("|") for row in table.split("\n")]
    parts = with_table(rows, **options)
    assert [text for text, _ in parts] == passages.split("/")
    assert [place for place, (_, row) in enumerate(parts) if row == 2] == of_row
    assert {row for _, row in parts} <= {None, 2}


CELLS = st.text(st.sampled_from("ab. |"), max_size=30)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=8), st.booleans())
def test_every_cell_of_a_table_is_kept(rows, header):
    parts = with_table(rows, header=header)
    words = " ".join(text for text, _ in parts).split()
    assert set(words) >= {word for row in rows for cell in row for word in cell.split()}


@pytest.mark.parametrize(
    "joint, parts",
    [
        (" ", 'He met Mr. Smith, e.g. in the U.S. today.|She said "No!"|Then he left.'),
        (
            "",
            "绿茶应当用八十度的水冲泡。|他说：“你好！”|对吗？|３．１４です．|「行く。」|次",
        ),
        ("", "दिल्ली राजधानी है।|वह यहाँ है॥|हाँ"),
        (" ", "दिल्ली राजधानी है।|“वह” यहाँ है॥"),
        ("", "هل هذا صحيح؟|یہ ہے۔|لا"),
        ("", "Հայաստան երկիր է։|ኢትዮጵያ አገር ናት።|မြန်မာနိုင်ငံ။|ភ្នំពេញ។|བཀྲ་ཤིས། །|ཁྱེད་རང་"),
        (" ", "ประเทศไทยมีเมืองหลวงชื่อกรุงเทพ|มหานครมีประชากรมาก ๆ และใหญ่กว่าที่อื่น|ປະເທດລາວ"),
        (" ", "საქართველო ქვეყანაა.|თბილისი დედაქალაქია."),
    ],
)
def test_sentences_end_at_the_full_stops_of_their_script(joint, parts):
    """Full stops of scripts without spaces need none behind them, and closing quotes belong to their sentence."""
    text = parts.replace("|", joint)
    spans = sentences(text, RULES)
    assert [text[start:end] for start, end in spans] == parts.split("|")


@pytest.fixture(scope="module")
def spacy_rules():
    import spacy

    rules = spacy.blank("en")
    rules.add_pipe("sentencizer")
    return rules


@given(text=st.text(st.sampled_from(list("aB. \n\t!?\"'(),-1")), max_size=80))
def test_sentences_are_those_of_spacy_for_words_with_few_signs(spacy_rules, text):
    # words of more signs are read by simpler rules
    words = [word[:6] for word in text.split(" ")]
    plain = " ".join(word if _is_simple(word) else "a" for word in words)
    assert RULES(plain) == [
        (sentence.start_char, sentence.end_char)
        for sentence in spacy_rules(plain).sents
    ]


UNITS = """( . ." !) a.b e.g. 。 .)" :-) http://a.b/?c= ། """


@pytest.mark.parametrize("unit", [*UNITS.split(), "x ", '.) "', "x et al. "])
def test_sentences_are_found_in_linear_time(unit):
    """Issue 45, section 3: 50 KB of such runs took minutes with spaCy alone."""
    text = unit * (50_000 // len(unit))
    start = time.process_time()
    sentences(text, rules)
    assert time.process_time() - start < 10
