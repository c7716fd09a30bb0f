"""Writes the equations of Word in one line: `(a+b)/2`, `x^2`, `√(x)`."""

from __future__ import annotations

from selfrag.extensions.word.package import Attributes

MAX_DEPTH = 50
"""Levels of an equation that are told apart. The text of deeper ones is read without its structure."""
_ARGUMENTS = frozenset(
    ("m:num", "m:den", "m:e", "m:sup", "m:sub", "m:deg", "m:fName", "m:lim", "m:mr")
)
_CHARACTERS = frozenset(("m:chr", "m:begChr", "m:endChr", "m:sepChr"))


class _Part:
    """An element of an equation that is open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: list[str] = []  # of its children, in order
        self.arguments: dict[str, list[str]] = {}  # texts of the arguments by name
        self.characters: dict[str, str] = {}  # signs that its properties name


class EquationWriter:
    """Turns the elements of one equation into text."""

    def __init__(self) -> None:
        self._stack = [_Part("m:oMath")]
        self._depth = 0  # levels below the last one that is told apart

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element of the equation."""
        if name in _CHARACTERS:
            self._stack[-1].characters[name] = attributes.get("m:val", "")[:4]
        elif name.endswith("Pr"):
            return
        elif len(self._stack) > MAX_DEPTH:
            self._depth += 1
        else:
            self._stack.append(_Part(name))

    def end(self, name: str) -> None:
        """End an element of the equation."""
        if name in _CHARACTERS or name.endswith("Pr"):
            return
        if self._depth:
            self._depth -= 1
            return
        part = self._stack.pop()
        text = _write(part)
        parent = self._stack[-1]
        if name in _ARGUMENTS:
            parent.arguments.setdefault(name, []).append(text)
        else:
            parent.texts.append(text)

    def add(self, text: str) -> None:
        """Append text."""
        self._stack[-1].texts.append(text)

    def finish(self) -> str:
        """Return the text of the equation."""
        return _write(self._stack[0])


def _group(text: str) -> str:
    if (
        len(text) <= 1
        or text.isalnum()
        or (text[0] == "(" and text.find(")") == len(text) - 1)
    ):
        return text
    return f"({text})"


def _write(part: _Part) -> str:
    """Return the text of an element whose children are known."""

    def argument(name: str) -> str:
        return "".join(part.arguments.get(name, ()))

    base, limit = argument("m:e"), _group(argument("m:lim"))
    scripts = ""
    for name, mark in (("m:sub", "_"), ("m:sup", "^")):
        if argument(name):
            scripts += mark + _group(argument(name))
    signs = part.characters
    separators = {"m:d": signs.get("m:sepChr") or "|", "m:mr": ", ", "m:eqArr": "; "}
    forms = {
        "m:f": f"{_group(argument('m:num'))}/{_group(argument('m:den'))}",
        "m:sSup": _group(base) + scripts,
        "m:sSub": _group(base) + scripts,
        "m:sSubSup": _group(base) + scripts,
        "m:sPre": scripts + _group(base),
        "m:nary": f"{signs.get('m:chr', '∫')}{scripts} {base}",
        "m:rad": f"{argument('m:deg')}√{_group(base)}",
        "m:func": f"{argument('m:fName')} {base}",
        "m:limLow": f"{base}_{limit}",
        "m:limUpp": f"{base}^{limit}",
        "m:m": "; ".join(part.arguments.get("m:mr", ())),
    }
    if part.name in separators:
        text = separators[part.name].join(part.arguments.get("m:e", ()))
    elif part.name in forms:
        text = forms[part.name]
    else:
        text = "".join("".join(values) for values in part.arguments.values())
    if part.name == "m:d":
        text = signs.get("m:begChr", "(") + text + signs.get("m:endChr", ")")
    return text + "".join(part.texts)
