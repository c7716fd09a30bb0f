"""Draw the picture at the top of the README: a question decoded for real by the demo model, as one SVG.

Run `python scripts/tools/draw_tree.py "Tell me about Marie Curie." docs/tree.svg`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from selfrag import SelfRAG
from selfrag.viewer.trees import svg


def main(question: str, out: Path) -> None:
    """Decode with two segments of three candidates each, so that the tree fits a page."""
    with SelfRAG.from_pretrained() as rag:
        answer = rag.generate(
            question, max_segments=2, passages=3, beam=2, segment_tokens=60
        )
    out.write_text(svg(answer.trace), encoding="utf-8")
    print(answer)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: draw_tree.py QUESTION FILE.svg")
    main(sys.argv[1], Path(sys.argv[2]))
