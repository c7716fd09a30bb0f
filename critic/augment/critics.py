"""Opening a critic by name, here or in a worker. Knows where critics live; knows nothing of how they judge."""

from __future__ import annotations

from pathlib import Path

from critic.augment.lexical import LexicalCritic
from critic.cases import Critic
from critic.demo import ADAPTER
from critic.student.judge import DEMO
from retrieval.errors import UserError
from selfrag.provenance import sha256

LEXICAL = "lexical"

_NOTES = frozenset({"README.md", "training.json"})
"""Files of a critic's folder that decide no judgment."""


def open_critic(name: str, engine: str | None = None) -> Critic:
    """A critic; one that holds an engine is a context manager, too.

    Args:
        name: `lexical`, `demo` (the critic of the package), or the directory of a trained critic.
        engine: of a trained critic, by name; None takes the best one here.

    Raises:
        UserError: there is no such critic.
    """
    if name == LEXICAL:
        return LexicalCritic()
    if name != DEMO and not (name and Path(name).is_dir()):
        raise UserError(f"no critic {name!r}: give the folder of a trained one, {DEMO} or {LEXICAL}")
    from critic.student.judge import load_critic

    return load_critic(name, engine)


def fingerprint(name: str) -> str:
    """Changes with the critic: its name, and the content of the files that decide its judgments where it has some."""
    folder = ADAPTER if name == DEMO else Path(name)
    if not folder.is_dir():
        return name
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _NOTES)
    return " ".join(f"{path.relative_to(folder).as_posix()}:{sha256(path)[:16]}" for path in files)
