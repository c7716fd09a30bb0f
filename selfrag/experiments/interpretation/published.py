"""Tables 2, 3 and 4 of "Explaining LLM-based Question Answering via the self-interpretations of a model". Data only.

GPT-3.5 (gpt-3.5-turbo-0125) on 60 questions of QAMPARI with dense retrieval: another model, other data. They stand
beside one's own figures for orientation. With 60 questions the standard error of a mean near 0.5 is about 0.05.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from selfrag.experiments.interpretation.grid import Cell, Order
from selfrag.experiments.interpretation.scoring import MEASURES

Row = tuple[float, float, float, float]
"""Figures of a cell, in the order of `MEASURES`."""

_SETTINGS: tuple[tuple[int, Order], ...] = (
    (3, "ranked"), (3, "top-last"), (3, "random"),
    (5, "ranked"), (5, "top-last"), (5, "random"),
    (10, "ranked"), (10, "top-last"), (10, "random"),
)  # fmt: skip

_TABLES: Mapping[str, Mapping[int, tuple[Row, ...]]] = {
    "basic": {
        0: (
            (0.5717, 0.7861, 0.6833, 0.7100),
            (0.5550, 0.8167, 0.6972, 0.7306),
            (0.5083, 0.7528, 0.6417, 0.6711),
            (0.4731, 0.7542, 0.5261, 0.5875),
            (0.4352, 0.7083, 0.4942, 0.5506),
            (0.4713, 0.7500, 0.5428, 0.5932),
            (0.3887, 0.7750, 0.4167, 0.4946),
            (0.3396, 0.7189, 0.3764, 0.4521),
            (0.3679, 0.7208, 0.3850, 0.4580),
        ),
        1: (
            (0.4917, 0.7194, 0.6389, 0.6517),
            (0.4500, 0.7444, 0.6500, 0.6739),
            (0.4517, 0.6611, 0.5917, 0.6000),
            (0.4196, 0.7117, 0.4956, 0.5461),
            (0.3088, 0.6208, 0.4114, 0.4659),
            (0.3852, 0.7417, 0.4872, 0.5522),
            (0.3565, 0.7353, 0.4300, 0.4842),
            (0.2853, 0.6642, 0.3378, 0.4052),
            (0.3114, 0.7356, 0.3959, 0.4587),
        ),
        2: (
            (0.5067, 0.6417, 0.6111, 0.5961),
            (0.5372, 0.7736, 0.7000, 0.7026),
            (0.5408, 0.7389, 0.7361, 0.7206),
            (0.4596, 0.7056, 0.5425, 0.5882),
            (0.4254, 0.7167, 0.5464, 0.5912),
            (0.4018, 0.6403, 0.4956, 0.5186),
            (0.4085, 0.7303, 0.4706, 0.5193),
            (0.3601, 0.6611, 0.3717, 0.4410),
            (0.3393, 0.6315, 0.3795, 0.4276),
        ),
    },
    "direct": {
        0: (
            (0.5528, 0.7444, 0.6417, 0.6683),
            (0.5106, 0.7583, 0.6500, 0.6772),
            (0.5306, 0.7583, 0.6333, 0.6661),
            (0.4717, 0.7242, 0.5108, 0.5586),
            (0.4960, 0.7111, 0.4747, 0.5406),
            (0.4815, 0.7417, 0.5183, 0.5756),
            (0.4332, 0.7583, 0.4094, 0.4931),
            (0.3915, 0.7514, 0.4037, 0.4799),
            (0.4037, 0.7417, 0.3932, 0.4709),
        ),
        1: (
            (0.5700, 0.7361, 0.6306, 0.6578),
            (0.4967, 0.7278, 0.6194, 0.6417),
            (0.5550, 0.7483, 0.6472, 0.6706),
            (0.4439, 0.7292, 0.5011, 0.5657),
            (0.4171, 0.6861, 0.4858, 0.5384),
            (0.4490, 0.7450, 0.5400, 0.5811),
            (0.3737, 0.7117, 0.3912, 0.4558),
            (0.3472, 0.7611, 0.3781, 0.4554),
            (0.3920, 0.6808, 0.3774, 0.4402),
        ),
        2: (
            (0.5439, 0.7083, 0.6472, 0.6550),
            (0.5800, 0.7472, 0.6750, 0.6911),
            (0.6106, 0.8056, 0.7306, 0.7417),
            (0.4833, 0.7350, 0.5497, 0.5969),
            (0.4699, 0.7556, 0.5344, 0.5933),
            (0.4421, 0.7389, 0.5414, 0.5943),
            (0.4195, 0.7694, 0.4670, 0.5334),
            (0.3812, 0.7292, 0.4104, 0.4779),
            (0.3854, 0.7322, 0.4139, 0.4808),
        ),
    },
    "counterfactual": {
        0: (
            (0.5467, 0.7444, 0.6611, 0.6800),
            (0.5550, 0.7500, 0.6667, 0.6828),
            (0.5050, 0.7583, 0.6500, 0.6800),
            (0.5022, 0.7542, 0.5331, 0.5892),
            (0.4810, 0.7194, 0.4933, 0.5502),
            (0.4796, 0.7300, 0.5289, 0.5759),
            (0.4387, 0.7806, 0.4584, 0.5292),
            (0.3551, 0.6764, 0.3509, 0.4252),
            (0.3482, 0.7211, 0.4100, 0.4677),
        ),
        1: (
            (0.5339, 0.6972, 0.6972, 0.6656),
            (0.5550, 0.7944, 0.7111, 0.7217),
            (0.6078, 0.8083, 0.7639, 0.7544),
            (0.4369, 0.6917, 0.5664, 0.5856),
            (0.4435, 0.7375, 0.5581, 0.5925),
            (0.4260, 0.7611, 0.5719, 0.6133),
            (0.4139, 0.7667, 0.4800, 0.5358),
            (0.3492, 0.7403, 0.4307, 0.4935),
            (0.3821, 0.7542, 0.4287, 0.5023),
        ),
        2: (
            (0.5667, 0.6722, 0.7444, 0.6817),
            (0.5633, 0.7139, 0.7778, 0.7083),
            (0.6194, 0.7361, 0.8167, 0.7394),
            (0.5444, 0.6656, 0.6469, 0.6211),
            (0.4796, 0.7125, 0.5831, 0.6130),
            (0.4963, 0.7367, 0.6608, 0.6596),
            (0.4568, 0.7536, 0.5410, 0.5897),
            (0.3835, 0.5972, 0.3680, 0.4105),
            (0.3895, 0.7506, 0.4392, 0.5019),
        ),
    },
}

PUBLISHED: Mapping[Cell, Row] = {
    Cell(cutoff, order, examples, prompt): row
    for prompt, blocks in _TABLES.items()
    for examples, rows in blocks.items()
    for (cutoff, order), row in zip(_SETTINGS, rows, strict=True)
}
"""Cell of the grid to the figures that were published for it."""


def published_mean(cells: Iterable[Cell], figure: str) -> float | None:
    """Mean of a published figure over cells; None where one of them was not published, or there is none.

    Args:
        cells: such as the nine of one prompt and one number of examples.
        figure: one of `MEASURES`.
    """
    at = MEASURES.index(figure)
    rows = [PUBLISHED.get(cell) for cell in cells]
    known = [row[at] for row in rows if row is not None]
    return fmean(known) if known and len(known) == len(rows) else None
