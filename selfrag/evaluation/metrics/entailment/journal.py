"""`Remembered`: a judge whose verdicts are kept on disk, so that a killed run asks nothing twice. Knows no model.

A verdict is filed under a digest of its pair. A file belongs to one judge: another one is refused. Pairs without a
verdict are asked again by the next run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.atomic import writing
from selfrag.errors import UserError
from selfrag.evaluation.metrics.entailment.protocol import Entailment, Pair, Verdicts

AT_ONCE = 256
"""Pairs of one call: a kill loses no more."""


class Remembered:
    """An `Entailment` around another.

    Args:
        judge: who decides.
        path: of the file; its folder must exist.
        progress: called with the number of pairs that are done.

    Raises:
        UserError: the file is of another judge, or damaged.
    """

    def __init__(self, judge: Entailment, path: Path, progress: Callable[[int], object] = lambda pairs: None) -> None:
        self.judge, self.path, self.progress = judge, path, progress
        self._verdicts: dict[str, bool] = {}
        self._head = json.dumps({"judge": json.loads(json.dumps(judge.identity()))}, sort_keys=True)
        if path.exists():
            self._load()

    @property
    def name(self) -> str:
        """The judge's."""
        return self.judge.name

    def identity(self) -> Mapping[str, Any]:
        """The judge's."""
        return self.judge.identity()

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """Verdicts from the file, and from the judge for the others; equal pairs are asked once."""
        keys = [_key(pair) for pair in pairs]
        unknown = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._verdicts}
        self.progress(len(keys) - sum(key in unknown for key in keys))
        waiting = list(unknown)
        for start in range(0, len(waiting), AT_ONCE):
            chunk = waiting[start : start + AT_ONCE]
            found = self.judge.entails([unknown[key] for key in chunk])
            self._keep({key: verdict for key, verdict in zip(chunk, found, strict=True) if verdict is not None})
            done = set(chunk)
            self.progress(sum(key in done for key in keys))
        return [self._verdicts.get(key) for key in keys]

    def _keep(self, found: Mapping[str, bool]) -> None:
        lines = [] if self.path.exists() else [self._head]
        lines += [f"{key} {int(verdict)}" for key, verdict in found.items()]
        with writing(self.path), self.path.open("a", encoding="ascii") as stream:
            stream.write("".join(f"{line}\n" for line in lines))
        self._verdicts |= found

    def _load(self) -> None:
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        head, *lines = whole.decode("utf-8", "replace").splitlines() or [self._head]
        if head != self._head:
            raise UserError(f"{self.path} holds verdicts of another judge than {self.name}; take another directory")
        for number, line in enumerate(lines, 2):
            key, _, verdict = line.partition(" ")
            if len(key) != 64 or verdict not in ("0", "1"):
                raise UserError(f"{self.path}:{number}: no verdict; delete this line to ask for it again")
            self._verdicts[key] = verdict == "1"
        if whole != raw:  # a line was being written when the process died
            with writing(self.path), self.path.open("r+b") as stream:
                stream.truncate(len(whole))
            if not whole:
                self.path.unlink()


def remembered(judge: Entailment, folder: Path, progress: Callable[[int], object] = lambda pairs: None) -> Remembered:
    """A judge with its file in a folder, where every judge has one of its own: `verdicts-MARK.log`.

    Raises:
        UserError: as `Remembered`.
    """
    mark = hashlib.sha256(json.dumps(dict(judge.identity()), sort_keys=True).encode()).hexdigest()[:12]
    return Remembered(judge, folder / f"verdicts-{mark}.log", progress)


def _key(pair: Pair) -> str:
    return hashlib.sha256(json.dumps(pair).encode("utf-8", "surrogatepass")).hexdigest()
