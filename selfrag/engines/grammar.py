"""Constraints as masks over a vocabulary, for engines that choose tokens themselves.

vLLM compiles constraints with the same library and the same settings, so both engines allow the same texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selfrag.decoding.requests import Constraint, Form
from selfrag.errors import EngineError, require

if TYPE_CHECKING:
    from torch import Tensor


class Matcher:
    """Where one sequence stands in its grammar. Advance it with every token that is chosen."""

    def __init__(self, library: Any, compiled: Any, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._library = library
        self._matcher = library.GrammarMatcher(compiled, override_stop_tokens=list(stop_ids))
        self._mask = library.allocate_token_bitmask(1, vocab_size)

    def masked(self, logits: Tensor) -> Tensor:
        """A copy of `logits` [vocabulary] in which every token that the grammar forbids here is minus infinity."""
        self._matcher.fill_next_token_bitmask(self._mask)
        values = logits.float().clone().unsqueeze(0)
        self._library.apply_token_bitmask_inplace(values, self._mask.to(values.device))
        return values[0]

    def accept(self, token_id: int) -> bool:
        """Take the token that was chosen; False if the grammar does not allow it."""
        return bool(self._matcher.accept_token(token_id))


class Grammars:
    """Compiles constraints for one tokenizer; a constraint that was compiled before costs nothing."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        """Take over a tokenizer.

        Args:
            tokenizer: of Hugging Face.
            vocab_size: columns of the model's logits, which may be more than the tokenizer has tokens.

        Raises:
            MissingExtraError: xgrammar is not installed.
            EngineError: xgrammar cannot read the tokenizer.
        """
        self._library = require("xgrammar", extra="cpu")
        self._vocab_size = vocab_size
        try:
            info = self._library.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
            self._compiler = self._library.GrammarCompiler(info, max_threads=1)
        except Exception as error:
            raise EngineError(f"constraints cannot be used with this tokenizer: {_one_line(error)}") from error

    def matcher(self, constraint: Constraint, stop_ids: Sequence[int]) -> Matcher:
        """A fresh matcher.

        Args:
            constraint: what to follow.
            stop_ids: tokens that may end the text where it is complete.

        Raises:
            EngineError: the constraint cannot be compiled; one line says why.
        """
        try:
            compiled = self._compile(constraint)
        except Exception as error:  # a foreign schema may hold anything; only its own request fails
            raise EngineError(f"the {constraint.form} constraint cannot be compiled: {_one_line(error)}") from error
        return Matcher(self._library, compiled, self._vocab_size, stop_ids)

    def _compile(self, constraint: Constraint) -> Any:
        if constraint.form is Form.JSON:
            return self._compiler.compile_json_schema(constraint.text)
        if constraint.form is Form.REGEX:
            return self._compiler.compile_regex(constraint.text)
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in constraint.value)
        return self._compiler.compile_grammar(f"root ::= {texts}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
