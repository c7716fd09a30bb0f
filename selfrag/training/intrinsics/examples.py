"""Labelled rows to training examples, by the codec and the renderer that inference uses. Pure but for the tokenizer.

    row --codec.encode--> request --codec.teach--> targets --renderer--> ids and labels

A request with several slots gives one example each, as inference scores each on its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.errors import UserError
from selfrag.intrinsics.contract import Request, Target, Teachable
from selfrag.intrinsics.rendering import Renderer
from selfrag.training.intrinsics.rows import Labelled, gold_of
from selfrag.training.rows import MASKED, Example, Group


@dataclass(frozen=True, slots=True)
class Made:
    """The examples of some rows."""

    examples: tuple[Example, ...]  # in the order of the rows
    rows: tuple[Labelled, ...]  # of each example, the row that it is of
    skipped: dict[str, int]  # why rows gave no example -> how many

    @property
    def sources(self) -> tuple[str, ...]:
        """Of each example, that of its row."""
        return tuple(row.source for row in self.rows)

    @property
    def groups(self) -> tuple[str, ...]:
        """Of each example, that of its row."""
        return tuple(row.group for row in self.rows)

    def of(self, rows: Collection[Labelled]) -> Made:
        """The examples of some rows, the others counted among what was left out."""
        wanted = {row.id for row in rows}
        left = len({row.id for row in self.rows} - wanted)
        kept = [at for at, row in enumerate(self.rows) if row.id in wanted]
        return Made(
            tuple(self.examples[at] for at in kept),
            tuple(self.rows[at] for at in kept),
            self.skipped | ({"not among the rows chosen": left} if left else {}),
        )


def make_examples(
    rows: Sequence[Labelled],
    codec: Teachable,
    renderer: Renderer,
    *,
    max_length: int,
    most_slots: int | None = None,
    seed: int = 0,
) -> Made:
    """The examples of rows, one a target with the target's weight; codec and renderer are those of inference.

    Examples longer than `max_length` are left out and counted: a prompt is never cut, inference would not do so. Of
    one row's targets at most `most_slots` are taken, drawn by `seed`; None for all.
    """
    examples: list[Example] = []
    owners: list[Labelled] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        request = codec.encode(row.state)
        try:
            targets = codec.teach(request, gold_of(row, request))
        except UserError as error:
            raise UserError(f"row {row.id!r}: {error}") from error
        if not targets:
            skipped["no sentence with a label of its own"] += 1
            continue
        chosen = _drawn(targets, most_slots, f"{seed}/{row.id}")
        made = [example(request, target, renderer) for target in chosen]
        fitting = [one for one in made if len(one) <= max_length]
        if len(fitting) < len(made):
            skipped[f"longer than {max_length} tokens"] += 1
        examples += fitting
        owners += [row] * len(fitting)
    return Made(tuple(examples), tuple(owners), dict(skipped))


def example(request: Request, target: Target, renderer: Renderer) -> Example:
    """One target of a request: the prompt and the prefill are read, the rest and the end of turn are learned."""
    prompt = renderer.prompt(request.prompt)
    before, learned = renderer.reply(target.prefill, target.text)
    read = (*prompt, *before)
    end = renderer.end_id
    return Example(
        ids=(*read, *learned, end),
        labels=(*[MASKED] * len(read), *learned, end),
        groups=(*[int(Group.TEXT)] * (len(read) + len(learned)), int(Group.EOS)),
        weight=target.weight,
    )


def _drawn(targets: tuple[Target, ...], most: int | None, seed: Any) -> tuple[Target, ...]:
    if most is None or len(targets) <= most:
        return targets
    chosen = sorted(random.Random(seed).sample(range(len(targets)), most))  # noqa: S311 - no cryptography
    return tuple(targets[at] for at in chosen)


def invocation_of(renderer: Renderer) -> tuple[int, ...]:
    """Ids of the generation prompt.

    Raises:
        UserError: the template has none, or no control token in it, so that a text could switch the adapter on.
    """
    if not getattr(renderer.tokenizer, "chat_template", None):
        raise UserError("the tokenizer has no chat template, so nothing marks where the assistant begins")
    turns = [{"role": "user", "content": "x"}]
    closed, opened = (
        renderer.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
        for prompt in (False, True)
    )
    if not opened.startswith(closed) or opened == closed:
        raise UserError("the chat template does not open the assistant's turn; train a plain LoRA")
    opening = opened[len(closed) :]
    ids = tuple(renderer.control(opening))
    if renderer.text.encode(opening) == list(ids):
        raise UserError("the assistant's turn begins with ordinary text; train a plain LoRA")
    return ids
