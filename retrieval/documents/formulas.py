"""Raised and lowered text, and formulas in one line: `10³`, `H₂O`, `1/2`, `√16`. For the readers of all formats.

MathML (`MATHML`) and the equations of Word are the same structures under other names, so one writer serves both.
"""

# ruff: noqa: RUF001 - signs that look like others are what the tables are for

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

MAX_DEPTH = 50
"""Levels of a formula that are told apart. The text of deeper ones is read without its structure."""
_MAX_SCRIPT = 20  # characters of raised text; a longer one is a sentence in small print
_RAISED = str.maketrans("0123456789+-−=()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾")
_LOWERED = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
_RAISED_DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED_DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_TEXT_ELEMENTS = ("mtext", "ms", "m:t")
_SCRIPT = re.compile(r"[0-9+\-−=()]{1,20}")
_ATOM = re.compile(
    r"(?:\d[\d.,]*|[^\W\d_]+)?[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉₊₋′\u0300-\u036f\u20d7]*|."
)
_BARE_RAISED = re.compile("[′″‴'°∘*†‡]+")
_ACCENTS = str.maketrans(
    "¯‾^ˆ~˜˙¨→ˇ´`",
    "\u0304\u0304\u0302\u0302\u0303\u0303\u0307\u0308\u20d7\u030c\u0301\u0300",
)
_COMBINING = re.compile("[\u0300-\u036f\u20d0-\u20ff]")
_DEGREES = {"": "√", "2": "√", "3": "∛", "4": "∜"}
# function application, times, separator and plus, which are not shown
_INVISIBLE = str.maketrans({"\u2061": " ", "\u2062": "", "\u2063": ",", "\u2064": " "})
_TIMES_OF_NUMBERS = re.compile(r"(?<=\d)\u2062(?=\d)")
_TEX_STYLE = re.compile(r"\{\\(?:display|text)style\s(.*)\}", re.DOTALL)


def write_script(text: str, *, raised: bool) -> str:
    """Return raised or lowered text so that its digits do not join the number before it: `10` and `6` is no `106`.

    Digits get their raised or lowered form. So do signs, where no letter stands beside them. Letters, long texts and
    marks in brackets (`[12]`) stay as they are.
    """
    if len(text) > _MAX_SCRIPT or "[" in text:
        return text
    if any(letter.isalpha() for letter in text):
        return text.translate(_RAISED_DIGITS if raised else _LOWERED_DIGITS)
    return text.translate(_RAISED if raised else _LOWERED)


@dataclass(frozen=True, slots=True)
class FormulaTerm:
    """The text of an element of a formula."""

    text: str
    name: str = ""  # of the element
    begins_apart: bool = (
        False  # whether a number before it would be read as a part of it
    )
    ends_apart: bool = False  # and whether a letter or number after it would


@dataclass(slots=True)
class FormulaPart:
    """An element that is open."""

    name: str
    settings: Mapping[str, str]
    terms: list[FormulaTerm] = field(default_factory=list)  # of its children, in order
    tex: str = ""  # what a child says in TeX

    def setting(self, name: str, default: str) -> str:
        """Return an attribute or property."""
        return self.settings.get(name, default)

    def text(self, place: int) -> str:
        """Return the text of a child, "" where there is none."""
        return self.terms[place].text if 0 <= place < len(self.terms) else ""


Form: TypeAlias = Callable[[FormulaPart], FormulaTerm]
"""Writes an element whose children are written."""


