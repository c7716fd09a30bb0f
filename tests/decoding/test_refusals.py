"""What counts as a text that gives no answer: wordings of common models, and texts that only begin like one."""

import time
from pathlib import Path

import pytest

from selfrag.decoding.refusals import abstains

HERE = Path(__file__).parent

REFUSALS = """
I don't know the answer
I don\u2019t know
I DON'T KNOW
"I don't know."
I really don't know.
I'm not sure who wrote it.
I do not have that information.
I lack the information needed to answer this.
I have no idea.
Sorry, I cannot answer that.
I'm sorry, but I can't help with that.
I am unable to provide a definitive answer.
I don't think I can answer that question.
I couldn't find any relevant information in the documents.
I was unable to find the requested information.
I'm sorry, but there is no information about this in the context.
I apologize, but I could not find the answer in the documents provided.
As an AI language model, I don't have access to real-time data.
I would need more information to answer this question.
I prefer not to answer.
We cannot determine who wrote it from the given text.
The passages do not mention it.
The provided documents do not contain the answer.
The given article doesn't state how many people attended [1].
The passages provided do not contain information on who won.
The text gives no indication of his age.
The passage says nothing about his family.
The search results do not contain information about this topic. You may want to consult an official website.
The document does not mention this. It only discusses the history of the town.
The passage mentions tea, but it does not say at what temperature it is brewed.
Although the passage mentions the river, it does not state its length.
Unfortunately, the text does not provide any details on Dr. Smith.
None of the passages mention the population of the town.
Nothing in the passages indicates the cause of death.
No relevant passages were found.
No information available.
There is no mention of a temperature in the passages.
There is insufficient evidence in the passages to answer.
Not mentioned in the passage.
Not enough information.
Insufficient information to determine the answer.
Unknown.
Unanswerable
N/A
Her birthplace is not mentioned in the passage.
The exact date is not specified.
The answer cannot be found in the provided text.
The question cannot be answered from the given context.
It is unclear from the passage who won the race.
Based on the provided passages, it is not possible to determine the year.
I don't have enough context to answer your question. Could you please clarify?
Je l'ignore.
Ich weiß es nicht.
\u6211\u4e0d\u77e5\u9053\u3002
"""
ANSWERS = """
I cannot tell a lie.
"I can't find my way home" is a song by Blind Faith.
Marie Curie was a physicist. She won two Nobel prizes. The passage does not mention her birthplace.
I Don't Know How to Love Him
I Don't Know How to Love Him is a song from Jesus Christ Superstar.
"I Don't Know" is a song by Ozzy Osbourne.
"I don't know" is what he answered to the judge.
He said, "I don't know."
I Can't Tell You Why
Don't Know Why
I Don't Want to Miss a Thing
I can't help falling in love
I have no mouth, and I must scream
I do not have a dream.
I do not know him.
We don't know each other.
I'm not sure, but I think it is Paris.
I don't know much about art, but Picasso painted it.
The passage does not say when, but it was built in 1900 by the Romans.
The temperature is 80 degrees. I don't know the time.
She did not know it then
The author of Beowulf is unknown.
unknown soldier
Unknown Pleasures
Nobody knows.
No
None
The answer is no.
The answer is not 5 but 6.
No, the passage states that the shop is closed on Sundays.
There is no evidence that vaccines cause autism.
There are no documents that survive from the period.
No document survives from his reign except one charter.
None of the Beatles could read music.
Nothing in biology makes sense except in the light of evolution.
Not all birds can fly.
Not found in Europe, the species lives in Africa.
The novel does not contain the letter e.
It does not contain caffeine.
The law does not apply to minors.
The source of the Nile was not known in 1850.
The data were not available until 1995.
The report did not name the suspect.
The president did not answer the letter.
The court could not determine who fired first.
He was unable to find work.
It is difficult to say goodbye.
It is impossible to know everything.
The story is about a boy who did not know fear.
The passage says he was born in Paris.
Sorry is a song by Justin Bieber.
To be or not to be, that is the question.
Er wei\u00df es nicht.
No s\u00e9 qui\u00e9n soy es una novela.
"""


EXPLAINED = (HERE / "explained_replies.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", REFUSALS.strip().splitlines())
def test_defect_9_refusals_in_other_words_are_refusals(text):
    """Field audit E2."""
    assert abstains(text)


@pytest.mark.parametrize("line", EXPLAINED.splitlines()[1:])
def test_a_refusal_with_reasons_is_one_and_an_answer_with_such_words_is_none(line):
    assert abstains(line[2:].replace(r"\n", "\n")) == line.startswith("+")


@pytest.mark.parametrize("text", ANSWERS.strip().splitlines())
def test_defect_9_texts_that_only_hold_such_words_are_none(text):
    """Field audit E2, the other way."""
    assert not abstains(text)


@pytest.mark.parametrize(
    "name, least_recall",
    [
        ("replies.txt", 0.97),
        ("mtrag_replies.txt", 0.97),
        ("varied_replies.txt", 0.84),  # 0.615 on the part that the rule had never seen
    ],
)
def test_precision_and_recall_on_replies_of_models(name, least_recall):
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith(("+ ", "- "))]
    refused = [line for line in rows if abstains(line[2:])]
    right = sum(line.startswith("+") for line in refused)
    assert len(rows) > 220
    assert right / len(refused) >= 0.97
    assert right / sum(line.startswith("+") for line in rows) >= least_recall


@pytest.mark.parametrize("text", ["", " . ", "\n", "?!"])
def test_a_text_without_a_word_gives_no_answer(text):
    assert abstains(text)


@pytest.mark.parametrize(
    "piece",
    [
        "the passage ",
        "i do not ",
        "sorry, but ",
        "is not mentioned in the ",
        "((",
        "a the any no ",
        "but it is not provided ",
        "based on the given context, ",
        "*[( ",
    ],
)
def test_long_texts_take_no_time(piece):
    started = time.perf_counter()
    abstains((piece * 2_000)[:1_500])
    assert not abstains("I don't know. " * 200)
    assert time.perf_counter() - started < 5
