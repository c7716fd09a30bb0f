"""docs/intrinsics/dialects.md is executed: what a block prints is what the page says; its table is the code's."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.compare import REASONS
from selfrag.intrinsics.dialects.registry import DIALECTS

TEXT = (Path(__file__).parents[3] / "docs" / "intrinsics" / "dialects.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```", TEXT, flags=re.M | re.S)


def test_blocks_print_what_the_page_says(capsys):
    namespace: dict[str, object] = {"__name__": "__docs__"}
    assert len(BLOCKS) == TEXT.count("```python") == 3
    for body, printed in BLOCKS:
        exec(compile(body, "dialects.md", "exec", dont_inherit=True), namespace)  # the point of this test
        assert capsys.readouterr().out == printed


def test_the_table_of_deviations_is_the_codes():
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", TEXT, flags=re.M))
    assert {name: why for name, why in rows.items() if name in set(REASONS)} == {str(d): r for d, r in REASONS.items()}


def test_every_dialect_is_named():
    assert all(f"`{name}`" in TEXT for name in DIALECTS)
