"""Refusals with reasons: a text that explains why it gives no answer, and answers that hold such words."""

import time

import pytest

from selfrag.decoding.refusals import abstains

REFUSALS = [
    "The provided context does not include the opening hours of the museum. It only lists its exhibitions. Therefore, "
    "I cannot answer the question.",
    "I cannot answer this from the sources. While source [2] gives the revenue of 2019 ($3,200 million), the sources "
    "do not contain the figures of 2018 that would be needed.",
    "The tower stands in Lille. However, the context does not say who built it. Therefore, based on the given "
    "information, the builder cannot be determined.",
    "The birth date of A. B. Carter is not provided in the given context.",
    "Based on the given documents, the fee is not explicitly mentioned. The documents describe how to apply, but do "
    "not specify what it costs.",
    "I'm sorry, but I don't have the rainfall of 2023. The information provided ends in 2020. If you can provide newer "
    "data, I would be happy to help.",
    "To compute the ratio I need both figures.\n\n- Dividends: $1.2 billion\n- Net income: not in the context\n\n"
    "Therefore, I don't know.",
    "I couldn't find relevant information about parking in the leaflet. It does not mention cars at all.\n\nSources:\n"
    "1. [Leaflet](https://example.org/leaflet)",
    "ABSTAIN: The evidence is about other plants. It says when they flower.",
    "NOT FOUND\n\nThe context names version 2 only as that of the compiler.",
    "Neither Ames nor Boone is mentioned in the passages.",
    "There is no direct answer to the question. The search results are about pianos.",
    "The context speaks of voice assistants. It does not mention any language. Therefore, the answer would be `Not "
    "specified`.".replace("`", '"'),
    "No relevant evidence was found on the author's training.",
    "The provided pieces of context do not mention the bridge. Without additional information, it is not possible to "
    "determine its length.",
]

ANSWERS = [
    # a detail is missing behind an answer
    "She was born in Warsaw and studied in Paris. The passage does not mention her birthday.",
    "The plan costs $5 a month [1]. The documentation does not specify any other fees.",
    # the text turns to an answer
    "The text does not specify who decides, but it suggests that the council does.",
    "The context does not contain her birth date. However, based on publicly available information, she was born on 2 "
    "May 1950.",
    "The passage does not name the year. However, it says that the war had just ended, so it can be inferred that it "
    "was 1945.",
    "I don't have a body, but I can tell you that the sea is salty.",
    # an answer of yes or no
    "No, it cannot be seen from the road. Therefore, it is not possible to photograph it from there.",
    "Yes, that is possible. The manual does not mention any limit.",
    # the words are about the world
    "The report found no evidence of fraud.",
    "The cause of the fire was never found. The owner was not insured.",
    "The names are Ann and Bo. However, I do not know the referee.",
    # nothing but a mark
    "[no]",
    # an answer in the midst of remarks
    "The passage does not mention her birthplace. She won the prize in 1903.",
]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_with_reasons_is_one(text):
    assert abstains(text)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_with_such_words_is_none(text):
    assert not abstains(text)


@pytest.mark.parametrize(
    "unit",
    [
        "the context ",
        "i cannot ",
        "but it is not provided ",
        "based on the given context, ",
        "no information ",
        "*[( ",
    ],
)
def test_a_text_of_nothing_but_such_words_takes_no_time(unit):
    start = time.perf_counter()
    abstains((unit * 400)[:1_500])
    assert time.perf_counter() - start < 1
