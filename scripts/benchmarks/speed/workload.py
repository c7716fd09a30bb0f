"""What the benchmarks ask, and in which form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.decoding.policy import Decoding


@dataclass(frozen=True, slots=True)
class Item:
    """A question with its evidence, best passage first."""

    question: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """A way of answering."""

    name: str  # `short` or `long`
    policy: Decoding  # our settings. The mode is `always`, so that every question costs the same kind of work.
    # log-probabilities a token that the official code asks for in this form
    rival_logprobs: int

    def with_passages(self, count: int) -> Form:
        """Return the same form with `count` passages a search."""
        return replace(self, policy=replace(self.policy, passages=count))


SHORT = Form(
    "short",
    Decoding(mode="always", max_segments=1, segment_tokens=50),
    rival_logprobs=5_000,
)
LONG = Form(
    "long",
    Decoding(mode="always", max_segments=3, beam=2, segment_tokens=100),
    rival_logprobs=32_000,
)
FORMS = {form.name: form for form in (SHORT, LONG)}


def chosen_forms(names: Iterable[str]) -> list[Form]:
    """Return the forms of some names.

    Raises:
        UserError: there is no such form.
    """
    forms = []
    for name in names:
        check_choice("--forms", name, FORMS)
        forms.append(FORMS[name])
    return forms


def read_items(path: Path, count: int, passages: int) -> list[Item]:
    """Return the first `count` questions of an evaluation file.

    Args:
        path: JSON Lines with `instruction` and `passages` (each `id`, `title`, `text`).
        count: questions.
        passages: passages of each, from the first on.

    Raises:
        UserError: a row lacks a key, or there are fewer questions or passages than wanted; names the file.
    """
    items = list(islice(read_jsonl(path, _item), count))
    if len(items) < count:
        raise UserError(
            f"{path} holds {len(items)} questions, but {count} are wanted; ask for fewer"
        )
    fewest = min(len(item.passages) for item in items)
    if fewest < passages:
        raise UserError(
            f"{path}: a question has {fewest} passages, but {passages} are wanted; ask for fewer"
        )
    return [replace(item, passages=item.passages[:passages]) for item in items]


def _item(row: dict[str, Any]) -> Item:
    try:
        passages = [
            Passage(str(p["id"]), p["text"], p.get("title", ""))
            for p in row["passages"]
        ]
        return Item(str(row["instruction"]), tuple(passages))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"a benchmark row needs instruction and passages[id, title, text]: {error!r}"
        ) from error


def demo_items(count: int, passages: int) -> list[Item]:
    """Return questions about articles of the demo corpus, with the passages that its index finds for them.

    Raises:
        UserError: the demo index cannot be built.
    """
    from retrieval import open_index
    from selfrag.demo import encoder_path, index_path

    retriever = open_index(index_path(), encoder_path())
    corpus = retriever.corpus
    titles = dict.fromkeys(
        corpus[i].title
        for i in range(0, len(corpus), max(1, len(corpus) // (2 * count)))
    )
    if len(titles) < count:
        raise UserError(
            f"the demo corpus gives {len(titles)} questions, but {count} are wanted; ask for fewer"
        )
    questions = [f"What is known about {title}?" for title in islice(titles, count)]
    return [
        Item(*pair)
        for pair in zip(
            questions, map(tuple, retriever(questions, passages)), strict=True
        )
    ]
