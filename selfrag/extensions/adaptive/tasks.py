"""The data sets that these methods are compared on, with their official figures, and HotpotQA's F1.

Rows are those of `FlashRAG_datasets` (`question`, `golden_answers`), or of the data sets themselves as far as they have
`question` and `answer`. Passages are searched for in an index, unless a row has `ctxs`.
"""

from __future__ import annotations

from selfrag.interface import (
    SCHEMAS,
    Decoding,
    Item,
    Preset,
    Protocol,
    QuestionWording,
    exact_match,
    metric,
    normalise,
    token_f1,
)

_CLOSED = ("yes", "no", "noanswer")


def _answers(item: Item) -> tuple[str, ...] | None:
    return item.answers


@metric("hotpot_f1", reads=_answers, source="HotpotQA (arXiv 1809.09600), its code")
def hotpot_f1(text: str, answers: tuple[str, ...]) -> float:
    """Return the best F1 of the normalised words; `yes` and `no` count only if all is said by them."""
    best = 0.0
    said = normalise(text)
    for answer in answers:
        closed = {said, normalise(answer)} & set(_CLOSED)
        if closed and not exact_match(text, [answer]):
            continue
        best = max(best, token_f1(text, [answer]))
    return best


_EFFORT = (
    *("citation_precision", "retrieval_rate", "prompt_tokens", "generated_tokens"),
    *("requests", "searches"),
)
_PROTOCOLS = {
    "paper": Protocol(
        QuestionWording(),
        passages=10,
        new_tokens=50,
        segments=1,
        decoding=Decoding(passages=10, undefined="force", max_segments=1),
        documents=5,
    )
}


def _task(name: str, title: str, *figures: str) -> Preset:
    """Return a task of short answers."""
    metrics = (*figures, "contains", *_EFFORT)
    return Preset(name, title, SCHEMAS["questions"], "short", metrics, (), _PROTOCOLS)


HOTPOTQA = _task("hotpotqa", "HotpotQA (Yang et al., 2018)", "hotpot_f1", "exact_match")
WIKI_MULTIHOP = _task(
    "wikimultihop", "2WikiMultiHopQA (Ho et al., 2020)", "hotpot_f1", "exact_match"
)
MUSIQUE = _task("musique", "MuSiQue (Trivedi et al., 2022)", "f1", "exact_match")
BAMBOOGLE = _task("bamboogle", "Bamboogle (Press et al., 2023)", "exact_match", "f1")
NQ = _task("nq", "Natural Questions, open (Lee et al., 2019)", "exact_match", "f1")
SQUAD = _task("squad-open", "SQuAD 1.1, open (Chen et al., 2017)", "exact_match", "f1")
