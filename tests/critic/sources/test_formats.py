"""Each format on a small file in the schema in which its data set is published; the texts are made up."""

import json
from pathlib import Path

import pytest

from critic.formats import AMBIGUOUS_QUESTION, CHAT_HISTORY, FACT_CHECK, FORMATS, choice_instruction, named
from critic.mixture import Reading, load
from critic.pairs import Dropped, Pair, parse_pair
from retrieval.errors import UserError

SAMPLES = Path(__file__).parent / "samples"
FILES = {
    "gpt4_alpaca": "alpaca.json",
    "stanford_alpaca": "alpaca.json",
    "flan_v2": "flan.jsonl",
    "sharegpt": "sharegpt.json",
    "oasst1": "oasst_trees.jsonl",
    "oasst1_messages": "oasst_messages.jsonl",
    "open_instruct": "open_instruct.jsonl",
    "kilt_nq": "kilt_nq.jsonl",
    "kilt_wow": "kilt_wow.jsonl",
    "kilt_fever": "kilt_fever.jsonl",
    "asqa": "asqa.json",
    "arc_easy": "arc.jsonl",
    "openbookqa": "openbookqa.jsonl",
}


def outcomes(name, file=None, **reading):
    return list(load(SAMPLES / (file or FILES[name]), named(name), Reading(**reading)))


def pairs(name, file=None, **reading):
    return [o for o in outcomes(name, file, **reading) if isinstance(o, Pair)]


def skipped(name, **reading):
    return [(o.id.rpartition(":")[2], o.reason) for o in outcomes(name, **reading) if isinstance(o, Dropped)]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_format_gives_pairs_that_the_rest_of_the_project_reads(form, tmp_path):
    found = pairs(form.name)
    assert found
    assert [parse_pair(pair.as_dict()) for pair in found] == found
    assert len({pair.id for pair in found}) == len(found)
    other = tmp_path / "other.jsonl"
    other.write_text('{"colour": "red"}\n')
    with pytest.raises(UserError, match=r"other\.jsonl:1: .*'colour'"):
        list(load(other, form))


def test_the_papers_counts_are_those_of_its_table():
    assert sum(form.paper_rows for form in FORMATS if form.name != "oasst1_messages") == 145_619  # appendix A.3
    with pytest.raises(UserError, match="unknown format 'alpaka'; known: gpt4_alpaca, "):
        named("alpaka")


def test_alpaca_joins_the_input_and_leaves_out_what_says_that_there_is_none():
    with_input, without = pairs("stanford_alpaca")[1:]
    assert with_input.instruction == "Identify the odd one out.\n\n## Input:\n\nheron, stork, trout"
    assert without.instruction == 'Give a synonym of "quick".'
    assert skipped("stanford_alpaca") == [(" row 3", "no output")]
    assert [pair.id for pair in pairs("gpt4_alpaca")] == ["gpt4_alpaca-0", "gpt4_alpaca-1", "gpt4_alpaca-3"]
    # The line ends that only the template of FLAN needs are lost.
    assert (pairs("flan_v2")[0].instruction[-4:], pairs("flan_v2")[1].output) == ("- no", "She goes home.")


def test_sharegpt_takes_whole_conversations_of_one_exchange():
    (pair,) = pairs("sharegpt")
    assert (pair.id, pair.instruction) == ("sharegpt-aBcD123_0", "Why is the sea salty?")
    assert [reason for _, reason in skipped("sharegpt")] == [
        "a later piece of a conversation",
        "a conversation of more than one exchange",
        "a conversation without turns",
        "a conversation whose beginning is cut off",
        "a conversation with a turn of system",
        "no output",
    ]
    # Seven characters name a conversation, and one of them may be an underscore.
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    rows = [{"id": key, "conversations": turns} for key in ("abcde_7", "abcdefg", "abcde_7_0", "abcde_7_4")]
    assert [isinstance(one, Pair) for one in load(rows, named("sharegpt"))] == [True, True, True, False]


@pytest.mark.parametrize("name", ["oasst1", "oasst1_messages"])
def test_open_assistant_gives_every_accepted_first_reply_from_trees_and_from_messages(name):
    assert [(pair.id, pair.instruction, pair.output) for pair in pairs(name, language="en")] == [
        ("oasst1-r-1", "What is a monsoon?", "A seasonal wind that brings rain."),
        ("oasst1-r-2", "What is a monsoon?", "Rain."),
    ]
    assert [pair.output for pair in pairs(name)][-1] == "Un viento estacional."
    reasons = [reason for _, reason in skipped(name, language="en")]
    once = ("a reply that was deleted or did not pass review", "no output", "not in 'en'")
    assert [reasons.count(reason) for reason in once] == [1, 1, 1]


