r"""The prompt of a critic, one for training and inference.

What many cases share comes first: the instruction, then the passage, then what came before, then the sentence judged,
then the question. So IsRel and IsSup of one passage share everything up to the passage's end (a prefix cache computes
it once), and the model reads a claim knowing the passage. Parts are tokenised apart, so a part's ids do not depend on
its neighbours, and no text becomes a control token. Each part has its own limit; the longest prompt is their sum.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, get_args

from critic.cases import GROUPS, Case
from selfrag.common.errors import VocabularyError
from selfrag.interface import (
    HFTextCodec,
    LabelSet,
    TextCodec,
    UserError,
    check_choice,
    check_int,
    count_of,
)
from selfrag.tokenization import common_prefix
from selfrag.training.settings import Unset

Ids: TypeAlias = tuple[int, ...]
LabelStyle = Literal["tokens", "words"]
"""How labels are written: reflection tokens of an expanded vocabulary, or the label names as ordinary text."""

QUESTIONS: Mapping[str, str] = {
    "Retrieve": "Does the response need a search?",
    "IsRel": "Is the passage relevant?",
    "IsSup": "Does the passage support the response?",
    "IsUse": "How useful is the response, 1 to 5?",
}
"""One question for each group; the model learns from it which labels are asked for."""

CHARACTERS_A_TOKEN = 16
"""No prose has more; text far beyond a limit is not tokenised at all."""

_HEADING = re.compile(r"^(?=###)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CriticLayout:
    """Text around the parts of a case. A part that a case does not have leaves no trace."""

    style: LabelStyle = "tokens"  # how labels are written
    instruction: str = "### Instruction:\n"  # before what the user asked
    evidence: str = "\n\n### Passage:\n"
    preceding: str = "\n\n### Before:\n"
    output: str = "\n\n### Response:\n"
    question: str = "\n\n### "  # before the group's question
    answer: str = "\n"  # between the question and the label
    questions: Mapping[str, str] = field(default_factory=lambda: dict(QUESTIONS))

    def __post_init__(self) -> None:
        check_choice("label style", self.style, get_args(LabelStyle))
        if missing := sorted(GROUPS.keys() - self.questions):
            raise UserError(f"there is no question for {', '.join(missing)}")

    def ask(self, group: str, labels: LabelSet) -> str:
        """Return the end of the prompt, up to the label; with label names as text it lists them."""
        options = ""
        if self.style == "words":
            options = f" ({' | '.join(labels.names)})"
        return f"{self.question}{self.questions[group]}{options}{self.answer}"


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Longest parts in tokens.

    Attributes:
        evidence: most tokens of a passage with its title, whose end is cut.
        preceding: its beginning is cut.
        output: its middle is cut, because both ends say something.
        instruction: likewise.
        total: of all parts together, at the cost of the longest ones; None for their sum.
    """

    evidence: int = 192
    preceding: int = 64
    output: int = 192
    instruction: int = 192
    total: Unset[int] = None

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            check_int(f"limit of {name}", value, 8 if name == "total" else 2)

    def as_dict(self) -> dict[str, int]:
        """Return the limits that are set."""
        return {
            name: value for name, value in asdict(self).items() if value is not None
        }

    @property
    def most(self) -> int:
        """Return the tokens of the parts of the longest case."""
        parts = self.evidence + self.preceding + self.output + self.instruction
        if self.total is None:
            return parts
        return min(parts, self.total)

    def shared(self, lengths: Sequence[int]) -> int:
        """Return the most tokens of each part with which parts of these lengths fit the total."""
        room = self.most
        for left, length in zip(
            range(len(lengths), 0, -1), sorted(lengths), strict=True
        ):
            if length * left > room:
                return room // left
            room -= length
        return max(lengths)


@dataclass(frozen=True, slots=True)
class CriticPrompt:
    """A case as the model reads it."""

    ids: Ids  # BOS up to where the label begins
    # ids of each label, in label order, distinct; none where it is not offered
    options: tuple[Ids, ...]
    # tokens cut, by part; only parts that were cut
    dropped: Mapping[str, int] = field(default_factory=dict)


