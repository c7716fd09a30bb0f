"""The published tasks by name: Self-RAG's six and QAMPARI. Data only; what the fields mean is said in `preset`.

Protocols: `paper` asks in the words and layout that the checkpoints were trained with and decodes after the paper;
`table-5` differs in the words, which are those the paper prints; `official` does what the released code does, for
figures that depend on it; `baseline` is for models without reflection tokens, as the paper and its code prompt them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.tasks.preset import Preset, Protocol
from selfrag.evaluation.tasks.schemas import SCHEMAS
from selfrag.evaluation.tasks.task import BIOGRAPHY, CLOSED, LIST, LONG, SHORT
from selfrag.evaluation.tasks.wording import ARC_JOIN, ASQA_JOIN, Wording

_CLAIM = "Is the following statement correct or not? Say true if it's correct; otherwise say false."
_CLAIM_TABLE_5 = (
    "Is the following statement correct or not? Say true if it's correct; otherwise, say false. Don't capitalize or"
    ' add periods, just say "true" or "false".'
)
_CHOICE = "Given four answer candidates, A, B, C and D, choose the best answer choice."
_CHOICE_TABLE_5 = (
    f"{_CHOICE} Please answer with the capitalized alphabet only, without adding any extra phrase or period."
)
_AMBIGUOUS = (
    "Answer the following question. The question may be ambiguous and have multiple correct answers, and in that case,"
    " you have to provide a long-form answer including all correct answers."
)
_AMBIGUOUS_BASELINE = (
    "Instruction: Write an accurate, engaging, and concise answer for the given question using only the provided search"
    " results (some of which might be irrelevant) and cite them properly. Use an unbiased and journalistic tone. Always"
    " cite for any factual claim. When citing several search results, use [1][2][3]. Cite at least one document and at"
    " most three documents in each sentence. If multiple documents support the sentence, only cite a minimum sufficient"
    " subset of the documents."
)
_LISTING = "Answer the following question with a list of all correct answers, separated by commas."

_EFFORT = ("retrieval_rate", "prompt_tokens", "generated_tokens", "requests", "searches")
_CITED = ("citation_precision", "citation_precision_alce", "citation_recall")
_OPEN = ("official_match", "contains", "exact_match", "f1", *_CITED, "citation_bears_answer", *_EFFORT)
_SETS = ("accuracy", "option_match", "option_unread", *_CITED, *_EFFORT)
_SEGMENTS = 7
"""Segments of a long answer (T); the official loop with `max_depth` 7 writes up to 6."""
_LONG_TOKENS = 1024
"""Of a long answer over all segments; no published run has such a limit, and answers end long before."""


def _short(passages: int, tokens: int, table_5: Wording, wording: Wording, official: Wording) -> dict[str, Protocol]:
    paper = Decoding(passages=passages, segment_tokens=tokens, max_segments=1)
    code = Decoding.official(passages=passages, segment_tokens=tokens, max_segments=1)
    return {
        "paper": Protocol(wording, passages, tokens, 1, paper),
        "table-5": Protocol(table_5, passages, tokens, 1, paper),
        "official": Protocol(official, passages, tokens, 1, code),
        "baseline": Protocol(Wording(table_5.instruction, ARC_JOIN), passages, tokens, 1),
    }


def _open(name: str, title: str, size_7b: float, size_13b: float) -> Preset:
    alone = Wording()
    published = {"official_match": {"7b": size_7b, "13b": size_13b}}
    return Preset(
        name, title, SCHEMAS["questions"], "short", _OPEN, (), SHORT.hint, _short(10, 100, alone, alone, alone),
        published,
    )  # fmt: skip


def _closed(name: str, title: str, schema: str, protocols: dict[str, Protocol], sizes: tuple[float, float]) -> Preset:
    published = {"accuracy": {"7b": sizes[0], "13b": sizes[1]}}
    return Preset(name, title, SCHEMAS[schema], "closed", _SETS, (), CLOSED.hint, protocols, published)


_BIOGRAPHIES = Preset(
    "biographies",
    "Biographies, FactScore (Min et al., 2023)",
    SCHEMAS["biographies"],
    "long",
    ("words", *_EFFORT),
    ("factscore",),
    BIOGRAPHY.hint,
    {
        # Five passages of the index and five of a web search (section 4.3); the code reads the first five.
        "paper": Protocol(Wording("Tell me a bio about", " "), 10, _LONG_TOKENS, _SEGMENTS,
                          Decoding(passages=10, segment_tokens=200)),
        "official": Protocol(Wording(ask="given"), 5, 300 * (_SEGMENTS - 1), _SEGMENTS - 1,
                             Decoding.official(passages=5, segment_tokens=300)),
        "baseline": Protocol(Wording("Tell me a bio about", " "), 10, 500, 1),
    },
    {"factscore": {"7b": 81.2, "13b": 80.2}},
)  # fmt: skip

_ASQA = Preset(
    "asqa",
    "ASQA after ALCE (Gao et al., 2023), GTR top 5",
    SCHEMAS["ambiguous"],
    "long",
    ("str_em", "str_hit", "rouge_lsum", "words", *_EFFORT),
    ("citation_recall_nli", "citation_precision_nli", "mauve"),
    LONG.hint,
    {
        # Threshold 0: citations are wanted everywhere (section 4.3).
        "paper": Protocol(Wording(_AMBIGUOUS), 5, _LONG_TOKENS, _SEGMENTS,
                          Decoding(passages=5, segment_tokens=300, threshold=0.0)),
        "official": Protocol(Wording(_AMBIGUOUS, ASQA_JOIN), 5, 300 * (_SEGMENTS - 1), _SEGMENTS - 1,
                             Decoding.official(passages=5, segment_tokens=300, mode="always")),
        "baseline": Protocol(Wording(_AMBIGUOUS_BASELINE, ARC_JOIN), 5, 100, 1, marked=True),
    },
    {
        "str_em": {"7b": 30.0, "13b": 31.7},
        "rouge_lsum": {"7b": 35.7, "13b": 37.0},
        "mauve": {"7b": 74.3, "13b": 71.6},
        "citation_precision_nli": {"7b": 66.9, "13b": 70.3},
        "citation_recall_nli": {"7b": 67.8, "13b": 71.3},
    },
)  # fmt: skip

_QAMPARI = Preset(
    "qampari",
    "QAMPARI (Amouyal et al., 2023), after ALCE",
    SCHEMAS["lists"],
    "list",
    ("list_f1_5", "list_precision", "list_recall_5", "list_recall", "list_f1", "list_length", "answer_recall",
     "answer_recall_words", *_EFFORT),
    ("citation_recall_nli", "citation_precision_nli"),
    LIST.hint,
    {
        "paper": Protocol(Wording(_LISTING), 5, 300, _SEGMENTS, Decoding(passages=5, threshold=0.0)),
        "baseline": Protocol(Wording(_LISTING, ARC_JOIN), 5, 300, 1),
    },
)  # fmt: skip

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        one.name: one
        for one in (
            _open("popqa", "PopQA, long tail (Mallen et al., 2023)", 54.9, 55.8),
            _open("triviaqa", "TriviaQA-unfiltered (Joshi et al., 2017)", 66.4, 69.3),
            _closed(
                "pubhealth", "PubHealth claims (Zhang et al., 2023)", "claims",
                _short(5, 50, Wording(_CLAIM_TABLE_5), Wording(_CLAIM), Wording(_CLAIM)), (72.4, 74.5),
            ),
            _closed(
                "arc-challenge", "ARC-Challenge (Clark et al., 2018)", "choices",
                _short(5, 50, Wording(_CHOICE_TABLE_5), Wording(_CHOICE), Wording(_CHOICE, ARC_JOIN, letters=4)),
                (67.3, 73.1),
            ),
            _BIOGRAPHIES,
            _ASQA,
            _QAMPARI,
        )
    }
)  # fmt: skip
"""By name."""


def preset(name: str) -> Preset:
    """A published task by its name.

    Raises:
        UserError: there is none; names the known ones.
    """
    if name not in PRESETS:
        raise UserError(f"unknown task {name[:60]!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]
