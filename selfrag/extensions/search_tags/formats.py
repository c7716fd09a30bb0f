"""The published formats as entry points name them: how each is loaded to answer, and to be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selfrag.extensions.search_tags.decoder import Budget, Searcher
from selfrag.extensions.search_tags.model import SearchTagModel
from selfrag.extensions.search_tags.served import ServedSearchTags
from selfrag.extensions.search_tags.system import Searching
from selfrag.interface import PROTOCOL, UserError


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
    ) -> ServedSearchTags:
        """Load a model of this format for `ask` and `serve`; `settings` are fields of `Budget`."""
        options = {name: value for name, value in settings.items() if value is not None}
        known = Budget.__dataclass_fields__
        for name in options.keys() - known:
            raise UserError(
                f"--policy {self.profile} has no {name}, which is for models with reflection tokens; its settings are"
                f" {', '.join(known)}"
            )
        budget = Budget(**options)
        loaded = SearchTagModel.from_pretrained(
            model,
            profile=self.profile,
            retriever=index,
            engine=engine,
            budget=budget,
            **engine_options,
        )
        return ServedSearchTags.of(loaded)

    def system(self, tokenizer: Any, settings: Mapping[str, Any]) -> Searching:
        """Return the system of `selfrag eval`; settings are fields of `Budget`."""
        budget = Budget(without_evidence=PROTOCOL).changed(**settings)
        return Searching(Searcher.of(tokenizer, self.profile, budget))


SEARCH_R1 = TagFormat("search-r1")
AUTOREFINE = TagFormat("autorefine")
R1_SEARCHER = TagFormat("r1-searcher")
SIMPLE_DEEP_SEARCHER = TagFormat("simpledeepsearcher")
O2_SEARCHER = TagFormat("o2-searcher")
