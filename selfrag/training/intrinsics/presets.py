"""Settings of an adapter's training by name. See `TrainingConfig` and `RowSelection`.

`paper` has what arXiv 2504.11704 states: rank, learning rate, epochs, early stopping and the split. It states no batch
size, no alpha and no warm-up, and nothing for uncertainty; those are ours. `demo` trains all five in half an hour on
two idle CPU cores, on a model of 135M parameters: LoRA on the upper half of the layers, and some hundred rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfrag.errors import UserError
from selfrag.training.settings import Recipe

HELD_OUT = 0.1
"""Share of the rows to validate on; the paper's 90/10."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """How rows are chosen."""

    most_rows: int | None = None  # at most this many of those that give an example; None for all
    # sources alike in number, as far as they have rows; else in proportion. A source is a data set with a label, so a
    # label is then not guessed by where a row is from.
    even: bool = False
    most_slots: int | None = None  # at most this many targets of one row; None for all
    held_out: float = HELD_OUT  # share of the rows to validate on
    # further rows of citations with their evidence cut out, so that there is nothing to cite, as a share
    uncited: float = 0.0
    standalone: float = 0.0  # further rows of query rewrite whose last question stands on its own already, as a share
    isotonic: bool = True  # of the calibrator of uncertainty; False for temperature alone


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of one intrinsic."""

    name: str  # of the preset
    training: Mapping[str, Any]  # fields of `TrainingConfig`
    selection: RowSelection = field(default_factory=RowSelection)  # choice of rows

    def config(self, **changes: Any) -> Any:
        """The `TrainingConfig`, with the fields in `changes` that are not None. Imports torch."""
        return Recipe(self.name, self.training, None).config(**changes)


_ALIKE = {"text": 1.0, "eos": 0.05, "text_length": "none"}
_WRITTEN = {"text": 1.0, "eos": 1.0, "text_length": "none"}

_PAPER = {
    "method": "lora",
    "reach": {"token_rows": False},
    "epochs": 25,
    "step_rows": 16,
    "load_tokens": 4096,
    "workers": 1,
    "warmup": 0.03,
    "beta2": 0.999,
    "max_length": 8192,
    "validate_steps": 50,
    "patience": 5,
    "checkpoint_steps": 50,
    "weighting": _ALIKE,
}
_DEMO = {
    "method": "lora",
    "lora": {"rank": 8, "alpha": 16.0},
    "reach": {"token_rows": False, "last_layers": 16},
    "epochs": 1,
    "step_tokens": 1800,
    "workers": 2,
    "learning_rate": 6e-4,
    "warmup": 0.05,
    "max_length": 600,
    "validate_steps": 60,
    "patience": 3,
    "checkpoint_steps": 30,
    "weighting": _ALIKE,
}

_WIDE, _NARROW = {"lora": {"rank": 32, "alpha": 64.0}}, {"lora": {"rank": 8, "alpha": 16.0}}
_SHORT = _PAPER | _NARROW | {"learning_rate": 1e-5, "epochs": 5}

PRESETS: Mapping[str, Mapping[str, Preset]] = {
    "paper": {
        "query_rewrite": Preset("paper", _PAPER | _WIDE | {"learning_rate": 3e-6, "weighting": _WRITTEN}),
        "answerability": Preset("paper", _PAPER | _WIDE | {"learning_rate": 5e-6}),
        "hallucination_detection": Preset("paper", _SHORT),
        "citation_generation": Preset("paper", _SHORT),
        "uncertainty": Preset("paper", _SHORT),
    },
    "demo": {
        "query_rewrite": Preset(
            "demo", _DEMO | {"epochs": 2, "max_length": 480, "weighting": _WRITTEN}, RowSelection(standalone=0.5)
        ),
        "answerability": Preset("demo", _DEMO | {"max_length": 420}, RowSelection(most_rows=900)),
        "hallucination_detection": Preset(
            "demo", _DEMO | {"max_length": 680}, RowSelection(most_rows=600, most_slots=1, even=True)
        ),
        "citation_generation": Preset(
            "demo", _DEMO | {"max_length": 640}, RowSelection(most_rows=520, most_slots=1, even=True, uncited=0.12)
        ),
        # Narrower than the others: with a rank of 8 here too the package's data would be just over 25 MB.
        "uncertainty": Preset(
            "demo", _DEMO | {"lora": {"rank": 7, "alpha": 14.0}, "learning_rate": 4e-4}, RowSelection(most_rows=1200)
        ),
    },
}


def preset(name: str, intrinsic: str) -> Preset:
    """Settings of an intrinsic.

    Raises:
        UserError: no such preset, or none for this intrinsic.
    """
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    if intrinsic not in PRESETS[name]:
        raise UserError(f"preset {name} has no {intrinsic!r}; it has: {', '.join(PRESETS[name])}")
    return PRESETS[name][intrinsic]
