"""Vocabulary expansion: the 15 reflection tokens as single ids with rows that start in the right place.

Works on any Hugging Face causal language model and its tokenizer, tied or untied.

A random or a mean row starts near log-probability -17 and learns for a long time only how frequent it is. So a new
row starts as the mean row of words that describe the token. It is moved to where frequent tokens are: the part that
is particular to the description, plus the centre of ordinary function words. That lifts its logit to an ordinary
frequent token's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfrag.common.errors import UserError, count_of
from selfrag.loading import load_training_tokenizer
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTIONS: dict[str, str] = {
    "[No Retrieval]": " no answer directly known",
    "[Retrieval]": " search retrieve look up document",
    "[Continue to Use Evidence]": " continue same evidence again",
    "[Irrelevant]": " irrelevant unrelated off wrong",
    "[Relevant]": " relevant related useful right",
    "<paragraph>": " passage text begin paragraph",
    "</paragraph>": " passage text end paragraph",
    "[Utility:1]": " one useless bad",
    "[Utility:2]": " two poor weak",
    "[Utility:3]": " three fair average",
    "[Utility:4]": " four good helpful",
    "[Utility:5]": " five excellent perfect",
    "[Fully supported]": " fully supported true",
    "[Partially supported]": " partially supported partly",
    "[No support / Contradictory]": " unsupported contradictory false",
}
"""Words whose rows a new token starts from."""

FREQUENT = "The answer of a question is in the text, and it was for that to be as on with by.\n"
"""Ordinary frequent tokens, in any tokenizer's own segmentation."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What an expansion did."""

    token_ids: tuple[int, ...]  # ids of all 15 tokens, in the order of `TOKENS`
    # tokens that were new to the tokenizer; their rows were initialised here
    added: tuple[str, ...]
    tied: bool  # whether input and output rows are one matrix


def expand(model: Any, tokenizer: Any) -> Expansion:
    """Add the missing reflection tokens to a tokenizer of any family and start their rows in `model`, both in place.

    Raises:
        UserError: model or tokenizer cannot be expanded; the message says why.
    """
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    name = type(model).__name__
    if inputs is None or outputs is None:
        raise UserError(
            f"{name} has no output layer over the vocabulary; load it with AutoModelForCausalLM"
        )
    rows, known = inputs.weight.shape[0], tokenizer.get_vocab()
    if known and max(known.values()) >= rows:
        raise UserError(
            f"the tokenizer has ids up to {max(known.values())}, {name} only {count_of(rows, 'embedding rows')}:"
            " they do not belong together"
        )
    added = add_tokens(tokenizer)
    if len(tokenizer) > rows:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    _check_whole(tokenizer, vocabulary)
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outputs.weight is inputs.weight
    for matrix in [inputs.weight] if tied else [inputs.weight, outputs.weight]:
        _start_rows(
            matrix, tokenizer, {token: vocabulary.ids[token] for token in added}
        )
    if added and getattr(outputs, "bias", None) is not None:
        frequent = _ids(tokenizer, FREQUENT)
        for token in added:
            # Sums of a few bf16 numbers are exact in float64, so the mean is the same on every machine.
            outputs.bias.data[vocabulary.ids[token]] = (
                outputs.bias.data[frequent].double().mean()
            )
    return Expansion(
        tuple(vocabulary.ids[token] for token in TOKENS), tuple(added), tied
    )


def unexpanded(model: Any) -> Expansion:
    """Return the expansion of a model whose vocabulary stays as it is."""
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    if inputs is None or outputs is None:
        raise UserError(
            f"{type(model).__name__} has no output layer over the vocabulary; load a causal model"
        )
    return Expansion((), (), outputs.weight is inputs.weight)


def add_tokens(tokenizer: Any) -> list[str]:
    """Add the missing reflection tokens to a tokenizer, in place; returns them.

    Raises:
        UserError: the tokenizer does not take them.
    """
    from transformers import AddedToken

    known = tokenizer.get_vocab()
    missing = [token for token in TOKENS if token not in known]
    if missing:
        new = [AddedToken(token, special=True, normalized=False) for token in missing]
        count = tokenizer.add_tokens(new, special_tokens=True)
        if count != len(missing):
            raise UserError(
                f"{type(tokenizer).__name__} took {count} of {count_of(len(missing), 'new tokens')};"
                " use a fast tokenizer"
            )
    return missing


def expanded_tokenizer(base: Path, *, token_rows: bool = True) -> Any:
    """Load the tokenizer that a run on a base trains with, expanded where it has `token_rows`.

    Raises:
        UserError: there is none, or it cannot be expanded.
    """
    tokenizer = load_training_tokenizer(base)
    if token_rows:
        add_tokens(tokenizer)
    return tokenizer


def _check_whole(tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Check that each token comes back from its own text: other programs will write prompts as text."""
    for token in TOKENS:
        ids = tokenizer(token, add_special_tokens=False)["input_ids"]
        others = [i for i in ids if i != vocabulary.ids[token]]
        if len(ids) - len(others) != 1 or tokenizer.decode(others).strip():
            raise UserError(
                f"{type(tokenizer).__name__} splits {token!r} into {tokenizer.convert_ids_to_tokens(ids)};"
                " add it to the tokenizer as a special token that is not normalised"
            )


def _start_rows(matrix: Tensor, tokenizer: Any, new: dict[str, int]) -> None:
    """Write the starting rows of `new` (token to id) into `matrix` [rows, width], in float32 arithmetic."""
    if not new:
        return
    old = matrix.data[
        [i for i in range(matrix.shape[0]) if i not in set(new.values())]
    ].float()
    centre = old.mean(0)
    frequent = matrix.data[_ids(tokenizer, FREQUENT)].float().mean(0)
    for token, row in new.items():
        described = matrix.data[_ids(tokenizer, DESCRIPTIONS[token])].float().mean(0)
        matrix.data[row] = (described - centre + frequent).to(matrix.dtype)


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    return sorted({i for i in ids if i != unknown}) or ids
