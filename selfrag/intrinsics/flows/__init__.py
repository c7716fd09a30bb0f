"""Flows: retrieval, intrinsics and a writer put together, as values that compose and leave a trace of their steps.

The paper's four (section 7.1 of arXiv 2504.11704) are `named_flow("qr+ad", writer, ..)` and the like; any other order
of stages is a `Flow`. A flow is sans-IO like a decoder, so many conversations share one driver, engine and index.
"""

from __future__ import annotations

from selfrag.intrinsics.flows.flow import AnswerabilityGate as AnswerabilityGate
from selfrag.intrinsics.flows.flow import CertaintyFilter as CertaintyFilter
from selfrag.intrinsics.flows.flow import Cite as Cite
from selfrag.intrinsics.flows.flow import Flow as Flow
from selfrag.intrinsics.flows.flow import HallucinationFilter as HallucinationFilter
from selfrag.intrinsics.flows.flow import RelevanceFilter as RelevanceFilter
from selfrag.intrinsics.flows.flow import Rewrite as Rewrite
from selfrag.intrinsics.flows.flow import Search as Search
from selfrag.intrinsics.flows.flow import SearchAgain as SearchAgain
from selfrag.intrinsics.flows.flow import Take as Take
from selfrag.intrinsics.flows.flow import Write as Write
from selfrag.intrinsics.flows.flow import named_flow as named_flow
from selfrag.intrinsics.flows.flow import run as run
from selfrag.intrinsics.flows.progress import ChatWriter as ChatWriter
from selfrag.intrinsics.flows.progress import SelfRAGWriter as SelfRAGWriter
