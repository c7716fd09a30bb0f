"""Helpers of the intrinsics' tests are importable; a tiny chat model."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "intrinsics"))
sys.path.insert(0, str(Path(__file__).parent))

from intrinsic_rows import chat_llama as chat_llama
