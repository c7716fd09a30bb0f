"""Splitters by name, as a command line gives them: `sentences`, `MODEL` or `MODEL@URL`. Loads what is asked for."""

from __future__ import annotations

from selfrag.evaluation.metrics.factscore.splitting import PromptedSplitter, SentenceSplitter, Splitter


def load_splitter(spec: str) -> Splitter:
    """The splitter of a name.

    Args:
        spec: `sentences`; a model to prompt in process (a directory, a hub name or `demo`); or `MODEL@URL` at an
            OpenAI-compatible endpoint.

    Raises:
        UserError: a model that cannot be loaded.
    """
    from selfrag.evaluation.metrics.entailment.named import executor_of

    if spec == "sentences":
        return SentenceSplitter()
    executor, name, about = executor_of(spec)
    return PromptedSplitter(executor, f"facts by {name}", about)
