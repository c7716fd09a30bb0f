"""Rows of the five intrinsics: read strictly, and their stretches of text as sentences of the codec."""

import json
from collections import Counter
from pathlib import Path

import pytest
from intrinsic_rows import MAKERS, answerable, cited, judged, turns

from selfrag.errors import UserError
from selfrag.training.intrinsics.certainty import parse_question, read_questions, unseen
from selfrag.training.intrinsics.job import chosen, teachable
from selfrag.training.intrinsics.rows import (
    asked_alone,
    find_file,
    gold_of,
    parser,
    read_labelled,
    training_file,
    with_derived,
    without_evidence,
)

GIVEN = Path(__file__).parents[3] / "shared" / "data" / "intrinsics"


def gold(name, record):
    row = parser(name)(record)
    return gold_of(row, teachable(name).encode(row.state))


def test_stretches_become_the_labels_of_the_sentences_they_touch():
    assert gold("hallucination_detection", judged(0)).labels == ("faithful", "unfaithful")
    record = judged(0)
    record["sentences"] = record["sentences"][1:]
    assert gold("hallucination_detection", record).labels == (None, "unfaithful")


@pytest.mark.parametrize(
    ("given", "chat", "granite"),
    [
        ({"score": 0.3}, "partial", "0.3-0.4"),  # a score on a border is in the upper range
        ({"score": 1}, "faithful", "0.9-1.0"),
        ({"score": 0.09}, "unfaithful", "0.1-0"),
        ({"label": "0.1-0.2"}, "partial", "0.1-0.2"),
        ({"label": "partial"}, "partial", "0.5-0.6"),
        ({"label": "unanswerable"}, "NA", "unanswerable"),
        ({"label": "NA"}, "NA", "NA"),
    ],
)
def test_each_dialect_learns_its_own_degrees_of_faithfulness(given, chat, granite):
    record = judged(0)
    record["sentences"] = [{k: v for k, v in s.items() if k != "label"} | given for s in record["sentences"]]
    row = parser("hallucination_detection")(record)
    written = {}
    for dialect in ("chat", "granite-3.2", "mellea"):
        codec = teachable("hallucination_detection", dialect)
        request = codec.encode(row.state)
        written[dialect] = codec.teach(request, gold_of(row, request))
    assert [target.text for target in written["chat"]] == [f" {chat}"] * 2
    assert json.loads(json.loads(written["granite-3.2"][0].text)) == {"<r0>": granite, "<r1>": granite}
    (one,) = written["mellea"]
    assert [sentence["f"] for sentence in json.loads(one.text)] == [chat, chat]


def test_a_label_of_a_whole_response_is_no_label_of_its_sentences():
    record = judged(0) | {"label_level": "response"}
    assert gold("hallucination_detection", record).labels == (None, None)
    single = "Goethe wrote it."
    record |= {
        "conversation": turns("Who?", single),
        "sentences": [{"begin": 0, "end": len(single), "text": single, "label": "partial"}],
    }
    assert gold("hallucination_detection", record).labels == ("partial",)


def test_a_citation_of_a_word_is_one_of_its_sentence():
    # Sources: [0] Faust is a play. [1] Goethe wrote it in 1808. [2] It is in verse.
    assert gold("citation_generation", cited(0)).sources == ((1,), ())


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("answerability", {"label": "maybe"}, "unknown label 'maybe'"),
        ("answerability", {"conversation": turns("Q?", "A.")}, "ends with 'assistant'"),
        ("answerability", {"conversation": []}, "empty"),
        ("answerability", {"documents": "text"}, "'documents' must be a list"),
        ("query_rewrite", {"rewrite": " "}, "'rewrite' must be text"),
        ("query_rewrite", {"changed": "yes"}, "'changed' must be true or false"),
        ("hallucination_detection", {"label_level": "word"}, "'label_level'"),
        ("hallucination_detection", {"sentences": [{"begin": 0, "end": 999, "label": "NA"}]}, "no stretch of"),
        ("hallucination_detection", {"sentences": [{"begin": 0, "end": 3, "label": "so-so"}]}, "unknown label 'so-so'"),
        ("hallucination_detection", {"sentences": [{"begin": 0, "end": 3, "score": 1.5}]}, "a number from 0 to 1"),
        ("citation_generation", {"citations": [{"doc_id": "zz"}]}, "no document of this row"),
        ("citation_generation", {"citations": [7]}, "key 'doc_id' is missing"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, name, change, said):
    make = MAKERS[name][1]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(make(0)) + "\n" + json.dumps(make(1) | change) + "\n")
    with pytest.raises(UserError, match=said) as caught:
        read_labelled(path, name)
    assert f"{path}:2: " in str(caught.value)


def test_an_id_twice_and_an_unknown_intrinsic_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(2 * (json.dumps(answerable(0)) + "\n"))
    with pytest.raises(UserError, match="occurs twice"):
        read_labelled(path, "answerability")
    with pytest.raises(UserError, match="no training rows are known for 'x'"):
        read_labelled(path, "x")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": "E"}, "names none of the 4 options"),
        ({"options": ["a"]}, "at least two"),
        ({"options": ["a", "a"]}, "at least two different"),
        ({"options": "a"}, "'options' must be a list"),
        ({"question": ""}, "'question' must be text"),
    ],
)
def test_bad_questions_are_refused(change, said):
    with pytest.raises(UserError, match=said):
        parse_question(MAKERS["uncertainty"][1](0) | change)


