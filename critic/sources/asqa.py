"""ASQA: an ambiguous question and its long answer, with the passages that its writer quoted.

    "train": {"5742327904742262955": {"ambiguous_question": "..", "qa_pairs": [..], "wikipages": [..],
              "annotations": [{"knowledge": [{"content": "..", "wikipage": ".." or null}], "long_answer": ".."}]}}

That is the published file, an object a split; Hugging Face rows are the same with `sample_id`. Development rows have
two annotations; the first counts.
"""

from __future__ import annotations

from critic.pairs import Pair
from critic.sources.fields import identifier, objects, text
from critic.sources.instructions import AMBIGUOUS_QUESTION, asked
from critic.sources.raw import Raw, UnusableError, make_pair, rowwise
from retrieval.passage import Passage


def parse(raw: Raw, dataset: str) -> Pair:
    """The pair of a question.

    Raises:
        UserError: the row is malformed.
        UnusableError: nobody wrote a long answer.
    """
    key = f"{dataset}-{identifier(raw.record, 'sample_id', raw.key)}"
    question, annotations = text(raw.record, "ambiguous_question"), objects(raw.record, "annotations")
    if not annotations:
        raise UnusableError("no output")
    if not question.strip():
        raise UnusableError("no instruction")
    passages = tuple(
        Passage(f"{key}/p{number}", text(item, "content"), text(item, "wikipage", ""))
        for number, item in enumerate(objects(annotations[0], "knowledge"), 1)
        if text(item, "content").strip()
    )
    answer = text(annotations[0], "long_answer")
    return make_pair(key, dataset, "long_form", asked(AMBIGUOUS_QUESTION, question), answer, passages)


read = rowwise(parse)
