"""The published formats as entry points name them: how each is loaded to answer, and to be measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfrag.extensions.search_tags.decoder import Budget, Searcher, decode_tags
from selfrag.extensions.search_tags.model import SearchTagModel
from selfrag.extensions.search_tags.system import Searching
from selfrag.interface import (
    PROTOCOL,
    Decoder,
    Decoding,
    FormatModel,
    Passage,
)

BUDGET = {
    "passages": "passages",
    "passage_tokens": "passage_tokens",
    "answer_tokens": "tokens",
    "segment_tokens": "turn_tokens",
    "without_evidence": "without_evidence",
}
"""Fields of `Decoding` that a model that searches by tags has, each with its name in `Budget`."""


def served(model: SearchTagModel) -> FormatModel:
    """Return a model as servers and commands ask it, by the names of `Decoding`."""
    searcher = model.searcher
    budget = searcher.budget

    def decoder(
        question: str, evidence: Sequence[Passage] | None, changes: Mapping[str, Any]
    ) -> Decoder:
        options = {BUDGET[name]: value for name, value in changes.items()}
        changed = replace(searcher, budget=budget.changed(**options))
        return decode_tags(question, changed, evidence)

    defaults = Decoding(
        **{name: getattr(budget, field) for name, field in BUDGET.items()}
    )
    about = "this model searches by tags; it has"
    return FormatModel(
        model.engine, model.retriever, defaults, tuple(BUDGET), about, decoder
    )


@dataclass(frozen=True, slots=True)
class TagFormat:
    """A format of `PROFILES`, by its name."""

    profile: str

    def load(
        self,
        model: str,
        index: str | None,
        engine: str | None,
        settings: Mapping[str, Any],
        **engine_options: Any,
    ) -> FormatModel:
        """Load a model of this format for `ask` and `serve`; `settings` are fields of `Budget`."""
        options = {name: value for name, value in settings.items() if value is not None}
        budget = Budget().changed(**options)
        loaded = SearchTagModel.from_pretrained(
            model,
            profile=self.profile,
            retriever=index,
            engine=engine,
            budget=budget,
            **engine_options,
        )
        return served(loaded)

    def system(self, tokenizer: Any, settings: Mapping[str, Any]) -> Searching:
        """Return the system of `selfrag eval`; settings are fields of `Budget`."""
        budget = Budget(without_evidence=PROTOCOL).changed(**settings)
        return Searching(Searcher.of(tokenizer, self.profile, budget))


SEARCH_R1 = TagFormat("search-r1")
AUTOREFINE = TagFormat("autorefine")
R1_SEARCHER = TagFormat("r1-searcher")
SIMPLE_DEEP_SEARCHER = TagFormat("simpledeepsearcher")
O2_SEARCHER = TagFormat("o2-searcher")
