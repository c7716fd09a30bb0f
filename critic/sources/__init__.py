"""Public data sets in, input-output pairs out: `load(file_or_dataset, format)` gives `Pair` and `Skipped` values."""

from critic.pairs import Skipped
from critic.sources.formats import FORMATS, Format, named
from critic.sources.mixture import Reading, load

__all__ = ["FORMATS", "Format", "Reading", "Skipped", "load", "named"]
