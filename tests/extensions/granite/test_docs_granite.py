"""The pages about the published dialects: what a block prints is what the page says; what is named exists."""

import re

import pytest
from conformance.compare import REASONS
from test_docs_intrinsics import PAGES, blocks, run

from selfrag.extensions.granite.registry import DIALECTS
from selfrag.intrinsics.catalog import catalog


@pytest.mark.parametrize("page, printed", [("dialects", "text"), ("granite", "text")])
def test_blocks_print_what_the_page_says(page, printed, capsys):
    run(PAGES[page])
    assert capsys.readouterr().out == "".join(blocks(PAGES[page], printed))


def test_the_pages_name_every_deviation_intrinsic_and_dialect():
    rows = dict(
        re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGES["dialects"], flags=re.M)
    )
    assert {name: why for name, why in rows.items() if name in set(REASONS)} == {
        str(d): r for d, r in REASONS.items()
    }
    shown = PAGES["using"] + PAGES["granite"]
    assert all(
        f"`{name}`" in PAGES["dialects"] and f"`{name}`" in shown for name in DIALECTS
    )
    assert all(
        f"`{kind.name}`" in shown and f"library.get({kind.__name__})" in shown
        for kind in catalog()
    )
