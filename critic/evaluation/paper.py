"""The paper's figures for its critics: accuracy against GPT-4's labels (arXiv 2310.11511, Figure 4).

Another measure, and other data, than accuracy against people: read them beside ours, not against ours.
"""

from __future__ import annotations

from collections.abc import Mapping

ACCURACY: Mapping[str, Mapping[str, float]] = {
    "Llama2-7B (paper)": {"Retrieve": 0.938, "IsRel": 0.802, "IsSup": 0.935, "IsUse": 0.735},
    "FLAN-3B (paper)": {"Retrieve": 0.856, "IsRel": 0.820, "IsSup": 0.731, "IsUse": 0.721},
}
"""Base model -> group -> accuracy."""
