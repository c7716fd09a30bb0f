"""RAG intrinsics: typed capabilities on conversations and passages, whatever model or adapter implements them.

    from selfrag.intrinsics import Answerability, Library
    with Library.from_pretrained("demo") as library:
        library.get(Answerability)("Who wrote Faust?", ["Faust is a play by Goethe."]).answerable

An executor (`selfrag.intrinsics.execution`) runs them on a model; codecs (`selfrag.intrinsics.dialects`) speak the wire
formats of published adapters.
"""

from selfrag.intrinsics.answerability import (
    Answerability,
    AnswerabilityResult,
    ContextRelevance,
    JudgedPassage,
    RelevanceResult,
)
from selfrag.intrinsics.capability import Capability, Result
from selfrag.intrinsics.guardian import (
    CorrectionResult,
    FactualityCorrection,
    FactualityDetection,
    Guardian,
    PolicyGuardrails,
    PolicyResult,
    RequirementCheck,
    RequirementResult,
    RiskResult,
)
from selfrag.intrinsics.model_library import Library
from selfrag.intrinsics.query_rewrite import ClarificationResult, QueryClarification, QueryRewrite, RewriteResult
from selfrag.intrinsics.responses import (
    AnswerRelevanceClassifier,
    AnswerRelevanceResult,
    AnswerRelevanceRewriter,
    AttributionResult,
    CitationGeneration,
    CitationResult,
    CitedSentence,
    ContextAttribution,
    HallucinationDetection,
    HallucinationResult,
    JudgedSentence,
    Uncertainty,
    UncertaintyResult,
)
from selfrag.intrinsics.state import Message, Site, State

__all__ = [
    "AnswerRelevanceClassifier",
    "AnswerRelevanceResult",
    "AnswerRelevanceRewriter",
    "Answerability",
    "AnswerabilityResult",
    "AttributionResult",
    "Capability",
    "CitationGeneration",
    "CitationResult",
    "CitedSentence",
    "ClarificationResult",
    "ContextAttribution",
    "ContextRelevance",
    "CorrectionResult",
    "FactualityCorrection",
    "FactualityDetection",
    "Guardian",
    "HallucinationDetection",
    "HallucinationResult",
    "JudgedPassage",
    "JudgedSentence",
    "Library",
    "Message",
    "PolicyGuardrails",
    "PolicyResult",
    "QueryClarification",
    "QueryRewrite",
    "RelevanceResult",
    "RequirementCheck",
    "RequirementResult",
    "Result",
    "RewriteResult",
    "RiskResult",
    "Site",
    "State",
    "Uncertainty",
    "UncertaintyResult",
]
