"""Critics by name, and the one that needs no model: it judges by shared words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from critic.cases import Case, Critic
from critic.demo import ADAPTER
from critic.student.judge import DEMO, resolve_critic
from retrieval.errors import UserError
from selfrag.provenance import sha256
from selfrag.reflection.judgment import Judgment, Source

LEXICAL = "lexical"

_NOTES = frozenset({"README.md", "training.json"})
"""Files of a critic's folder that decide no judgment."""

_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    _WORD.findall(
        "a an and are as at be but by can did do does for from had has have he her his how i if in is it its me my of"
        " on or our she so that the their them there they this to us was we were what when where which who whom whose"
        " why will with you your"
    )
)
_ASKS = re.compile(
    r"\?|^\W*(who|what|when|where|which|whose|whom|how|why|is|are|was|were|did|does|do|can|in what|tell me about)\b",
    re.IGNORECASE,
)
_CHECKABLE = re.compile(r"\d|(?<=[a-z,;] )[A-Z]")
_SURE = 0.9


def open_critic(name: str, engine: str | None = None) -> Critic:
    """A critic; one that holds an engine is a context manager, too.

    Args:
        name: `lexical`, `demo` (the critic of the package), or the directory of a trained critic.
        engine: of a trained critic, by name; None takes the best one here.

    Raises:
        UserError: there is no such critic.
    """
    folder = critic_folder(name)
    if folder is None:
        return LexicalCritic()
    from critic.student.judge import load_critic

    return load_critic(folder, engine)


def critic_folder(name: str) -> Path | None:
    """Folder of a trained critic; None for `lexical`.

    Args:
        name: as in `open_critic`.

    Raises:
        UserError: there is no such critic.
    """
    if name == LEXICAL:
        return None
    if name != DEMO and not (name and Path(name).is_dir()):
        raise UserError(f"no critic {name!r}: give the folder of a trained one, {DEMO} or {LEXICAL}")
    return resolve_critic(name)


def fingerprint(name: str) -> str:
    """Changes with the critic: its name, and the content of the files that decide its judgments where it has some."""
    folder = ADAPTER if name == DEMO else Path(name)
    if not folder.is_dir():
        return name
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _NOTES)
    return " ".join(f"{path.relative_to(folder).as_posix()}:{sha256(path)[:16]}" for path in files)


class LexicalCritic:
    """A `Critic` by word overlap: the floor that a trained one must beat. Ignores order, inflection and meaning."""

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        """One judgment a case; never None."""
        return [_hard(case, self._label(case)) for case in cases]

    def _label(self, case: Case) -> int:
        """Position of the label in its group."""
        match case.group:
            case "IsRel":
                return 0 if _evident(case, case.instruction) >= 0.4 else 1
            case "IsSup":
                share = _evident(case, case.output)
                return 0 if share >= 0.8 else 1 if share >= 0.4 else 2
            case "IsUse":
                return 4 if overlap(case.output, case.instruction) < 0.9 else 1
        # Retrieve: a question or something checkable retrieves, unless the evidence has it.
        if not case.preceding and (not case.output or case.evidence is None):
            return 0 if _ASKS.search(case.instruction) else 1
        if case.evidence is not None and _evident(case, case.output) >= 0.6:
            return 2
        return 0 if _CHECKABLE.search(case.output) else 1


def overlap(text: str, other: str) -> float:
    """Share of the content words of `text` that occur in `other`; all words count where none has content."""
    words = set(_WORD.findall(text.casefold()))
    content = words - _COMMON or words
    return len(content.intersection(_WORD.findall(other.casefold()))) / len(content) if content else 0.0


def _evident(case: Case, text: str) -> float:
    return 0.0 if case.evidence is None else overlap(text, f"{case.evidence.title} {case.evidence.text}")


def _hard(case: Case, position: int) -> Judgment:
    rest = (1 - _SURE) / (len(case.labels) - 1)
    distribution = tuple(_SURE if n == position else rest for n in range(len(case.labels)))
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment(case.labels, case.group, distribution, 1.0, Source.HARD, evidence)
