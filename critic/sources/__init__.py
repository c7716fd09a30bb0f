"""Public data sets in, input-output pairs out: one file a source of the paper's training mix (appendix A.3, Table 3).

`load(file_or_dataset, format)` gives `Pair` and `Skipped` values in the order of the source. Nothing else in this
project depends on a format or knows a data set's name.
"""

from critic.sources.formats import FORMATS, Format, named
from critic.sources.loading import Reading, load
from critic.sources.raw import Skipped

__all__ = ["FORMATS", "Format", "Reading", "Skipped", "load", "named"]
