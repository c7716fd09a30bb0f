"""Rows of the five intrinsics: read strictly, learned as inference asks, certainty calibrated on a model's answers."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
from intrinsic_rows import CHAT, MAKERS, answerable, cited, judged, question_row, turns
from json_files import table, write_lines
from refusals import refused
from scripted import ScriptedEngine

from selfrag.engines.base import EngineLimits
from selfrag.evaluation.metrics.classification import calibration_error
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.rendering import Renderer
from selfrag.reflection.inputs import Message
from selfrag.training.intrinsics.certainty import (
    ChoiceAnswer,
    ChoiceQuestion,
    certainty_rows,
    confidences,
    fit,
    of_other_data_sets,
    out_of_fold,
    parse_question,
    parse_row,
    unseen,
)
from selfrag.training.intrinsics.job import (
    ADAPTERS,
    AdapterJob,
    RowSelection,
    chosen,
    example,
    make_examples,
    prepared,
    teachable,
)
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
from selfrag.training.recipes import read_recipe
from selfrag.training.rows import MASKED


def learned(name, row, dialect="chat"):
    """What is known of a row, and what a codec teaches of it."""
    codec = teachable(name, dialect)
    request = codec.encode(row.state)
    gold = gold_of(row, request)
    return gold, codec.teach(request, gold)


def gold(name, record):
    return learned(name, parser(name)(record))[0]


DEGREES = """
{"score": 0.3} | partial
{"score": 1} | faithful
{"score": 0.09} | unfaithful
{"label": "0.1-0.2"} | partial
{"label": "partial"} | partial
{"label": "unanswerable"} | NA
{"label": "NA"} | NA
"""
"""A score on a border is in the upper range."""


@pytest.mark.parametrize("degree, grade", table(DEGREES))
def test_degrees_of_faithfulness_are_learned_as_grades(degree, grade):
    record = judged(0)
    for sentence in record["sentences"]:
        del sentence["label"]
        sentence |= json.loads(degree)
    row = parser("hallucination_detection")(record)
    _, targets = learned("hallucination_detection", row)
    assert [target.text for target in targets] == [f" {grade}"] * 2


def test_stretches_become_the_labels_or_the_sources_of_the_sentences_they_touch():
    record = judged(0)
    assert gold("hallucination_detection", record).labels == ("faithful", "unfaithful")
    partly = record | {"sentences": record["sentences"][1:]}
    assert gold("hallucination_detection", partly).labels == (None, "unfaithful")
    # no label of its sentences, unless there is one
    complete = record | {"label_level": "response"}
    assert gold("hallucination_detection", complete).labels == (None, None)
    stretch = {"begin": 0, "end": 16, "text": "Goethe wrote it.", "label": "partial"}
    single = complete | {
        "conversation": turns("Who?", "Goethe wrote it."),
        "sentences": [stretch],
    }
    assert gold("hallucination_detection", single).labels == ("partial",)
    # Sources: [0] Faust is a play. [1] Goethe wrote it in 1808. [2] It is in verse.
    assert gold("citation_generation", cited(0)).sources == ((1,), ())


BAD = """
answerability | {"label": "maybe"} | 'label' must be 'answerable' or 'unanswerable', not 'maybe'
answerability | {"conversation": [{"role": "assistant", "content": "A."}]} | ends with 'assistant'
answerability | {"conversation": []} | empty
answerability | {"documents": "text"} | 'documents' must be a list
answerability | {"id": "a0"} | occurs twice
query_rewrite | {"rewrite": " "} | 'rewrite' must be text
query_rewrite | {"changed": "yes"} | 'changed' must be true or false
hallucination_detection | {"label_level": "word"} | 'label_level'
hallucination_detection | {"sentences": [{"begin": 0, "end": 999, "label": "NA"}]} | no stretch of
hallucination_detection | {"sentences": [{"begin": 0, "end": 3, "label": "so-so"}]} | unknown label 'so-so'
hallucination_detection | {"sentences": [{"begin": 0, "end": 3, "score": 1.5}]} | must be less than or equal to 1
citation_generation | {"citations": [STRANGE]} | no document of this row
citation_generation | {"citations": [7]} | 'citations.0' must be an object
"""
STRANGE = '{"doc_id": "zz", "response_begin": 0, "response_end": 1, "doc_begin": 0, "doc_end": 1}'


@pytest.mark.parametrize("name, change, said", table(BAD))
def test_a_bad_row_is_named_by_file_and_line(tmp_path, name, change, said):
    make = MAKERS[name][1]
    path = tmp_path / "rows.jsonl"
    bad = make(1) | json.loads(change.replace("STRANGE", STRANGE))
    write_lines(path, [make(0), bad])
    with refused(said) as caught:
        read_labelled(path, name)
    assert f"{path}:2: " in str(caught.value)


BAD_QUESTIONS = """
{"label": "E"} | names none of the 4 options
{"options": ["a", "a"]} | at least two different
{"options": "a"} | 'options' must be a list
{"question": ""} | 'question' must be text
"""


@pytest.mark.parametrize("change, said", table(BAD_QUESTIONS))
def test_bad_questions_are_refused(change, said):
    with refused(said):
        parse_question(question_row(0) | json.loads(change))


def test_an_option_that_is_given_twice_is_one_option():
    question = parse_question(
        question_row(0) | {"options": ["sky", "roots", "sky ", "leaves"], "label": "D"}
    )
    assert (question.options, question.right) == (("sky", "roots", "leaves"), 2)
    assert (
        parse_question(
            question_row(0) | {"options": ["sky", "roots", "sky"], "label": "C"}
        ).right
        == 0
    )


def test_files_are_found_in_the_folder_or_one_below(data, tmp_path):
    file = training_file("citation_generation", data)
    assert file.name == "citations_train.jsonl"
    assert find_file("citation_generation", data, "dev").name == "citations_dev.jsonl"
    assert (
        training_file("citation_generation", data.parent)
        == training_file("citation_generation", file)
        == file
    )
    with refused("'x'"):
        read_labelled(file, "x")
    with refused(r"no citations_train\.jsonl"):
        training_file("citation_generation", tmp_path)


def test_without_its_evidence_a_sentence_rests_on_nothing():
    record = cited(0)
    text = record["documents"][0]["text"]
    record["citations"][0] |= {"doc_end": text.index("It is"), "text": "x"}
    row = parser("citation_generation")(record)
    cut_row = without_evidence(row)
    assert [passage.text for passage in cut_row.state.passages] == [
        "Faust is a play. It is in verse."
    ]
    taught, targets = learned("citation_generation", cut_row)
    assert taught.sources == ((), ())
    assert {target.text for target in targets} == {"00"}
    assert (cut_row.id, cut_row.source, cut_row.group) == (
        "c0/uncited",
        "d/uncited",
        row.group,
    )
    # the row itself stays as it was
    assert row == parser("citation_generation")(record)
    assert without_evidence(cut_row) is None
    record["citations"][0] |= {"doc_begin": 0, "doc_end": len(text)}
    # nothing would be left
    assert without_evidence(parser("citation_generation")(record)) is None


def test_a_rewrite_asked_in_its_own_conversation_stays_as_it_is():
    row = parser("query_rewrite")(MAKERS["query_rewrite"][1](0))
    alone = asked_alone(row)
    said = ["Who wrote play 0?", "Goethe.", "When did Goethe write play 0?"]
    assert [message.content for message in alone.state.messages] == said
    (target,) = learned("query_rewrite", alone)[1]
    assert said[-1] in target.text
    assert (alone.id, alone.source, alone.group) == (
        "q0/standalone",
        "d/standalone",
        row.group,
    )
    assert asked_alone(alone) is None  # nothing is left to rewrite


def test_a_share_of_the_rows_is_derived(data):
    others = read_labelled(data / "answerability_train.jsonl", "answerability")
    for name, derive, source in (
        ("citation_generation", without_evidence, "uncited"),
        ("query_rewrite", asked_alone, "standalone"),
    ):
        rows = read_labelled(training_file(name, data), name)
        made = with_derived(rows, derive, 0.25)
        assert made[: len(rows)] == rows == with_derived(rows, derive, 0.0)
        assert [row.source for row in made[len(rows) :]] == [f"d/{source}"] * (
            len(rows) // 4
        )
        assert with_derived(others, derive, 0.5) == others


def test_a_choice_of_rows_keeps_the_proportions_or_the_numbers_of_the_sources(data):
    # labels in turn
    rows = read_labelled(data / "answerability_train.jsonl", "answerability")
    skewed = [row for at, row in enumerate(rows) if row.label == "answerable" or at < 6]
    for given, count, even, shares in (
        (rows, 10, False, (5, 5)),
        (skewed, 10, True, (7, 3)),
        (skewed, 6, True, (3, 3)),
    ):
        kept = chosen(given, count, seed=1, even=even)
        counts = Counter(row.label for row in kept)
        assert (counts["answerable"], counts["unanswerable"]) == shares
        assert kept == chosen(given, count, seed=1, even=even)
        assert kept == [row for row in given if row in kept]
    assert chosen(rows, None, seed=1) == rows


# --- Training examples are, id for id, what inference sends to the engine ------------------------------------------

TOKENIZER = tiny.byte_level_tokenizer(reflection=False)
TOKENIZER.chat_template = CHAT
RENDERER = Renderer.of(TOKENIZER)


def some_answers(count):
    """Answers of a model that is sure, and right, on every third question; elsewhere it is right by luck."""
    answers = []
    for number in range(count):
        question = parse_question(question_row(number))
        logprobs = (
            (-0.01, -6.0, -6.0, -6.0)
            if number % 3 == 0
            else (-1.4, -1.39, -1.41, -1.42)
        )
        answers.append(ChoiceAnswer(question.id, question, logprobs))
    return answers


def rows_of(name):
    if name == "uncertainty":
        return certainty_rows(some_answers(240))[:4]
    return [parser(name)(MAKERS[name][1](number)) for number in range(4)]


@pytest.mark.parametrize("name", MAKERS)
def test_examples_are_what_inference_asks(name):
    codec = teachable(name)
    executor = EngineExecutor(
        ScriptedEngine(lambda request: None, 2, EngineLimits(4096, 100_000)), RENDERER
    )
    checked = 0
    for row in rows_of(name):
        request = codec.encode(row.state)
        sent = {inferred.prompt_ids for inferred in next(executor.steps([request]))}
        for target in codec.teach(request, gold_of(row, request)):
            made = example(request, target, RENDERER)
            learned = [at for at, label in enumerate(made.labels) if label != MASKED]
            # Every prefix from which a token is learned is a prompt that inference scores or continues.
            assert made.ids[: learned[0]] in sent
            if request.slots:
                assert all(made.ids[:at] in sent for at in learned[:-1])
            assert learned == list(range(learned[0], len(made.ids)))
            assert made.ids[-1] == RENDERER.end_id
            assert (
                RENDERER.text.decode([made.ids[at] for at in learned[:-1]]).strip()
                == target.text.strip()
            )
            checked += 1
    assert checked >= 4


def test_rows_that_give_no_example_are_out_before_any_are_chosen(tmp_path):
    rows = [parser("answerability")(answerable(number)) for number in range(40)]
    long = (Message("user", "why " * 400),)
    rows = [
        replace(r, state=replace(r.state, messages=long)) if at % 4 == 0 else r
        for at, r in enumerate(rows)
    ]
    config = read_recipe("demo", ADAPTERS, "answerability").config
    job = AdapterJob(
        "answerability",
        tmp_path,
        tmp_path,
        tmp_path,
        config,
        RowSelection(most_rows=20),
    )
    made = prepared(rows, teachable("answerability"), RENDERER, job, {})
    assert made.facts["rows"] == made.facts["examples"] + made.facts["held_out"] == 20
    assert made.facts["skipped"] == {
        "longer than 420 tokens": 10,
        "not among the rows chosen": 10,
    }


# --- Certainty ----------------------------------------------------------------------------------------------------


def test_targets_of_a_row_are_drawn_the_same_each_time():
    rows = rows_of("hallucination_detection")
    codec = teachable("hallucination_detection")
    taken, again, every = (
        make_examples(rows, codec, RENDERER, max_length=4096, most_slots=most)[0]
        for most in (1, 1, None)
    )
    assert len(taken) == 4
    assert taken == again
    assert {text for _, text in taken} < {text for _, text in every}


def answered(logprobs, right, dataset="x"):
    questions = (
        ChoiceQuestion(f"{dataset}{n}", dataset, "Q?", ("a", "b", "c", "d"), letter)
        for n, letter in enumerate(right)
    )
    return [
        ChoiceAnswer(letter.id, letter, tuple(row))
        for letter, row in zip(questions, logprobs, strict=True)
    ]


def drawn(count, temperature, dataset="x"):
    """Answers whose right options are drawn from their probabilities softened by `temperature`: too sure above 1."""
    random = np.random.default_rng(0)
    logprobs = np.log(random.dirichlet([0.6] * 4, count))
    softened = np.exp(logprobs / temperature)
    softened /= softened.sum(axis=1, keepdims=True)
    return answered(
        logprobs.tolist(), [int(random.choice(4, p=row)) for row in softened], dataset
    )


def correct(answers):
    return [float(answer.is_right) for answer in answers]


def test_the_temperature_that_made_the_answers_is_found():
    answers = drawn(1500, 2.5)
    fitted = fit(answers)
    assert fitted.temperature == pytest.approx(2.5, rel=0.1)
    assert (
        calibration_error(confidences(answers).tolist(), correct(answers)).value > 0.15
    )
    assert calibration_error(fitted(answers).tolist(), correct(answers)).value < 0.04


def test_out_of_fold_certainties_do_not_come_from_their_own_answers():
    """Pure noise: a calibrator fitted on its own rows would look informed, one of other rows may not."""
    random = np.random.default_rng(3)
    logprobs = np.log(random.dirichlet([1.0] * 4, 400)).tolist()
    answers = answered(logprobs, random.integers(0, 4, 400).tolist())
    certainties, hits = out_of_fold(answers), np.array(correct(answers))
    assert abs(np.corrcoef(certainties, hits)[0, 1]) < 0.15
    assert certainties.mean() == pytest.approx(hits.mean(), abs=0.05)


def written(number, score, right, dataset="nq", **changes):
    said = {
        "id": f"{dataset}{number}",
        "conversation": turns(f"Q{number}?"),
        "dataset": dataset,
        "answer": "Goethe",
    }
    documents = [{"doc_id": "p", "title": "Goethe", "text": "He wrote it."}]
    return parse_row(
        said | {"documents": documents, "score": score, "right": right} | changes
    )


def test_too_few_questions_or_answers_without_a_verdict_are_refused():
    with refused("too few"):
        fit(drawn(3, 1.0))
    with refused("tiny: 50 questions"):
        out_of_fold(drawn(50, 1.0, dataset="tiny"))
    with refused("options and written answers"):
        fit([*drawn(10, 1.0), written(0, 1.0, True)])
    for change in ({"score": "high"}, {"right": 1}):
        with refused(f"'{next(iter(change))}'"):
            written(0, **{"score": 1.0, "right": True} | change)


def test_written_answers_are_calibrated_by_their_score_and_keep_their_passages():
    # A score of 2 is right three times of four, one of 1 once of four.
    answers = [
        written(n, 1.0 + n % 2, (n // 2) % 4 != 0 if n % 2 else (n // 2) % 4 == 0)
        for n in range(160)
    ]
    assert of_other_data_sets(answers) == [None] * 160  # there is no other data set
    after, before, *_ = certainty_rows(answers)
    assert [item.text for item in after.state.passages] == ["He wrote it."]
    assert [
        [item.content for item in row.state.messages] for row in (after, before)
    ] == [
        ["Q0?", "Goethe"],
        ["Q0?"],
    ]
    assert fit(answers)(answers)[:2].tolist() == pytest.approx([0.25, 0.75])
    trivia = [written(n, 1.0 + n % 2, True, "trivia") for n in range(20)]
    certainties = of_other_data_sets([*answers, *trivia])
    assert certainties[160:162] == pytest.approx([0.25, 0.75])  # as nq taught it
    assert certainties[0] == certainties[1] == 1.0  # as trivia taught it


def test_questions_of_the_training_rows_are_left_out():
    left = unseen(
        [parse_question(question_row(number)) for number in range(3)],
        ["Answer this.\n\nWhat  is 1 PLUS 1?\nA: 2"],
    )
    assert [question.id for question in left] == ["u0", "u2"]
