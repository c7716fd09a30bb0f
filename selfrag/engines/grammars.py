"""Constraints of the transformers engine, compiled by xgrammar: which tokens may come next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selfrag.common.errors import EngineError, require
from selfrag.engines.base import reason
from selfrag.reflection.requests import Constraint, ConstraintForm

if TYPE_CHECKING:
    from torch import Tensor


class Matcher:
    """Where one sequence stands in its grammar. Advance it with every token that is chosen."""

    def __init__(self, library: Any, matcher: Any, vocab_size: int) -> None:
        self._library = library
        self._matcher = matcher
        self._mask = library.allocate_token_bitmask(1, vocab_size)

    def masked(self, logits: Tensor) -> Tensor:
        """Return a copy of `logits` [vocabulary] in which tokens that the grammar forbids are minus infinity."""
        self._matcher.fill_next_token_bitmask(self._mask)
        values = logits.float().clone().unsqueeze(0)
        self._library.apply_token_bitmask_inplace(values, self._mask.to(values.device))
        return values[0]

    def accept(self, token_id: int) -> bool:
        """Take the token that was chosen; False if the grammar does not allow it."""
        return bool(self._matcher.accept_token(token_id))


class Grammars:
    """Compiles constraints for one tokenizer; a constraint that was compiled before costs nothing.

    The model's logits have `vocab_size` columns, which may be more than the tokenizer has tokens. A `UserError` tells
    that xgrammar is missing or cannot read the tokenizer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._library = require("xgrammar", extra="cpu")
        self._vocab_size = vocab_size
        try:
            info = self._library.TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=vocab_size
            )
            self._compiler = self._library.GrammarCompiler(info, max_threads=1)
        except Exception as error:
            raise EngineError(
                f"constraints cannot be used with this tokenizer: {reason(error)}"
            ) from error

    def matcher(self, constraint: Constraint, stop_ids: Sequence[int]) -> Matcher:
        """Return a fresh matcher; `stop_ids` may end the text where it is complete."""
        try:
            if constraint.form is ConstraintForm.JSON:
                compiled = self._compiler.compile_json_schema(constraint.text)
            elif constraint.form is ConstraintForm.REGEX:
                compiled = self._compiler.compile_regex(constraint.text)
            else:
                texts = " | ".join(
                    json.dumps(text, ensure_ascii=False) for text in constraint.value
                )
                compiled = self._compiler.compile_grammar(f"root ::= {texts}")
        except (
            Exception
        ) as error:  # a foreign schema may hold anything; only its own request fails
            raise EngineError(
                f"the {constraint.form} constraint cannot be compiled: {reason(error)}"
            ) from error
        matcher = self._library.GrammarMatcher(
            compiled, override_stop_tokens=list(stop_ids)
        )
        return Matcher(self._library, matcher, self._vocab_size)
