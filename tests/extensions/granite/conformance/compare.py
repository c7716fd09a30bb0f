"""Are two plain results the same? Floats within a tolerance, texts and offsets exactly or for a named reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from retrieval.sentences import Span


class Deviation(StrEnum):
    """Names of the deviations."""

    DECILE = "decile"
    UNDEFINED = "undefined"
    BOOLEAN = "boolean-label"
    OFFSETS = "original-offsets"


REASONS: dict[Deviation, str] = {
    Deviation.DECILE: "digit d means 0.05 + 0.1 d (paper, section 3.1); upstream returns 0.1 d",
    Deviation.UNDEFINED: "unreadable output is undefined with a diagnostic; upstream returns it as a value",
    Deviation.BOOLEAN: "the label's true probability; upstream compares 'False' with 'false' and gets 0 or 1",
    Deviation.OFFSETS: "offsets into the caller's text; upstream's are into sentences joined by one space",
}


TOLERANCE = 0.005
"""The libraries round to two digits."""


class MismatchError(Exception):
    """Two values differ, and no reason is known. The message says where."""


@dataclass(frozen=True, slots=True)
class Rejoined:
    """Where the public libraries see a span: in the sentences of a text joined by one space."""

    # each original with the spans of its numbered sentences
    texts: tuple[tuple[str, tuple[Span, ...]], ...]

    @classmethod
    def of(cls, request):
        """The numbered sentences of a request."""
        spans = {}
        for site in (*request.sites, *request.sources):
            spans.setdefault((site.message, site.passage), []).append(
                (site.begin, site.end)
            )
        state = request.state
        return cls(
            tuple(
                (
                    state.messages[m].content
                    if m is not None
                    else state.passages[p or 0].text,
                    tuple(sorted(set(texts))),
                )
                for (m, p), texts in spans.items()
            )
        )

    def holds(self, begin, end, text):
        """Whether a span of ours is what it says, in some original."""
        return any(original[begin:end] == text for original, _ in self.texts)

    def upstream(self, begin, end, text):
        """What upstream's offsets of our span are; one for each original that has this text there."""
        for original, spans in self.texts:
            starts, ends = [b for b, _ in spans], [e for _, e in spans]
            if original[begin:end] == text and begin in starts and end in ends:
                lengths = [e - b + 1 for b, e in spans]
                lengths[0] += len(original) - len(original.lstrip())
                lengths[-1] -= 1  # no space after the last one
                first, last = starts.index(begin), ends.index(end)
                yield sum(lengths[:first]), sum(lengths[: last + 1])


def compare(ours, theirs, joined, *, subset=False, at="result"):
    """Reasons for which two results differ; empty if they do not.

    Args:
        ours: our plain result.
        theirs: the recorded one.
        joined: the numbered sentences, for offsets.
        subset: whether fields of ours that are not recorded are fine.
        at: where in the result, for the message.

    Raises:
        MismatchError: they differ without a reason.
    """
    if isinstance(theirs, list) and isinstance(ours, list):
        return _lists(ours, theirs, joined, subset, at)
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _records(ours, theirs, joined, subset, at)
    if _number(ours) and _number(theirs):
        if abs(float(ours) - float(theirs)) <= TOLERANCE:
            return set()
    elif type(ours) is type(theirs) and ours == theirs:
        return set()
    raise MismatchError(f"{at}: {ours!r:.120} where {theirs!r:.120} was recorded")


def _number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lists(ours, theirs, joined, subset, at):
    deviations = set()
    if len(ours) != len(theirs):
        raise MismatchError(
            f"{at}: {len(ours)} entries where {len(theirs)} were recorded"
        )
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        deviations |= compare(a, b, joined, subset=subset, at=f"{at}[{index}]")
    return deviations


def _records(ours, theirs, joined, subset, at):
    missing = sorted(set(theirs) - set(ours))
    added = [] if subset else sorted(set(ours) - set(theirs))
    if missing or added:
        raise MismatchError(
            f"{at}: fields {missing or 'none'} are missing, {added or 'none'} are too many"
        )
    deviations = set()
    spans = [
        name.removesuffix("_begin")
        for name in theirs
        if name.endswith("_begin") and f"{name[:-6]}_end" in theirs
    ]
    for stem in spans:
        deviations |= _span(ours, theirs, stem, joined, at)
    covered = {f"{stem}_{part}" for stem in spans for part in ("begin", "end", "text")}
    for name in theirs.keys() - covered:
        deviations |= compare(
            ours[name], theirs[name], joined, subset=subset, at=f"{at}.{name}"
        )
    return deviations


def _span(ours, theirs, stem, joined, at):
    """Equal offsets and text, or the offsets that upstream makes of ours."""
    begin, end, text = (ours[f"{stem}_{part}"] for part in ("begin", "end", "text"))
    recorded = (
        theirs[f"{stem}_begin"],
        theirs[f"{stem}_end"],
        theirs.get(f"{stem}_text", text),
    )
    if not joined.holds(begin, end, text):
        raise MismatchError(
            f"{at}.{stem}: {text!r:.80} is not at {begin}:{end} of any original"
        )
    if (begin, end, text) == recorded:
        return set()
    if text.split() == recorded[2].split() and recorded[:2] in joined.upstream(
        begin, end, text
    ):
        return {Deviation.OFFSETS}
    raise MismatchError(
        f"{at}.{stem}: {begin}:{end} {text!r:.80} where {recorded!r:.120} was recorded"
    )


def difference(name, ours, theirs):
    """Where two texts part."""
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    shown = slice(max(0, at - 20), at + 40)
    return f"{name}: at {at}: {ours[shown]!r} where {theirs[shown]!r} was recorded"


def sound(reflection):
    """Every place is what the caller's own text has there.

    Raises:
        MismatchError: a site holds another text.
    """
    for finding in reflection.findings:
        for site in (finding.site, *(citation.site for citation in finding.citations)):
            if not reflection.state.holds(site):
                raise MismatchError(f"{site} does not hold {site.text!r:.60}")
