"""Writes the equations of Word in one line, as the formulas of web pages are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from selfrag.extensions.word.package import Attributes
from selfrag.interface import MATHML, FormulaPart, FormulaTerm, FormulaWriter

_PROPERTIES = frozenset(("m:chr", "m:begChr", "m:endChr", "m:sepChr", "m:type"))


class EquationWriter(FormulaWriter):
    """Turns the elements of one equation into text."""

    def __init__(self) -> None:
        super().__init__(_FORMS)

    def start(self, name: str, settings: Attributes) -> None:
        """Begin an element of the equation."""
        if name in _PROPERTIES:
            self.set_property(name, settings.get("m:val", "")[:5])
        elif not name.endswith("Pr"):
            super().start(name, {})

    def end(self, name: str) -> None:
        """End an element of the equation."""
        if name not in _PROPERTIES and not name.endswith("Pr"):
            super().end(name)


def _arrange(part: FormulaPart, *names: str) -> FormulaPart:
    """Return an element with its arguments in this order, whatever the order in the file."""
    terms = [_argument(part, name) for name in names]
    return replace(part, terms=terms)


def _argument(part: FormulaPart, name: str) -> FormulaTerm:
    text = "".join(term.text for term in part.terms if term.name == name)
    return FormulaTerm(text, name)


def _by_name(mathml: str, *names: str) -> Callable[[FormulaPart], FormulaTerm]:
    """Return how an element of Word is written: as one of MathML with these arguments."""
    return lambda part: MATHML[mathml](_arrange(part, *names))


def _write_operator(part: FormulaPart) -> FormulaTerm:
    """Write a sum, product or integral with its limits, then its operand."""
    sign = FormulaTerm(part.setting("m:chr", "∫"))
    limits = [_argument(part, "m:sub"), _argument(part, "m:sup")]
    head = MATHML["munderover"](replace(part, terms=[sign, *limits]))
    return FormulaTerm(f"{head.text} {_argument(part, 'm:e').text}", ends_apart=True)


def _write_function(part: FormulaPart) -> FormulaTerm:
    name, operand = _arrange(part, "m:fName", "m:e").terms
    return FormulaTerm(f"{name.text} {operand.text}", ends_apart=True)


def _write_accent(part: FormulaPart) -> FormulaTerm:
    accent = FormulaTerm(part.setting("m:chr", "\u0302"))
    return MATHML["mover"](replace(part, terms=[_argument(part, "m:e"), accent]))


def _write_delimited(part: FormulaPart) -> FormulaTerm:
    separator = part.setting("m:sepChr", "|") or "|"
    text = separator.join(term.text for term in part.terms)
    opening, closing = part.setting("m:begChr", "("), part.setting("m:endChr", ")")
    return FormulaTerm(f"{opening}{text}{closing}")


_FORMS = {
    "m:f": _by_name("mfrac", "m:num", "m:den"),
    "m:sSup": _by_name("msup", "m:e", "m:sup"),
    "m:sSub": _by_name("msub", "m:e", "m:sub"),
    "m:sSubSup": _by_name("msubsup", "m:e", "m:sub", "m:sup"),
    "m:sPre": _by_name("mmultiscripts", "m:e", "mprescripts", "m:sub", "m:sup"),
    "m:rad": _by_name("mroot", "m:e", "m:deg"),
    "m:limLow": _by_name("munder", "m:e", "m:lim"),
    "m:limUpp": _by_name("mover", "m:e", "m:lim"),
    "m:nary": _write_operator,
    "m:func": _write_function,
    "m:acc": _write_accent,
    "m:d": _write_delimited,
    "m:m": MATHML["mtable"],
    "m:mr": MATHML["mtr"],
    "m:eqArr": MATHML["mtable"],
}
