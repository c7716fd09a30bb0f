"""RAG intrinsics: typed capabilities on conversations and passages, whatever model or adapter implements them.

    from selfrag.intrinsics import Answerability, Library
    with Library.from_pretrained("demo") as library:
        library.get(Answerability)("Who wrote Faust?", ["Faust is a play by Goethe."]).answerable

Any judge can judge them (`selfrag.judges`). Codecs of other wire formats than the library's own are registered by entry
points (`selfrag.intrinsics.catalog.dialects`).
"""

from selfrag.intrinsics.capability import Capability, Result
from selfrag.intrinsics.model_library import Library
from selfrag.intrinsics.questions import (
    Answerability,
    AnswerabilityResult,
    ClarificationResult,
    ContextRelevance,
    JudgedPassage,
    QueryClarification,
    QueryRewrite,
    RelevanceResult,
    RewriteResult,
)
from selfrag.intrinsics.responses import (
    AnswerRelevanceClassifier,
    AnswerRelevanceResult,
    AnswerRelevanceRewriter,
    AttributionResult,
    CitationGeneration,
    CitationResult,
    CitedSentence,
    ContextAttribution,
    CorrectionResult,
    FactualityCorrection,
    FactualityDetection,
    Guardian,
    HallucinationDetection,
    HallucinationResult,
    JudgedSentence,
    PolicyGuardrails,
    PolicyResult,
    RequirementCheck,
    RequirementResult,
    RiskResult,
    Uncertainty,
    UncertaintyResult,
)
from selfrag.reflection.inputs import JudgeInput, Message, Site

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
    "JudgeInput",
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
    "Uncertainty",
    "UncertaintyResult",
]
