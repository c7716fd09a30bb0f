"""Writes the equations of Word in one line, as the formulas of web pages are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from retrieval.documents.formulas import (
    Form,
    FormulaPart,
    FormulaTerm,
    FormulaWriter,
    write_cells,
    write_fraction,
    write_multiscripts,
    write_over,
    write_root,
    write_rows,
    write_sub,
    write_subsup,
    write_sup,
    write_under,
    write_underover,
)
from selfrag.extensions.word.package import Attributes

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


def _by_name(form: Form, *names: str) -> Form:
    return lambda part: form(_arrange(part, *names))


def _write_operator(part: FormulaPart) -> FormulaTerm:
    """Write a sum, product or integral with its limits, then its operand."""
    sign = FormulaTerm(part.setting("m:chr", "∫"))
    limits = [_argument(part, "m:sub"), _argument(part, "m:sup")]
    head = write_underover(replace(part, terms=[sign, *limits]))
    return FormulaTerm(f"{head.text} {_argument(part, 'm:e').text}", ends_apart=True)


def _write_function(part: FormulaPart) -> FormulaTerm:
    name, operand = _arrange(part, "m:fName", "m:e").terms
    return FormulaTerm(f"{name.text} {operand.text}", ends_apart=True)


def _write_accent(part: FormulaPart) -> FormulaTerm:
    accent = FormulaTerm(part.setting("m:chr", "\u0302"))
    return write_over(replace(part, terms=[_argument(part, "m:e"), accent]))


def _write_delimited(part: FormulaPart) -> FormulaTerm:
    separator = part.setting("m:sepChr", "|") or "|"
    text = separator.join(term.text for term in part.terms)
    opening, closing = part.setting("m:begChr", "("), part.setting("m:endChr", ")")
    return FormulaTerm(f"{opening}{text}{closing}")


_FORMS: Mapping[str, Form] = {
    "m:f": _by_name(write_fraction, "m:num", "m:den"),
    "m:sSup": _by_name(write_sup, "m:e", "m:sup"),
    "m:sSub": _by_name(write_sub, "m:e", "m:sub"),
    "m:sSubSup": _by_name(write_subsup, "m:e", "m:sub", "m:sup"),
    "m:sPre": _by_name(write_multiscripts, "m:e", "mprescripts", "m:sub", "m:sup"),
    "m:rad": _by_name(write_root, "m:e", "m:deg"),
    "m:limLow": _by_name(write_under, "m:e", "m:lim"),
    "m:limUpp": _by_name(write_over, "m:e", "m:lim"),
    "m:nary": _write_operator,
    "m:func": _write_function,
    "m:acc": _write_accent,
    "m:d": _write_delimited,
    "m:m": write_rows,
    "m:mr": write_cells,
    "m:eqArr": write_rows,
}
