"""What the benchmarks ask, and in which form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.validation import validate
from selfrag.decoding.policy import Decoding


@dataclass(frozen=True, slots=True)
class Item:
    """A question with its evidence, best passage first."""

    instruction: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """A way of answering."""

    policy: Decoding  # our settings. The mode is `always`, so that every question costs the same kind of work.
    logprobs: int  # log-probabilities a token that the official code asks for


FORMS = {
    "short": Form(Decoding(mode="always", max_segments=1, segment_tokens=50), 5_000),
    "long": Form(
        Decoding(mode="always", max_segments=3, beam=2, segment_tokens=100), 32_000
    ),
}


def read_items(path: Path, count: int, passages: int) -> list[Item]:
    """Return the first `count` questions of an evaluation file, each with its first `passages`.

    Raises:
        UserError: a row is bad, or there are fewer questions or passages.
    """
    parse = partial(validate, Item, others="ignore")
    items = list(islice(read_jsonl(path, parse), count))
    fewest = min((len(item.passages) for item in items), default=0)
    if len(items) < count or fewest < passages:
        raise UserError(
            f"{path} holds {len(items)} questions with at least {fewest} passages, but {count} with {passages} are"
            " wanted; ask for fewer"
        )
    return [replace(item, passages=item.passages[:passages]) for item in items]


def demo_items(count: int, passages: int) -> list[Item]:
    """Return questions about articles of the demo corpus, with the passages that its index finds for them.

    Raises:
        UserError: the demo index cannot be built, or has too few articles.
    """
    from retrieval import open_index
    from selfrag.demo import encoder_path, index_path

    retriever = open_index(index_path(), encoder_path())
    corpus = retriever.corpus
    step = max(1, len(corpus) // (2 * count))
    titles = dict.fromkeys(corpus[i].title for i in range(0, len(corpus), step))
    if len(titles) < count:
        raise UserError(
            f"the demo corpus gives {len(titles)} questions, but {count} are wanted; ask for fewer"
        )
    questions = [f"What is known about {title}?" for title in islice(titles, count)]
    hits = map(tuple, retriever(questions, passages))
    return [Item(*pair) for pair in zip(questions, hits, strict=True)]


def items_of(data: Path | None, count: int, passages: int) -> list[Item]:
    """Return questions of a file, or of the demo corpus where there is none."""
    if data is None:
        return demo_items(count, passages)
    return read_items(data, count, passages)
