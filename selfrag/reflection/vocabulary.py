"""`Vocabulary`: the 15 reflection tokens bound to the ids of one tokenizer, and what calibrates their probabilities.

Temperature and bias scaling: Guo et al. 2017, arXiv 1706.04599. `selfrag eval calibration` fits them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from selfrag.common.errors import UserError, VocabularyError, count_of
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import (
    CRITIQUES,
    GROUPS,
    PARAGRAPH_CLOSE,
    PARAGRAPH_OPEN,
    RETRIEVE,
    TOKENS,
    LabelSet,
    Role,
    group,
)

STORED = "reflection_calibration"
"""Key of the scalings in `tokenizer_config.json` of a checkpoint, and in `reflection.json` of an adapter."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Label i of n with probability p_i gets p_i^(1/T) e^(b_i), normalised.

    Attributes:
        temperature: T, above 0; above 1 makes a judgment less sure.
        biases: b_i in label order [n]; none are zeros.
    """

    temperature: float = 1.0
    biases: tuple[float, ...] = ()

    def __call__(self, judgment: Judgment) -> Judgment:
        """Return the judgment with calibrated probabilities and its own coverage; a label without any stays so."""
        biases = self.biases or (0.0,) * len(judgment.distribution)
        logits = []
        for probability, bias in zip(judgment.distribution, biases, strict=True):
            logit = (
                math.log(probability) / self.temperature + bias
                if probability > 0
                else -math.inf
            )
            logits.append(logit)
        top = max(logits)
        raw = [math.exp(logit - top) for logit in logits]
        mass = math.fsum(raw)
        return replace(judgment, distribution=tuple([value / mass for value in raw]))


def as_record(scalings: Mapping[Role, Scaling]) -> dict[str, Any]:
    """Return plain values, ready for JSON; `read_scalings` reads them."""
    record: dict[str, Any] = {}
    for role, scaling in scalings.items():
        biases = dict(zip(group(role).names, scaling.biases, strict=False))
        record[str(role)] = {"temperature": scaling.temperature, "biases": biases}
    return record


def read_scalings(record: object) -> dict[Role, Scaling]:
    """Check what a file says."""
    if not isinstance(record, dict):
        raise UserError(
            f"{STORED} must map groups to temperature and biases, not {record!r:.80}"
        )
    return {group(name).role: _scaling(name, values) for name, values in record.items()}


def _scaling(name: str, values: object) -> Scaling:
    labels = group(name)
    biases = values.get("biases") if isinstance(values, dict) else None
    if (
        isinstance(values, dict)
        and isinstance(biases, dict)
        and set(biases) in (set(), set(labels.names))
    ):
        numbers = [
            values.get("temperature"),
            *(biases[label] for label in labels.names if biases),
        ]
        sound = all(
            type(number) in (int, float) and math.isfinite(number) for number in numbers
        )
        if sound and numbers[0] >= 0.01 and max(map(abs, numbers)) <= 100:
            return Scaling(float(numbers[0]), tuple(map(float, numbers[1:])))
    raise UserError(
        f"{STORED} of {name}: {values!r:.80}: give a temperature from 0.01 to 100, and no biases or one from -100 to"
        f" 100 for each of {', '.join(labels.names)}"
    )


def missing_tokens(tokenizer: Any) -> list[str]:
    """Return the reflection tokens that a Hugging Face tokenizer does not have."""
    known = tokenizer.get_vocab()
    return [
        token
        for token in TOKENS
        if token not in known or known[token] == tokenizer.unk_token_id
    ]


def has_reflection_tokens(tokenizer: Any) -> bool:
    """Return whether a tokenizer has the reflection tokens; False means that it has not a single one.

    Raises:
        VocabularyError: it has some of them.
    """
    missing = missing_tokens(tokenizer)
    if 0 < len(missing) < len(TOKENS):
        Vocabulary.from_tokenizer(tokenizer)
    return not missing


@dataclass(frozen=True)
class Vocabulary:
    """Reflection tokens as single, distinct token ids.

    Attributes:
        ids: token string to id, for all 15 tokens.
        eos_id: the id that ends an answer.
        scalings: what calibrates the probabilities of a group, by its role; see `uncalibrated`.
    """

    ids: Mapping[str, int]
    eos_id: int
    scalings: Mapping[Role, Scaling] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        missing = [token for token in TOKENS if token not in self.ids]
        if missing:
            raise VocabularyError(f"reflection tokens missing: {', '.join(missing)}")
        used = [self.ids[token] for token in TOKENS] + [self.eos_id]
        if len(set(used)) != len(used):
            raise VocabularyError(
                "two reflection tokens (or a reflection token and EOS) share one id"
            )
        object.__setattr__(self, "ids", MappingProxyType(dict(self.ids)))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> Vocabulary:
        """Read the ids from a Hugging Face tokenizer, published or expanded by our training.

        Args:
            tokenizer: anything with `get_vocab`, `unk_token_id` and `eos_token_id`. Its `init_kwargs`, if any, may
                hold what calibrates the tokens.

        Raises:
            VocabularyError: a token is missing, or the tokenizer has no EOS; the message lists what is missing.
        """
        if tokenizer.eos_token_id is None:
            raise VocabularyError(
                "the tokenizer has no EOS token; set tokenizer.eos_token first"
            )
        known = tokenizer.get_vocab()
        missing = missing_tokens(tokenizer)
        if len(missing) == len(TOKENS):
            raise VocabularyError(
                "the model has no reflection tokens, and they are needed here; give a Self-RAG checkpoint, or train"
                " this model: selfrag train adapter ROWS --base MODEL"
            )
        if missing:
            raise VocabularyError(
                f"the tokenizer lacks {len(missing)} of"
                f" {count_of(len(TOKENS), 'reflection tokens')}: {', '.join(missing)};"
                " use a Self-RAG checkpoint, or expand this model with selfrag.training"
            )
        try:
            scalings = read_scalings(
                getattr(tokenizer, "init_kwargs", {}).get(STORED) or {}
            )
        except UserError as error:
            raise VocabularyError(str(error)) from None
        return cls(
            {token: int(known[token]) for token in TOKENS},
            int(tokenizer.eos_token_id),
            scalings,
        )

    def uncalibrated(self) -> Vocabulary:
        """Return the same tokens with the probabilities that the model gives."""
        return replace(self, scalings={})

    def group(self, labels: LabelSet) -> tuple[int, ...]:
        """Ids of a group, in the order of its labels."""
        return tuple([self.ids[token] for token in labels.tokens])

    @cached_property
    def watch(self) -> tuple[int, ...]:
        """Ids whose log-probability is read at every step: all labels of all groups, group after group."""
        return tuple(token_id for labels in GROUPS for token_id in self.group(labels))

    @cached_property
    def retrieve(self) -> tuple[int, ...]:
        """Ids of the Retrieve group: where one of them is due, a segment ends."""
        return self.group(RETRIEVE)

    @cached_property
    def critiques(self) -> frozenset[int]:
        """Ids of IsRel, IsSup and IsUse."""
        return frozenset(
            token_id for labels in CRITIQUES for token_id in self.group(labels)
        )

    @cached_property
    def control(self) -> frozenset[int]:
        """Everything that is not text: the 15 reflection tokens and EOS."""
        return frozenset(self.ids.values()) | {self.eos_id}

    @property
    def paragraph_open(self) -> int:
        """Id of the token before a passage."""
        return self.ids[PARAGRAPH_OPEN]

    @property
    def paragraph_close(self) -> int:
        """Id of the token after a passage."""
        return self.ids[PARAGRAPH_CLOSE]

    @cached_property
    def roles(self) -> Mapping[int, Role]:
        """Group of each id in `watch`."""
        return {
            token_id: labels.role
            for labels in GROUPS
            for token_id in self.group(labels)
        }

    def columns(self, labels: LabelSet) -> slice:
        """Columns of a group in a matrix whose columns follow `watch`."""
        if labels.role not in _COLUMNS:
            raise VocabularyError(f"{labels.role} is not a group of reflection tokens")
        return _COLUMNS[labels.role]

    def text_ids(self, ids: Sequence[int]) -> list[int]:
        """Return `ids` without reflection tokens and EOS."""
        control = self.control
        return [token_id for token_id in ids if token_id not in control]


_ENDS = tuple(accumulate(map(len, GROUPS)))
_COLUMNS = {
    labels.role: slice(end - len(labels), end)
    for labels, end in zip(GROUPS, _ENDS, strict=True)
}
