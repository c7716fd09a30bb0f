"""The edge of a study: a model to be asked, loaded only when something has to be decoded, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from selfrag.evaluation.records import model_files
from selfrag.evaluation.runner import Execute, Model, answer_here, engine_kind, on_demand
from selfrag.evaluation.systems import tokenizer_of
from selfrag.loading import resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec


@dataclass(frozen=True, slots=True)
class Opened:
    """What a study needs of a model.

    Attributes:
        prompting: codec, vocabulary and layout.
        identity: checksums of its files and the kind of engine; what tells runs of one model from another's.
        execute: answers items on its engine.
    """

    prompting: Prompting
    identity: Mapping[str, Any]
    execute: Execute


@contextmanager
def opened(model: Model) -> Iterator[Opened]:
    """A model trained with reflection tokens.

    Raises:
        UserError: it cannot be used, or its tokenizer lacks reflection tokens.
    """
    path = resolve_model(model.model)
    tokenizer = tokenizer_of(path)
    prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
    identity = {"model": model_files(path), "engine": engine_kind(model.engine)}
    with on_demand(partial(model.load, path)) as engine:
        yield Opened(prompting, identity, answer_here(engine))


def bars(name: str, items: int) -> Callable[[int], object]:
    """A progress bar that closes itself when all items are done."""
    from tqdm import tqdm

    bar = tqdm(total=items, desc=name, unit="item", disable=None)

    def advance(done: int) -> None:
        bar.update(done)
        if bar.total is not None and bar.n >= bar.total:
            bar.close()

    return advance
