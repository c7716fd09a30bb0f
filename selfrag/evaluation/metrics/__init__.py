"""Metrics of answers; importing the package registers its own under their names (`registry`)."""

from selfrag.evaluation.metrics import answers as answers
from selfrag.evaluation.metrics import citations as citations
from selfrag.evaluation.metrics import rankings as rankings
