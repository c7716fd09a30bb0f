"""Are two plain results the same? Floats within a tolerance, texts and offsets exactly or for a named reason."""

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


@dataclass(frozen=True, slots=True)
class Rejoined:
    """Where the public libraries see a span: in the sentences of a text joined by one space."""

    # each original with the spans of its numbered sentences
    texts: list[tuple[str, list[Span]]]

    @classmethod
    def of(cls, request):
        """The numbered sentences of a request."""
        spans = {}
        for site in (*request.sites, *request.sources):
            place = site.message, site.passage, request.state.original(site)
            spans.setdefault(place, set()).add((site.begin, site.end))
        return cls([(text, sorted(found)) for (*_, text), found in spans.items()])

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
        AssertionError: they differ without a reason.
    """
    deviations = set()
    if isinstance(theirs, list) and isinstance(ours, list):
        assert len(ours) == len(theirs), f"{at}: {len(ours)} entries"
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            deviations |= compare(*pair, joined, subset=subset, at=f"{at}[{index}]")
    elif isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        missing, added = theirs.keys() - ours, ours.keys() - theirs
        assert not missing, f"{at}: fields {missing} are missing"
        assert subset or not added, f"{at}: fields {added} are too many"
        for stem in _spans(theirs):
            deviations |= _span(ours, theirs, stem, joined, at)
            missing |= {f"{stem}_begin", f"{stem}_end", f"{stem}_text"}
        for name in theirs.keys() - missing:
            where = f"{at}.{name}"
            deviations |= compare(
                ours[name], theirs[name], joined, subset=subset, at=where
            )
    else:
        numbers = _number(ours) and _number(theirs)
        near = numbers and abs(float(ours) - float(theirs)) <= TOLERANCE
        equal = type(ours) is type(theirs) and ours == theirs
        assert near or equal, f"{at}: {ours!r:.120} where {theirs!r:.120} was recorded"
    return deviations


def _number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spans(record):
    """Names of the spans of a record."""
    for name in record:
        stem = name.removesuffix("_begin")
        if f"{stem}_begin" == name and f"{stem}_end" in record:
            yield stem


def _span(ours, theirs, stem, joined, at):
    """Equal offsets and text, or the offsets that upstream makes of ours."""
    begin, end, text = (ours[f"{stem}_{part}"] for part in ("begin", "end", "text"))
    recorded = (
        theirs[f"{stem}_begin"],
        theirs[f"{stem}_end"],
        theirs.get(f"{stem}_text", text),
    )
    where = f"{at}.{stem}: {text!r:.80} at {begin}:{end}"
    assert joined.holds(begin, end, text), f"{where} is in no original"
    if (begin, end, text) == recorded:
        return set()
    offsets = joined.upstream(begin, end, text)
    same_words = text.split() == recorded[2].split()
    assert same_words, f"{where}, and {recorded!r:.120} was recorded"
    assert recorded[:2] in offsets, f"{where}, and {recorded!r:.120} was recorded"
    return {Deviation.OFFSETS}


def same(name, ours, theirs):
    """Compare two texts, and tell where they part.

    Raises:
        AssertionError: they differ.
    """
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    shown = slice(max(0, at - 20), at + 40)
    why = f"{name}: at {at}: {ours[shown]!r} where {theirs[shown]!r} was recorded"
    assert ours == theirs, why


def sound(reflection):
    """Check that every place is what the caller's own text has there.

    Raises:
        AssertionError: a site holds another text.
    """
    for finding in reflection.findings:
        for site in (finding.site, *(citation.site for citation in finding.citations)):
            assert reflection.state.holds(site), f"{site} does not hold its text"
