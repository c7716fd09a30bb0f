"""Task instructions of the paper's training mix (Table 4 and Table 5) as values, and how a question joins them."""

from __future__ import annotations

from selfrag.prompting import SELFRAG

AMBIGUOUS_QUESTION = (
    "Answer the following question. The question may be ambiguous and have multiple correct answers, and in that"
    " case, you have to provide a long-form answer including all correct answers."
)
CHAT_HISTORY = (
    "Given a chat history separated by new lines, generates an informative, knowledgeable and engaging response."
)
FACT_CHECK = "Is the following statement correct or not? Say true if it's correct; otherwise say false."

_COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def multiple_choice(letters: str) -> str:
    """The instruction for a choice among `letters`; for `ABCD` it is the paper's text."""
    count = _COUNTS.get(len(letters), str(len(letters)))
    named = f"{', '.join(letters[:-1])} and {letters[-1]}"
    return f"Given {count} answer candidates, {named}, choose the best answer choice."


def asked(instruction: str, question: str) -> str:
    """A task instruction and its question, joined as everywhere in this project."""
    return SELFRAG.task(instruction, question.strip())
