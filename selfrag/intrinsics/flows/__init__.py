"""Flows: retrieval, intrinsics and a writer put together, as values that compose and leave a trace of their steps.

The paper's four (section 7.1 of arXiv 2504.11704) are `named_flow("qr+ad", writer, ..)` and the like; any other order
of stages is a `Flow`. A flow is sans-IO like a decoder, so many conversations share one driver, engine and index.
"""

from __future__ import annotations

from selfrag.intrinsics.flows.flow import (
    AnswerabilityGate,
    CertaintyFilter,
    Cite,
    Flow,
    HallucinationFilter,
    RelevanceFilter,
    Rewrite,
    Search,
    SearchAgain,
    Take,
    Write,
    named_flow,
    run,
)
from selfrag.intrinsics.flows.progress import ChatWriter, SelfRAGWriter

__all__ = [
    "AnswerabilityGate",
    "CertaintyFilter",
    "ChatWriter",
    "Cite",
    "Flow",
    "HallucinationFilter",
    "RelevanceFilter",
    "Rewrite",
    "Search",
    "SearchAgain",
    "SelfRAGWriter",
    "Take",
    "Write",
    "named_flow",
    "run",
]
