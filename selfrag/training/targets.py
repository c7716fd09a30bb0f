"""Rows to ids, labels and loss groups: what the model reads and what it learns from each position. Pure, no torch.

The rule (arXiv 2310.11511, section 3.2.2): the loss covers every target token except passage bodies. The prompt is
masked whole; each passage is masked strictly up to its own `</paragraph>`; the two markers stay targets unless asked
otherwise. Prompt and target are tokenised apart, so no merge crosses the boundary between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from selfrag.errors import UserError
from selfrag.prompting import Prompting
from selfrag.reflection.labels import GROUPS, Role
from selfrag.training.rows import Evidence, Row, Text, Token

MASKED = -100
"""Label of a position without loss, as torch's cross entropy wants it."""


class RowTooLongError(UserError):
    """A row whose prompt and target do not fit, with nothing left of its passages."""


class Group(IntEnum):
    """What a target position teaches; loss and accuracy are reported for each of these."""

    TEXT = 0
    RETRIEVE = 1
    ISREL = 2
    ISSUP = 3
    ISUSE = 4
    MARKER = 5
    EOS = 6


GROUP_OF_ROLE = {
    Role.RETRIEVE: Group.RETRIEVE,
    Role.RELEVANCE: Group.ISREL,
    Role.SUPPORT: Group.ISSUP,
    Role.UTILITY: Group.ISUSE,
}
GROUP_OF_TOKEN: dict[str, Group] = {token: GROUP_OF_ROLE[labels.role] for labels in GROUPS for token in labels.tokens}


@dataclass(frozen=True, slots=True)
class Example:
    """One row as the model sees it. The four sequences have one entry for each position.

    Attributes:
        ids: prompt and target, EOS at the end.
        labels: the id to be predicted *at* this position (not shifted), or `MASKED`.
        groups: `Group` of the position; meaningful only where there is a label.
        weight: factor on the loss of the whole row.
        dropped_tokens: tokens of passage bodies that were cut to fit the length.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    groups: tuple[int, ...]
    weight: float = 1.0
    dropped_tokens: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TargetLayout:
    """How rows become examples.

    Attributes:
        prompting: prompt and evidence layout for the tokenizer at hand.
        max_length: longest example in tokens; passages are shortened to fit, nothing else ever is.
        max_passage: longest passage body in tokens.
        learn_markers: whether `<paragraph>` and `</paragraph>` are targets (official code: yes).
    """

    prompting: Prompting
    max_length: int = 1024
    max_passage: int = 512
    learn_markers: bool = True

    def example(self, row: Row) -> Example:
        """Lay out one row.

        Raises:
            RowTooLongError: prompt and target do not fit `max_length` even with every passage body empty.
        """
        prompt = self.prompting.prompt(row.instruction)
        fixed = [self._fixed(part) for part in row.target]
        passages = sum(isinstance(part, Evidence) for part in row.target)
        room = self.max_length - len(prompt) - 1 - sum(map(len, fixed)) - 2 * passages
        if room < 0:
            raise RowTooLongError(
                f"row {row.id!r} needs {self.max_length - room} tokens without its passages;"
                f" the limit is {self.max_length}: raise max_length, shorten the row, or leave such rows out"
            )
        ids, labels = list(prompt), [MASKED] * len(prompt)
        groups = [int(Group.TEXT)] * len(prompt)
        bodies, dropped = self._bodies(row, room)
        for i, part in enumerate(row.target):
            if isinstance(part, Evidence):
                markers = (self.prompting.vocabulary.paragraph_open, self.prompting.vocabulary.paragraph_close)
                learned = markers if self.learn_markers else (MASKED, MASKED)
                ids.extend([markers[0], *bodies[i], markers[1]])
                labels.extend([learned[0], *[MASKED] * len(bodies[i]), learned[1]])
                groups.extend([int(Group.MARKER)] * (len(bodies[i]) + 2))
            else:
                ids.extend(fixed[i])
                labels.extend(fixed[i])
                group = GROUP_OF_TOKEN[part.token] if isinstance(part, Token) else Group.TEXT
                groups.extend([int(group)] * len(fixed[i]))
        eos = self.prompting.vocabulary.eos_id
        return Example(
            (*ids, eos), (*labels, eos), (*groups, int(Group.EOS)), weight=row.weight, dropped_tokens=dropped
        )

    def _fixed(self, part: Token | Evidence | Text) -> list[int]:
        """Ids of a part that is never shortened; none for a passage."""
        match part:
            case Token(token):
                return [self.prompting.vocabulary.ids[token]]
            case Text(text):
                return self.prompting.codec.encode(text)
            case Evidence():
                return []

    def _bodies(self, row: Row, room: int) -> tuple[dict[int, tuple[int, ...]], int]:
        """Ids of each passage body, and how many were cut: short bodies stay whole, long ones share what is left."""
        bodies: dict[int, tuple[int, ...]] = {}
        dropped = 0
        for i, part in enumerate(row.target):
            if isinstance(part, Evidence):
                evidence = self.prompting.evidence(part.passage, self.max_passage)
                bodies[i] = evidence.ids[1:-1]
                dropped += evidence.dropped_tokens
        for rank, i in enumerate(sorted(bodies, key=lambda i: (len(bodies[i]), i))):
            kept = bodies[i][: room // (len(bodies) - rank)]
            dropped += len(bodies[i]) - len(kept)
            room -= len(kept)
            bodies[i] = kept
        return bodies, dropped
