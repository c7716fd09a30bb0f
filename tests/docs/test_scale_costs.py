"""The costs that docs/guides/scale.md prints are those of its formulas, and its rates are those of the results."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guides/scale.md").read_text()
COSTS = PAGE[PAGE.index("## What an index costs") :]


def test_the_formulas_give_what_is_printed(capsys):
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", COSTS, flags=re.S)
    assert len(blocks) == 2
    for code, printed in blocks:
        exec(code, {})
        assert capsys.readouterr().out == printed


def test_the_measured_rates_stand_in_the_results():
    places = {
        "gpu.md": ("0.43", "3.88", "6.40", "0.24", "1.18", "1,339", "34.5 GiB"),
        "retrieval.md": ("825 / 43", "3,385 / 162", "80.7", "78 bytes", "22 min"),
    }
    for name, values in places.items():
        text = (DOCS / "results" / name).read_text()
        for value in values:
            assert value in text, (name, value)
            assert value.split(" ")[0] in COSTS or value == "80.7"
