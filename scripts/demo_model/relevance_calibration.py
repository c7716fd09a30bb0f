"""After training: move the row of `[Relevant]` until few enough irrelevant passages are called relevant.

A cross entropy over many easy rows leaves a model that accepts passages on topic without an answer,
and the threshold of IsRel is part of what it generates, so no setting at inference mends it. The output row moves along
the mean hidden state of the positions where IsRel is due, which lowers the token's log-odds there by nearly the same
amount everywhere (logit adjustment, arXiv 2007.07314).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfrag.common.errors import UserError
from selfrag.reflection.labels import ISREL, TOKENS
from selfrag.training.model import Trainee
from selfrag.training.rows import TrainingExample

RELEVANT, IRRELEVANT = ISREL.tokens


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was moved, and what it changed on the rows it was chosen on."""

    shift: float  # taken off the log-odds of Relevant at the mean state; negative where a model was too strict
    # shares of relevant passages called Irrelevant, before and after
    missed: tuple[float, float]
    # shares of irrelevant passages called Relevant, before and after
    taken: tuple[float, float]
    rows: tuple[int, int]  # numbers of relevant and of irrelevant rows


def threshold_for(negatives: Sequence[float], most: float) -> float:
    """Return the lowest threshold that at most a share `most` of the values exceed, half-way to the next value.

    Args:
        negatives: log-odds of rows that should not be above; at least one.
        most: from 0 to below 1.
    """
    values = sorted(negatives, reverse=True)
    allowed = int(most * len(values) + 1e-9)
    above = values[allowed - 1] if allowed else values[0] + 1.0
    return (above + values[allowed]) / 2


def restrain_relevance(
    trainee: Trainee, examples: Iterable[TrainingExample], *, most_taken: float
) -> Calibration:
    """Move the row of `[Relevant]` so that it is generated for at most a share `most_taken` of irrelevant passages.

    Args:
        trainee: a trained model with reflection rows; changed in place.
        examples: rows that were not trained on. The first IsRel label of each counts; others are passed over.
        most_taken: share of the rows labelled Irrelevant, from 0 to below 1.

    Raises:
        UserError: no row with one of the two labels, or the model has no rows of its own to move.
    """
    if not trainee.rows:
        raise UserError(
            "the model has no trained reflection rows, so there is none to move"
        )
    relevant, irrelevant = (
        trainee.tokenizer.convert_tokens_to_ids(token)
        for token in (RELEVANT, IRRELEVANT)
    )
    states: list[Tensor] = []
    truth: list[bool] = []
    for example in examples:
        for place, label in enumerate(example.labels):
            if label in (relevant, irrelevant):
                states.append(_state(trainee, example.ids[:place]))
                truth.append(label == relevant)
                break
    if len(set(truth)) < 2:
        raise UserError("calibration needs held-out rows of both IsRel labels")
    hidden = torch.stack(states)
    rows = _output_rows(trainee)
    row = TOKENS.index(RELEVANT)
    good = torch.tensor(truth, device=hidden.device)
    with torch.no_grad():
        before = hidden @ (rows[row] - rows[TOKENS.index(IRRELEVANT)])
        direction = hidden.mean(0) / hidden.mean(0).square().sum()
        # near 1; where it is not above 0, no shift helps
        slope = (hidden @ direction).clamp_min(1e-6)
        shift = threshold_for((before / slope)[~good].tolist(), most_taken)
        rows[row] -= shift * direction
        after = hidden @ (rows[row] - rows[TOKENS.index(IRRELEVANT)])
    trainee.refresh()
    return Calibration(
        shift,
        (_share(before[good] <= 0), _share(after[good] <= 0)),
        (_share(before[~good] > 0), _share(after[~good] > 0)),
        (int(good.sum()), int((~good).sum())),
    )


def _state(trainee: Trainee, ids: Sequence[int]) -> Tensor:
    """Return the last hidden state after `ids` [width], in float32."""
    causal = trainee.causal
    with torch.no_grad():
        inputs = torch.tensor([list(ids)], device=causal.device)
        states: Tensor = causal.base_model(
            input_ids=inputs, use_cache=False, row_lengths=[len(ids)]
        ).last_hidden_state
    return states[0, -1].float()


def _output_rows(trainee: Trainee) -> Tensor:
    """Return the trained rows of the output matrix; where embeddings are tied, the only ones."""
    return list(trainee.rows.values())[0 if trainee.expansion.tied else -1]


def _share(which: Tensor) -> float:
    """Return the part of a mask that is true."""
    return int(which.sum()) / len(which)
