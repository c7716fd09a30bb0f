"""Rows packed end to end: the plan of a run's steps, packs as tensors, and attention that keeps rows apart.

The plan is a function of (lengths, strata, seed, epoch), so a resumed run sees the batches of an unbroken one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from selfrag.common.errors import UserError
from selfrag.training.rows import MASKED, TargetGroup, TrainingExample
from selfrag.training.settings import TrainingConfig, Weighting


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows end to end; T tokens, n target positions."""

    ids: Tensor  # [1, T]
    positions: Tensor  # [1, T], from 0 in each row
    row_lengths: list[int]  # tokens of each row
    predictors: Tensor  # [n] index of the token *before* each target, whose hidden state predicts it
    targets: Tensor  # [n] token ids
    groups: Tensor  # [n] `Group` of each target
    weights: Tensor  # [n] share of the loss, not normalised

    def to(self, device: Any) -> Pack:
        """Return the same with the tensors that the model reads on `device`."""
        names = ("ids", "positions", "predictors", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pack(examples: Sequence[TrainingExample], weighting: Weighting) -> Pack:
    """Lay examples end to end. A first token is never a target, so no row is predicted from the row before it."""
    predictors: list[int] = []
    weights: list[float] = []
    targets: list[int] = []
    groups: list[int] = []
    start = 0
    for example in examples:
        where = _where(example)
        predictors.extend(start + i - 1 for i in where)
        targets.extend(example.labels[i] for i in where)
        groups.extend(int(example.groups[i]) for i in where)
        weights.extend(_weights(example, where, weighting))
        start += len(example)
    lengths = [len(example) for example in examples]
    return Pack(
        ids=torch.tensor(
            [list(chain.from_iterable(example.ids for example in examples))]
        ),
        positions=torch.cat(list(map(torch.arange, lengths)))[None],
        row_lengths=lengths,
        predictors=torch.tensor(predictors),
        targets=torch.tensor(targets),
        groups=torch.tensor(groups),
        weights=torch.tensor(weights),
    )


def apart(packed: Pack) -> list[Pack]:
    """Return each row of a pack as a pack of its own; rows without a target are left out."""
    rows = []
    start = 0
    for length in packed.row_lengths:
        end = start + length
        inside = (packed.predictors >= start) & (packed.predictors < end)
        if bool(inside.any()):
            rows.append(
                Pack(
                    packed.ids[:, start:end],
                    packed.positions[:, start:end],
                    [length],
                    packed.predictors[inside] - start,
                    packed.targets[inside],
                    packed.groups[inside.to(packed.groups.device)],
                    packed.weights[inside.to(packed.weights.device)],
                )
            )
        start = end
    return rows


def weight_of(example: TrainingExample, weighting: Weighting) -> float:
    """Sum of the weights of an example's target positions."""
    return sum(_weights(example, _where(example), weighting))


def _where(example: TrainingExample) -> list[int]:
    """Positions with a loss."""
    return [i for i, label in enumerate(example.labels) if i > 0 and label != MASKED]


def _weights(
    example: TrainingExample, where: Sequence[int], weighting: Weighting
) -> list[float]:
    of_group = weighting.of_group()
    texts = sum(1 for i in where if example.groups[i] == TargetGroup.TEXT)
    factor = 1.0
    if texts and weighting.text_length is not None:
        factor = (weighting.text_length / texts) ** 0.5
    factors = {TargetGroup.TEXT: factor}
    groups = [TargetGroup(example.groups[i]) for i in where]
    return [
        of_group[group] * example.weight * factors.get(group, 1.0) for group in groups
    ]


StepPlan = tuple[tuple[int, ...], ...]
"""One optimiser step: for each worker the row numbers of its load. No load is empty, except in a last tiny step."""


def plan_epoch(
    lengths: Sequence[int],
    strata: Sequence[str],
    config: TrainingConfig,
    epoch: int,
) -> list[StepPlan]:
    """Plan one pass over all rows.

    Args:
        lengths: tokens of each row.
        strata: kind of each row; every stretch of the epoch holds all kinds in proportion.
        config: its `step_tokens` fill a step until the next row would exceed them (a longer row is a step of its own),
            or its `step_rows` are a step, however long they are (the last one what is left). A step has a load for each
            of the `workers`, balanced by tokens, and more where they would hold more than `load_tokens` on average:
            these are computed one after the other, so memory stays within bounds.
        epoch: number of the pass; each has its own order.

    Raises:
        UserError: there are no rows.
    """
    if not lengths:
        raise UserError("no training rows")
    order = _stratified_order(strata, random.Random(f"{config.seed}/{epoch}"))  # noqa: S311 - an order, not a secret
    steps = filled(order, lengths, config.step_tokens)
    if config.step_rows is not None:
        starts = range(0, len(order), config.step_rows)
        steps = [order[start : start + config.step_rows] for start in starts]
    plans = []
    for rows in steps:
        loads = config.workers
        if config.load_tokens is not None:
            tokens = sum(lengths[row] for row in rows)
            loads = max(loads, -(-tokens // config.load_tokens))
        plans.append(split(rows, lengths, loads))
    return plans


def filled(
    order: Iterable[int], lengths: Sequence[int], tokens: int
) -> list[list[int]]:
    """Rows in this order, in parts of at most so many tokens; a longer row is a part of its own."""
    parts: list[list[int]] = [[]]
    room = tokens
    for row in order:
        if parts[-1] and lengths[row] > room:
            parts.append([])
            room = tokens
        parts[-1].append(row)
        room -= lengths[row]
    return parts


def _stratified_order(strata: Sequence[str], rng: random.Random) -> list[int]:
    """Spread each kind evenly over the epoch, rows of a kind in random order."""
    members: dict[str, list[int]] = defaultdict(list)
    for row, kind in enumerate(strata):
        members[kind].append(row)
    places: list[tuple[float, int]] = []
    for kind in sorted(members):
        rows = members[kind]
        rng.shuffle(rows)
        places.extend(
            ((rank + rng.random()) / len(rows), row) for rank, row in enumerate(rows)
        )
    return [row for _, row in sorted(places)]


def split(rows: Sequence[int], lengths: Sequence[int], workers: int) -> StepPlan:
    """Longest row first to the least loaded worker: loads differ by at most one row's length."""
    loads: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        lightest = totals.index(min(totals))
        loads[lightest].append(row)
        totals[lightest] += lengths[row]
    return tuple(tuple(load) for load in loads if load)


PACKED = "selfrag_packed"
"""Value of `attn_implementation` after `register_attention()`."""


def register_attention() -> str:
    """Make the packed attention known to transformers; returns its name. Calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
    return PACKED


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_lengths: list[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention, row by row, in the form that transformers calls.

    `query` is [1, heads, tokens, width], `key` and `value` [1, key heads, tokens, width]; key heads divide heads. The
    rows, whose `row_lengths` are a keyword of the model call, are the mask. With `sliding_window` a token sees this
    many back, itself included; with `softcap` scores are bent below it. Returns [1, tokens, heads, width], and no
    attention weights.

    Raises:
        UserError: the layer wants attention sinks or a position bias.
    """
    for name in ("s_aux", "position_bias"):
        if others.get(name) is not None:
            raise UserError(
                f"{type(module).__name__} needs {name}, which packed attention has not;"
                " train with attention = 'sdpa' or 'flash_attention_2' in the [scale] table"
            )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, 1)
        value = value.repeat_interleave(groups, 1)
    rows = zip(
        *(torch.split(states, row_lengths, 2) for states in (query, key, value)),
        strict=True,
    )
    outputs = [_row(q, k, v, scaling, sliding_window, softcap) for q, k, v in rows]
    return torch.cat(outputs, 2).transpose(1, 2), None


def _row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Causal attention of one row."""
    tokens = query.shape[2]
    if softcap is None and (window is None or window >= tokens):
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling
        )
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    if softcap is None:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=scaling
        )
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scaling / softcap)
    shares = scores.masked_fill(~seen, float("-inf")).softmax(-1, dtype=torch.float32)
    return shares.to(query.dtype) @ value


_ROW = 6  # tokens of each of the two rows


def isolates(model: Any) -> bool:
    """Return whether a packed row is independent of the one before; False where a model takes no packed rows."""
    if model.config._attn_implementation == "flash_attention_2":
        return _as_ours(model)
    device = next(model.parameters()).device
    ids = (
        torch.arange(2 * _ROW, device=device)[None]
        % model.get_input_embeddings().weight.shape[0]
    )
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    positions = torch.arange(_ROW, device=device).repeat(2)[None]
    options = (
        {"row_lengths": [_ROW, _ROW]}
        if model.config._attn_implementation == PACKED
        else {}
    )
    try:
        logits = model(
            inputs_embeds=embedded, position_ids=positions, use_cache=False, **options
        ).logits[0]
        (gradient,) = torch.autograd.grad(
            logits[_ROW:].float().square().sum(), embedded
        )
    except (
        Exception
    ):  # whatever its code makes of arguments that it was not written for
        return False
    return not bool(gradient[0, :_ROW].any()) and bool(gradient[0, _ROW:].any())


def _as_ours(model: Any) -> bool:
    """FlashAttention runs on GPUs only: ask with our own attention, which the same layers call in the same way."""
    chosen = model.config._attn_implementation
    try:
        model.set_attn_implementation(PACKED)
        return isolates(model)
    except Exception:  # layers of old code have their attention built in
        return False
    finally:
        model.config._attn_implementation = chosen