def test_open_assistant_messages_must_follow_their_prompt():
    rows = [json.loads(line) for line in (SAMPLES / "oasst_messages.jsonl").read_text().splitlines()]
    with pytest.raises(UserError, match="row 4: a message of tree p-1 that does not follow its prompt"):
        list(load([*rows[6:], *rows[1:3]], named("oasst1_messages")))


def test_open_instruct_files_a_pair_under_its_own_data_set():
    assert [(pair.dataset, pair.id, pair.instruction) for pair in pairs("open_instruct")] == [
        ("stanford_alpaca", "stanford_alpaca_0", "List two fruits."),
        ("flan_v2", "flan_v2_7", "Is a whale a fish?"),
        ("sharegpt", "sharegpt-yZaB901_0", "Name a planet."),
    ]


def test_kilt_takes_the_first_answer_and_the_words_of_the_paper():
    first, second = pairs("kilt_nq")
    assert (first.id, first.output) == ("nq-6915606477668963399", "in spring")
    assert (first.instruction, second.output) == ("when does the river of that town flood", "a local teacher")
    assert skipped("kilt_nq") == [("3", "no output")]
    (pair,) = pairs("kilt_wow")
    dialogue = "I like hiking.\nMe too! Where do you go?\nMostly in the Alps."
    assert (pair.kind, pair.instruction) == ("dialogue", f"{CHAT_HISTORY}\n\n## Input:\n\n{dialogue}")
    assert [(p.id, p.output) for p in pairs("kilt_fever")] == [("fever-33078", "true"), ("fever-33079", "false")]
    assert pairs("kilt_fever")[0].instruction == f"{FACT_CHECK}\n\n## Input:\n\nThe Alps are in Europe."
    unknown = [{"id": 1, "input": "x", "output": [{"answer": "NOT ENOUGH INFO"}]}]
    with pytest.raises(UserError, match="row 1: unknown verdict 'NOT ENOUGH INFO'"):
        list(load(unknown, named("kilt_fever")))


def test_the_dpr_files_of_kilt_bring_their_passages():
    first, second = pairs("kilt_nq", "dpr_nq.json")
    assert first.output == "Ann Example"
    assert [(p.id, p.title, p.text) for p in first.passages] == [
        ("1234567", "Great Hall", "The ceiling was painted by Ann Example in 1720.")
    ]
    assert second.passages == ()


def test_asqa_brings_what_its_writers_quoted():
    (pair,) = pairs("asqa")
    assert pair.id == "asqa-5742327904742262955"
    assert pair.instruction == f"{AMBIGUOUS_QUESTION}\n\n## Input:\n\nWho won the cup in the valley?"
    assert [(p.title, p.text) for p in pair.passages] == [
        ("Valley Cup", "The Reds won in 1990."),
        ("", "The Blues won a year later."),
    ]
    assert [p.output for p in pairs("asqa", split="dev")] == ["The old one in 1700, the new one in 1900."]
    assert skipped("asqa") == [(" train/-42", "no output")]


def test_defect_28_numbered_options_become_letters():
    numbered = pairs("arc_easy")[1]
    assert numbered.instruction.endswith("\nA: iron\nB: water\nC: wood\nD: air")
    assert numbered.output == "B"
    assert choice_instruction("ABCD") == "Given four answer candidates, A, B, C and D, choose the best answer choice."
    three, five = pairs("arc_easy")[2:]
    assert three.instruction.startswith("Given three answer candidates, A, B and C, choose")
    assert five.instruction.startswith("Given five answer candidates, A, B, C, D and E, choose")
    (stem,) = pairs("openbookqa")
    assert "The sun is responsible for\nA: puppies" in stem.instruction
    assert (five.output, stem.output) == ("E", "D")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"answerKey": "E"}, "'answerKey' 'E' is none of the labels A, B"),
        ({"choices": {"text": ["x"], "label": ["A"]}}, "2 to 26"),
        ({"choices": {"text": ["x", "y"], "label": ["A"]}}, "lists of different lengths"),
        ({"id": None}, "'id' must be a name or a whole number, not None"),
    ],
)
def test_a_malformed_choice_is_named(record, message):
    good = {"id": "q", "question": "?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"}
    with pytest.raises(UserError, match=f"row 2: .*{message}"):
        list(load([good, good | {"id": "p"} | record], named("arc_easy")))
