"""RAG intrinsics: typed capabilities on conversations and passages, whatever model or adapter implements them.

    from selfrag.intrinsics import Answerability, Library
    with Library.from_pretrained("demo") as library:
        library.get(Answerability)("Who wrote Faust?", ["Faust is a play by Goethe."]).answerable

Any judge can judge them (`selfrag.judges`). Codecs of other wire formats than the library's own are registered by entry
points (`selfrag.intrinsics.catalog.dialects`).
"""

from selfrag.intrinsics.capability import Capability as Capability
from selfrag.intrinsics.capability import Result as Result
from selfrag.intrinsics.model_library import Library as Library
from selfrag.intrinsics.questions import Answerability as Answerability
from selfrag.intrinsics.questions import AnswerabilityResult as AnswerabilityResult
from selfrag.intrinsics.questions import ClarificationResult as ClarificationResult
from selfrag.intrinsics.questions import ContextRelevance as ContextRelevance
from selfrag.intrinsics.questions import JudgedPassage as JudgedPassage
from selfrag.intrinsics.questions import QueryClarification as QueryClarification
from selfrag.intrinsics.questions import QueryRewrite as QueryRewrite
from selfrag.intrinsics.questions import RelevanceResult as RelevanceResult
from selfrag.intrinsics.questions import RewriteResult as RewriteResult
from selfrag.intrinsics.responses import (
    AnswerRelevanceClassifier as AnswerRelevanceClassifier,
)
from selfrag.intrinsics.responses import AnswerRelevanceResult as AnswerRelevanceResult
from selfrag.intrinsics.responses import (
    AnswerRelevanceRewriter as AnswerRelevanceRewriter,
)
from selfrag.intrinsics.responses import AttributionResult as AttributionResult
from selfrag.intrinsics.responses import CitationGeneration as CitationGeneration
from selfrag.intrinsics.responses import CitationResult as CitationResult
from selfrag.intrinsics.responses import CitedSentence as CitedSentence
from selfrag.intrinsics.responses import ContextAttribution as ContextAttribution
from selfrag.intrinsics.responses import CorrectionResult as CorrectionResult
from selfrag.intrinsics.responses import FactualityCorrection as FactualityCorrection
from selfrag.intrinsics.responses import FactualityDetection as FactualityDetection
from selfrag.intrinsics.responses import Guardian as Guardian
from selfrag.intrinsics.responses import (
    HallucinationDetection as HallucinationDetection,
)
from selfrag.intrinsics.responses import HallucinationResult as HallucinationResult
from selfrag.intrinsics.responses import JudgedSentence as JudgedSentence
from selfrag.intrinsics.responses import PolicyGuardrails as PolicyGuardrails
from selfrag.intrinsics.responses import PolicyResult as PolicyResult
from selfrag.intrinsics.responses import RequirementCheck as RequirementCheck
from selfrag.intrinsics.responses import RequirementResult as RequirementResult
from selfrag.intrinsics.responses import RiskResult as RiskResult
from selfrag.intrinsics.responses import Uncertainty as Uncertainty
from selfrag.intrinsics.responses import UncertaintyResult as UncertaintyResult
from selfrag.reflection.inputs import JudgeInput as JudgeInput
from selfrag.reflection.inputs import Message as Message
from selfrag.reflection.inputs import Site as Site
