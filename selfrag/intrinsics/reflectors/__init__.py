"""Reflectors: whatever judges what is being written, behind one interface.

`IntrinsicReflector` makes one of an intrinsic, `TokenReflector` of a Self-RAG model's reflection tokens,
`FunctionReflector` of any Python function. `critic` hands one to the decoder, where it may stand in for a token
critique, join the score or act as a guardrail (`selfrag.decoding.reflectors`).
"""

from __future__ import annotations

from selfrag.intrinsics.reflectors.critic import critic, services
from selfrag.intrinsics.reflectors.intrinsic import FunctionReflector, IntrinsicReflector, adapters_of, on_engine
from selfrag.intrinsics.reflectors.tokens import TokenReflector

__all__ = [
    "FunctionReflector",
    "IntrinsicReflector",
    "TokenReflector",
    "adapters_of",
    "critic",
    "on_engine",
    "services",
]
