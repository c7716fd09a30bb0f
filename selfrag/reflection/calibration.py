"""`Scaling`: a temperature and biases that calibrate the probabilities of a group, stored with a model. Pure.

Temperature and bias scaling: Guo et al. 2017, arXiv 1706.04599. `selfrag eval calibration` fits them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role, group

STORED = "reflection_calibration"
"""Key of the scalings in `tokenizer_config.json` of a checkpoint, and in `reflection.json` of an adapter."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Label i of n with probability p_i gets p_i^(1/T) e^(b_i), normalised.

    Attributes:
        temperature: T, above 0; above 1 makes a judgment less sure.
        biases: b_i in label order [n]; none are zeros.
    """

    temperature: float = 1.0
    biases: tuple[float, ...] = ()

    def __call__(self, judgment: Judgment) -> Judgment:
        """The judgment with calibrated probabilities. Its coverage stays as it was; a label without any stays so."""
        biases = self.biases or (0.0,) * len(judgment.distribution)
        pairs = zip(judgment.distribution, biases, strict=True)
        logits = [math.log(p) / self.temperature + bias if p > 0 else -math.inf for p, bias in pairs]
        top = max(logits)
        raw = [math.exp(logit - top) for logit in logits]
        mass = math.fsum(raw)
        return replace(judgment, distribution=tuple([value / mass for value in raw]))


def as_record(scalings: Mapping[Role, Scaling]) -> dict[str, Any]:
    """Plain values, ready for JSON; `read_scalings` reads them."""
    return {
        str(role): {"temperature": one.temperature, "biases": dict(zip(group(role).names, one.biases, strict=False))}
        for role, one in scalings.items()
    }


def read_scalings(record: object) -> dict[Role, Scaling]:
    """Check what a file says.

    Raises:
        UserError: it is no mapping of groups to a temperature and biases by label.
    """
    if not isinstance(record, dict):
        raise UserError(f"{STORED} must map groups to temperature and biases, not {record!r:.80}")
    return {group(name).role: _scaling(name, given) for name, given in record.items()}


def _scaling(name: str, given: object) -> Scaling:
    labels = group(name)
    temperature, biases = (given.get("temperature"), given.get("biases")) if isinstance(given, dict) else (None, None)
    if isinstance(biases, dict) and (not biases or set(biases) == set(labels.names)):
        numbers = [temperature, *(biases[label] for label in labels.names if biases)]
        sound = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        if sound and 0.01 <= numbers[0] <= 100 and max(map(abs, numbers)) <= 100:
            return Scaling(float(numbers[0]), tuple(map(float, numbers[1:])))
    raise UserError(
        f"{STORED} of {name}: {given!r:.80}: give a temperature from 0.01 to 100, and no biases or one from -100 to 100"
        f" for each of {', '.join(labels.names)}"
    )