class CaseCodec(Protocol):
    """What turns a case into ids: `PromptCodec`, or another way of asking.

    Example:
        >>> class Letters:
        ...     eos_id, max_length = 0, 512
        ...     def prompt(self, case):
        ...         return CriticPrompt(tuple(map(ord, case.instruction)), ((89,), (78,)))
        >>> codec: CaseCodec = Letters()
        >>> codec.prompt(Case.of("IsRel", "Hi")).ids
        (72, 105)
    """

    @property
    def eos_id(self) -> int:
        """Ends an answer."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt with its longest label."""

    def prompt(self, case: Case) -> CriticPrompt:
        """Lay out one case."""


@dataclass(frozen=True)
class PromptCodec:
    """Turns cases into prompts for one tokenizer. Holds no state."""

    text: TextCodec  # safe tokenisation
    eos_id: int  # ends an answer
    # of the reflection tokens by their strings; empty for labels written as words
    token_ids: Mapping[str, int]
    layout: CriticLayout = field(default_factory=CriticLayout)
    limits: PartLimits = field(default_factory=PartLimits)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        layout: CriticLayout | None = None,
        limits: PartLimits | None = None,
    ) -> PromptCodec:
        """Bind a layout to a Hugging Face tokenizer with EOS, and with the reflection tokens if labels are such."""
        layout = layout or CriticLayout()
        known = tokenizer.get_vocab()
        ids: dict[str, int] = {}
        if layout.style == "tokens":
            tokens = [token for labels in GROUPS.values() for token in labels.tokens]
            missing = [
                t
                for t in tokens
                if t not in known or known[t] == tokenizer.unk_token_id
            ]
            if missing:
                raise VocabularyError(
                    f"the tokenizer lacks {len(missing)} of"
                    f" {count_of(len(tokens), 'reflection tokens')} ({', '.join(missing)}):"
                    " use a critic trained with --style tokens, or --style words"
                )
            ids = {token: int(known[token]) for token in tokens}
        return cls(
            HFTextCodec(tokenizer),
            eos_of(tokenizer),
            ids,
            layout,
            limits or PartLimits(),
        )

    def prompt(self, case: Case) -> CriticPrompt:
        """Lay out one case; always fits `max_length`."""
        # 1. The texts of the case; an absent one leaves no trace.
        all_texts = case.texts()
        texts = {}
        for part in ("instruction", "evidence", "preceding", "output"):
            if all_texts[part].strip() or part == "instruction":
                texts[part] = all_texts[part]
        # 2. Each within its own limit, then all within their total.
        dropped: dict[str, int] = {}
        parts = {part: self._part(text, part, dropped) for part, text in texts.items()}
        room = self.limits.shared([*map(len, parts.values())])
        # 3. The prompt: each part after its heading, then the question.
        ids = [*self.text.bos_ids]
        for part, part_ids in parts.items():
            ids += [
                *self.text.encode(getattr(self.layout, part)),
                *cut(part_ids, room, part),
            ]
            if len(part_ids) > room:
                dropped[part] = dropped.get(part, 0) + len(part_ids) - room
        question, options = self._tails[case.group]
        return CriticPrompt((*ids, *question), options, dropped)

    @property
    def max_length(self) -> int:
        """Return the tokens of the longest prompt with its longest label and EOS."""
        layout = self.layout
        around = (layout.instruction, layout.evidence, layout.preceding, layout.output)
        fixed = sum(len(self.text.encode(text)) for text in around)
        tail = max(
            len(question) + max(map(len, options))
            for question, options in self._tails.values()
        )
        return len(self.text.bos_ids) + fixed + self.limits.most + tail + 1

    def as_dict(self) -> dict[str, Any]:
        """Return layout and limits, ready for JSON: with the tokenizer, all that decides a prompt."""
        return {"layout": asdict(self.layout), "limits": self.limits.as_dict()}

    @property
    def fingerprint(self) -> str:
        """Return a digest that changes with layout, limits and the label ids."""
        labels = {group: options for group, (_, options) in self._tails.items()}
        return hashlib.sha256(
            json.dumps([self.as_dict(), labels], sort_keys=True).encode()
        ).hexdigest()

    def _part(self, text: str, part: str, dropped: dict[str, int]) -> list[int]:
        limit: int = getattr(self.limits, part)
        reach = CHARACTERS_A_TOKEN * limit
        # a line that looks like a heading of the layout is indented
        text = _HEADING.sub(" ", text)
        unread = max(0, len(text) - 2 * reach)
        if unread:
            text = f"{text[:reach]}{text[-reach:]}"
        ids = self.text.encode(text)
        if len(ids) + unread > limit:
            dropped[part] = max(0, len(ids) - limit) + -(-unread // 4)
        return cut(ids, limit, part)

    @cached_property
    def _tails(self) -> Mapping[str, tuple[Ids, tuple[Ids, ...]]]:
        """Return the ids of the question of each group, and of each label after it."""
        tails = {}
        for group, labels in GROUPS.items():
            question = self.layout.ask(group, labels)
            if self.layout.style == "words":
                tails[group] = split_labels(self.text, question, labels.names)
            else:
                options = tuple((self.token_ids[token],) for token in labels.tokens)
                tails[group] = tuple(self.text.encode(question)), options
        return tails


def eos_of(tokenizer: Any) -> int:
    """Return the id of a tokenizer's EOS.

    Raises:
        VocabularyError: it has none.
    """
    if tokenizer.eos_token_id is None:
        raise VocabularyError(
            "the tokenizer has no EOS token; set tokenizer.eos_token first"
        )
    return int(tokenizer.eos_token_id)


def split_labels(
    text: TextCodec, question: str, labels: Sequence[str]
) -> tuple[Ids, tuple[Ids, ...]]:
    """Return the ids that a question has before every label, and what follows them for each label.

    They are tokenised together and split where they differ, so a label has the ids of ordinary text.

    Raises:
        VocabularyError: the tokenizer cannot tell the labels apart.
    """
    joined = [tuple(text.encode(f"{question}{label}")) for label in labels]
    shared = 0
    if len(set(joined)) == len(joined):
        shared = common_prefix(joined)
    if not shared or min(map(len, joined)) == shared:
        raise VocabularyError(
            f"this tokenizer cannot tell the labels {', '.join(labels)} apart as words: use tokens"
        )
    return joined[0][:shared], tuple(ids[shared:] for ids in joined)


def fitted(
    case: Case,
    ask: Callable[[Case], tuple[Ids, tuple[Ids, ...]]],
    bos_ids: Ids,
    max_length: int,
) -> CriticPrompt:
    """Return the prompt of a case with its longest label and EOS within `max_length`.

    A passage that is too long loses its end, then the prompt its own beginning (`task`); both are told in `dropped`.

    Args:
        case: to be laid out.
        ask: returns the ids of a prompt, and of each label.
        bos_ids: begin the prompt.
        max_length: in tokens.
    """
    ids, options = ask(case)
    full = len(ids)
    room = max_length - 1 - max(map(len, options)) - len(bos_ids)
    while (
        len(ids) > room
        and (passage := case.evidence) is not None
        and (words := passage.text.split())[1:]
    ):
        kept = words[: max(1, len(words) + room - len(ids))]
        passages = (replace(passage, text=" ".join(kept)),)
        case = replace(case, state=replace(case.state, passages=passages))
        ids, options = ask(case)
    dropped = Counter({"evidence": full - len(ids), "task": max(0, len(ids) - room)})
    # without zeros
    return CriticPrompt((*bos_ids, *ids[dropped["task"] :]), options, +dropped)


def cut(ids: list[int], limit: int, part: str) -> list[int]:
    """Cut ids to a limit: a passage loses its end, what came before its beginning, other parts their middle."""
    if len(ids) <= limit:
        return ids
    if part == "evidence":
        return ids[:limit]
    if part == "preceding":
        return ids[-limit:]
    return ids[: limit - limit // 2] + ids[-(limit // 2) :]
