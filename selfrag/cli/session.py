"""Opening what answers, for as long as a command runs. Knows the options' names; knows no engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selfrag.api import SelfRAG


@contextmanager
def answering(model: str, index: Path | None, engine: str | None) -> Iterator[SelfRAG]:
    """A loaded `SelfRAG`, closed at the end.

    Args:
        model: `demo`, a directory, or a hub name.
        index: directory of an index, None for the model's own.
        engine: name of an engine, None for the best one here.

    Raises:
        UserError: something cannot be loaded.
    """
    # The command's own process: what transformers says while it loads would only come between question and answer.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from selfrag.api import SelfRAG

    rag = SelfRAG.from_pretrained(model, retriever=index, engine=engine)
    try:
        yield rag
    finally:
        rag.close()