def test_an_option_that_is_given_twice_is_one_option():
    record = MAKERS["uncertainty"][1](0)
    found = parse_question(record | {"options": ["sky", "roots", "sky ", "leaves"], "label": "D"})
    assert (found.options, found.right) == (("sky", "roots", "leaves"), 2)
    assert parse_question(record | {"options": ["sky", "roots", "sky"], "label": "C"}).right == 0


@pytest.mark.skipif(not GIVEN.is_dir(), reason="no data beside the checkout")
@pytest.mark.parametrize("name", MAKERS)
def test_the_data_that_the_demo_adapters_are_made_of_can_be_read(name):
    for path in (training_file(name, GIVEN), find_file(name, GIVEN, "dev")):
        assert len(read_questions(path) if name == "uncertainty" else read_labelled(path, name)) > 100


def test_questions_of_the_training_rows_are_left_out():
    questions = [parse_question(MAKERS["uncertainty"][1](number)) for number in range(3)]
    left = unseen(questions, ["Answer this.\n\nWhat  is 1 PLUS 1?\nA: 2"])
    assert [one.id for one in left] == ["u0", "u2"]


def test_files_are_found_in_the_folder_or_one_below(data, tmp_path):
    found = training_file("citation_generation", data)
    assert found.name == "citations_train.jsonl"
    assert find_file("citation_generation", data, "dev") is not None
    assert training_file("citation_generation", data.parent) == found
    assert training_file("citation_generation", found) == found
    with pytest.raises(UserError, match=r"no citations_train\.jsonl"):
        training_file("citation_generation", tmp_path)


def test_without_its_evidence_a_sentence_rests_on_nothing():
    record = cited(0)
    text = record["documents"][0]["text"]
    begin = text.index("Goethe")
    record["citations"][0] |= {"doc_begin": begin, "doc_end": text.index("It is"), "text": "x"}
    row = parser("citation_generation")(record)
    found = without_evidence(row)
    assert [passage.text for passage in found.state.passages] == ["Faust is a play. It is in verse."]
    codec = teachable("citation_generation")
    request = codec.encode(found.state)
    assert gold_of(found, request).sources == ((), ())
    assert {target.text for target in codec.teach(request, gold_of(found, request))} == {"00"}
    assert (found.id, found.source, found.group) == ("c0/uncited", "d/uncited", row.group)
    assert row == parser("citation_generation")(record)  # the row itself stays as it was
    assert without_evidence(found) is None
    record["citations"][0] |= {"doc_begin": 0, "doc_end": len(text)}
    assert without_evidence(parser("citation_generation")(record)) is None  # nothing would be left


def test_a_rewrite_asked_in_its_own_conversation_stays_as_it_is():
    row = parser("query_rewrite")(
        {
            "id": "q0",
            "dataset": "d",
            "conversation": [
                {"role": "user", "content": "What is throat cancer?"},
                {"role": "user", "content": "Is it treatable?"},
            ],
            "rewrite": "Is throat cancer treatable?",
            "changed": True,
        }
    )
    found = asked_alone(row)
    assert [message.content for message in found.state.messages] == [
        "What is throat cancer?",
        "Is throat cancer treatable?",
    ]
    codec = teachable("query_rewrite")
    request = codec.encode(found.state)
    (target,) = codec.teach(request, gold_of(found, request))
    assert "Is throat cancer treatable?" in target.text
    assert (found.id, found.source, found.group) == ("q0/standalone", "d/standalone", row.group)
    assert asked_alone(found) is None  # nothing is left to rewrite


@pytest.mark.parametrize(
    ("name", "stem", "derive", "source"),
    [
        ("citation_generation", "citations", without_evidence, "uncited"),
        ("query_rewrite", "query_rewrite", asked_alone, "standalone"),
    ],
)
def test_a_share_of_the_rows_is_derived(name, stem, derive, source, data):
    rows = read_labelled(data / f"{stem}_train.jsonl", name)
    made = with_derived(rows, derive, 0.25)
    assert made[: len(rows)] == rows
    assert [row.source for row in made[len(rows) :]] == [f"d/{source}"] * (len(rows) // 4)
    assert with_derived(rows, derive, 0.0) == rows
    others = read_labelled(data / "answerability_train.jsonl", "answerability")
    assert with_derived(others, derive, 0.5) == others


def test_a_choice_of_rows_keeps_the_proportions_of_the_sources(data):
    rows = read_labelled(data / "answerability_train.jsonl", "answerability")
    kept = chosen(rows, 10, seed=1)
    assert len(kept) == 10
    assert sum(row.label == "answerable" for row in kept) == 5
    assert kept == chosen(rows, 10, seed=1)
    assert chosen(rows, None, seed=1) == rows


def test_sources_alike_in_number_as_far_as_they_have_rows(data):
    rows = read_labelled(data / "answerability_train.jsonl", "answerability")  # labels in turn
    skewed = [row for at, row in enumerate(rows) if row.label == "answerable" or at < 6]
    kept = chosen(skewed, 10, seed=1, even=True)
    assert Counter(row.label for row in kept) == {"answerable": 7, "unanswerable": 3}
    assert Counter(row.label for row in chosen(skewed, 6, seed=1, even=True)) == {"answerable": 3, "unanswerable": 3}
    assert kept == [row for row in skewed if row in kept]