class FormulaWriter:
    """Turns the elements of one formula into text.

    Args:
        forms: how elements are written, by name; others are the texts of their children.

    Example:
        >>> writer = FormulaWriter(MATHML)
        >>> for number in ("1", "2"):
        ...     writer.start("mn", {})
        ...     writer.add(number)
        ...     writer.end("mn")
        >>> writer.finish()
        '12'
    """

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = forms
        self._stack = [FormulaPart("", {})]
        self._depth = 0  # levels below the last one that is told apart

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Begin an element."""
        if len(self._stack) > MAX_DEPTH:
            self._depth += 1
        else:
            self._stack.append(FormulaPart(name, settings))

    def end(self, name: str) -> None:
        """End an element."""
        if self._depth:
            self._depth -= 1
            return
        if len(self._stack) == 1:
            return
        part = self._stack.pop()
        if name == "annotation" and "tex" in part.setting("encoding", "").lower():
            self._stack[-1].tex = _plain_tex("".join(term.text for term in part.terms))
            return
        term = self._forms.get(name, write_row)(part)
        self._stack[-1].terms.append(
            FormulaTerm(term.text, name, term.begins_apart, term.ends_apart)
        )

    def add(self, text: str) -> None:
        """Append text. White space between elements is none."""
        if text.isspace() and self._stack[-1].name not in _TEXT_ELEMENTS:
            return
        self._stack[-1].terms.append(FormulaTerm(text))

    def set_property(self, name: str, value: str) -> None:
        """Set a property of the open element that is an element of its own, as in Word."""
        part = self._stack[-1]
        part.settings = {**part.settings, name: value}

    def finish(self) -> str:
        """Return the text of the formula."""
        while len(self._stack) > 1:
            self.end(self._stack[-1].name)
        part = self._stack[0]
        text = part.tex or write_row(part).text
        text = _TIMES_OF_NUMBERS.sub("·", text).translate(_INVISIBLE)
        return " ".join(text.split())


def _plain_tex(text: str) -> str:
    text = " ".join(text.split())
    styled = _TEX_STYLE.fullmatch(text)
    return styled[1].strip() if styled else text


def group(text: str) -> str:
    """Return text in parentheses, unless it is one number, name or sign, or stands in parentheses."""
    if _ATOM.fullmatch(text) or (text[0] == "(" and text.find(")") == len(text) - 1):
        return text
    return f"({text})"


def write_row(part: FormulaPart) -> FormulaTerm:
    """Write elements side by side, a space between what would be read as one number or name: `2 1/2`."""
    line = ""
    previous = FormulaTerm("")
    for term in part.terms:
        if not term.text:
            continue
        touches = line[-1:].isalnum() or line[-1:] == ")"
        if (term.begins_apart and touches) or (
            previous.ends_apart and term.text[0].isalnum()
        ):
            line += " "
        line += term.text
        previous = term
    begins_apart = bool(part.terms) and part.terms[0].begins_apart
    return FormulaTerm(line, begins_apart=begins_apart, ends_apart=previous.ends_apart)


def write_name(part: FormulaPart) -> FormulaTerm:
    """Write a name; one of several letters does not join the next one."""
    text = write_row(part).text.strip()
    return FormulaTerm(text, ends_apart=len(text) > 1)


def write_operator(part: FormulaPart) -> FormulaTerm:
    """Write a sign; a comma between numbers is no part of one of them."""
    text = write_row(part).text.strip()
    return FormulaTerm(text + " " if text in (",", ";") else text)


def write_space(part: FormulaPart) -> FormulaTerm:
    """Write a space."""
    return FormulaTerm(" ")


def write_nothing(part: FormulaPart) -> FormulaTerm:
    """Leave out what is not shown."""
    return FormulaTerm("")


def write_first(part: FormulaPart) -> FormulaTerm:
    """Write what an element says in TeX, else its first child: the others say the same in another way."""
    if part.tex:
        return FormulaTerm(part.tex, begins_apart=True, ends_apart=True)
    return part.terms[0] if part.terms else FormulaTerm("")


def write_fraction(part: FormulaPart) -> FormulaTerm:
    """Write `1/2`; without a bar, as in binomial coefficients, `n; k`."""
    over, under = part.text(0), part.text(1)
    is_bare = part.setting("m:type", "") == "noBar"
    if is_bare or re.match(r"\s*0", part.setting("linethickness", "1")):
        return FormulaTerm(f"{over}; {under}")
    fraction = f"{group(over)}/{group(under)}"
    return FormulaTerm(fraction, begins_apart=True, ends_apart=True)


def write_root(part: FormulaPart) -> FormulaTerm:
    """Write `∛27`, given what stands below the root and the degree."""
    return _root(part.text(0), part.text(1).strip())


def write_square_root(part: FormulaPart) -> FormulaTerm:
    """Write `√16`."""
    return _root(write_row(part).text, "")


def _root(radicand: str, degree: str) -> FormulaTerm:
    sign = _DEGREES.get(degree)
    if sign is not None:
        return FormulaTerm(sign + group(radicand), ends_apart=True)
    is_number = _SCRIPT.fullmatch(degree) is not None
    degree = write_script(degree, raised=True) if is_number else f"({degree})"
    return FormulaTerm(
        f"{degree}√{group(radicand)}", begins_apart=True, ends_apart=True
    )


def _script(text: str, *, raised: bool) -> str:
    """Return an exponent or index: `³`, `₁`, else `^(n+1)`."""
    text = text.strip()
    if not text or (raised and _BARE_RAISED.fullmatch(text)):
        return text.replace("∘", "°")
    if _SCRIPT.fullmatch(text):
        return write_script(text, raised=raised)
    return ("^" if raised else "_") + group(text)


def _scripts(sub: str, sup: str) -> str:
    return _script(sub, raised=False) + _script(sup, raised=True)


def _with_scripts(base: str, scripts: str) -> FormulaTerm:
    return FormulaTerm(
        group(base) + scripts,
        ends_apart="^" in scripts or "_" in scripts or not base[:1].isalnum(),
    )


def write_scripts(part: FormulaPart, sub: int = -1, sup: int = -1) -> FormulaTerm:
    """Write `x₁²`, given the places of what is lowered and of what is raised behind the base."""
    return _with_scripts(part.text(0), _scripts(part.text(sub), part.text(sup)))


def write_multiscripts(part: FormulaPart) -> FormulaTerm:
    """Write pairs of scripts after a base and, behind `mprescripts`, before it: `²³⁵₉₂U`."""
    names = [term.name for term in part.terms]
    end = names.index("mprescripts") if "mprescripts" in names else len(names)
    after = before = ""
    for place in range(1, end, 2):
        sup = part.text(place + 1) if place + 1 < end else ""
        after += _scripts(part.text(place), sup)
    for place in range(end + 1, len(names), 2):
        before += _prescripts(part.text(place), part.text(place + 1))
    base = _with_scripts(part.text(0), after)
    return FormulaTerm(
        before + base.text, begins_apart=bool(before), ends_apart=base.ends_apart
    )


def _prescripts(sub: str, sup: str) -> str:
    return _script(sup, raised=True) + _script(sub, raised=False)


def write_over(part: FormulaPart) -> FormulaTerm:
    """Write what stands above a base; an accent joins its letter."""
    base, over = part.text(0), part.text(1).strip()
    accent = over.translate(_ACCENTS)
    if len(base) == 1 and _COMBINING.fullmatch(accent):
        return FormulaTerm(base + accent)
    return write_limits(part, over=1)


def write_limits(part: FormulaPart, under: int = -1, over: int = -1) -> FormulaTerm:
    """Write `∑_(i=1)^10`, given the places of what stands below and above the base."""
    text = group(part.text(0)) if part.text(0) else ""
    for mark, place in (("_", under), ("^", over)):
        limit = part.text(place).strip()
        if limit:
            text += mark + group(limit)
    return FormulaTerm(text, ends_apart=True)


def write_cells(part: FormulaPart) -> FormulaTerm:
    """Write the cells of a row."""
    return FormulaTerm(", ".join(term.text.strip() for term in part.terms))


def write_rows(part: FormulaPart) -> FormulaTerm:
    """Write the rows of a matrix: `1, 2; 3, 4`."""
    rows = "; ".join(term.text for term in part.terms)
    return FormulaTerm(rows, begins_apart=True, ends_apart=True)


def write_fenced(part: FormulaPart) -> FormulaTerm:
    """Write terms in the parentheses that the element names."""
    separators = "".join(part.setting("separators", ",").split()) or ""
    text = ""
    for place, term in enumerate(part.terms):
        if place and separators:
            text += separators[min(place, len(separators)) - 1] + " "
        text += term.text
    return FormulaTerm(part.setting("open", "(") + text + part.setting("close", ")"))


def write_enclosed(part: FormulaPart) -> FormulaTerm:
    """Write what a sign stands around, of which only that of a root says something."""
    is_root = "radical" in part.setting("notation", "")
    return write_square_root(part) if is_root else write_row(part)


def write_quoted(part: FormulaPart) -> FormulaTerm:
    """Write a string in its quotes."""
    return FormulaTerm(f'"{write_row(part).text}"')


MATHML: Mapping[str, Form] = {
    "mi": write_name,
    "mo": write_operator,
    "ms": write_quoted,
    "mspace": write_space,
    "mphantom": write_nothing,
    "annotation": write_nothing,
    "annotation-xml": write_nothing,
    "semantics": write_first,
    "maction": write_first,
    "mfrac": write_fraction,
    "mroot": write_root,
    "msqrt": write_square_root,
    "msup": partial(write_scripts, sup=1),
    "msub": partial(write_scripts, sub=1),
    "msubsup": partial(write_scripts, sub=1, sup=2),
    "mmultiscripts": write_multiscripts,
    "munder": partial(write_limits, under=1),
    "mover": write_over,
    "munderover": partial(write_limits, under=1, over=2),
    "mtable": write_rows,
    "mtr": write_cells,
    "mlabeledtr": write_cells,
    "mfenced": write_fenced,
    "menclose": write_enclosed,
}
"""The elements of MathML, those of MathML Core among them."""
