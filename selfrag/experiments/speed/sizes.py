"""How much of everything the benchmark measures; the defaults take about a quarter of an hour on two quiet cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class FormSizes:
    """How much of one form.

    Attributes:
        questions: for ours and the floor.
        repeats: rounds of ours against the floor, whose ratio must be exact.
        rivals: questions of the rivals, which are slow.
        ablated: questions of the ablations.
        rounds: of rivals and ablations.
    """

    questions: int = 64
    repeats: int = 3
    rivals: int = 8
    ablated: int = 32
    rounds: int = 2


def _forms() -> dict[str, FormSizes]:
    long, overview = FormSizes(rivals=4, ablated=16, rounds=1), FormSizes(repeats=1, rivals=1, ablated=8, rounds=1)
    return {"short": FormSizes(), "long": long, "overview": overview}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything.

    Attributes:
        forms: by name; a form left out is not measured.
        passages: of each question.
        growth: (questions, passages) of each cell of the growth table.
        rescored: recorded answers that are rescored.
        settings: weight settings under which each is rescored.
    """

    forms: Mapping[str, FormSizes] = field(default_factory=_forms)
    passages: int = 5
    growth: tuple[tuple[int, int], ...] = tuple((q, p) for q in (16, 64, 256) for p in (2, 5, 10))
    rescored: int = 500
    settings: int = 1000

    @property
    def items(self) -> tuple[int, int]:
        """Questions, and passages of each, that must be read."""
        questions = max(
            [*(max(f.questions, f.rivals, f.ablated) for f in self.forms.values()), *(q for q, _ in self.growth)]
        )
        return questions, max([self.passages, *(p for _, p in self.growth)])

    def changed(self, **values: int | None) -> Sizes:
        """The same with these fields of `FormSizes` set in every form; None leaves a field as it is."""
        known = {item.name for item in fields(FormSizes)}
        given = {name: value for name, value in values.items() if value is not None and name in known}
        return replace(self, forms={name: replace(form, **given) for name, form in self.forms.items()})
