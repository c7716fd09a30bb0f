"""A number and its noun agree, in every message and page of the product."""

import ast
import re
from pathlib import Path

import pytest

from selfrag.common.errors import count_of

ROOT = Path(__file__).resolve().parents[2]
LEFT = {
    ("selfrag/common/pretrained.py", "instructions"),  # of a processor by name
    ("selfrag/cli/train.py", "targets"),  # a column
    # a number in words, above 1
    ("selfrag/evaluation/public_data.py", "candidates"),
    ("critic/formats.py", "candidates"),
    ("retrieval/parquet_worker.py", "others"),
    ("selfrag/evaluation/published.py", "items"),
    ("scripts/reproduction/reproduce.py", "files"),  # a verb between
}
"""Where a plural stands behind something that is no number, or in a table."""
VERBS = "has|holds|lacks|returned|after|takes|had"
"""What stands between a name and a noun."""


@pytest.mark.parametrize(
    "number, nouns, verb, text",
    [
        (1, "passages", "", "1 passage"),
        (0, "passages", "", "0 passages"),
        (1, "searches", "", "1 search"),
        (1, "queries", "have", "1 query has"),
        (2, "queries", "have", "2 queries have"),
        (1, "passes", "are", "1 pass is"),
        (1, "indexes", "were", "1 index was"),
        (1, "long rows", "do", "1 long row does"),
        (1, "files", "need", "1 file needs"),
        (1234, "bytes", "", "1,234 bytes"),
    ],
)
def test_a_noun_and_a_verb_agree_with_their_number(number, nouns, verb, text):
    assert count_of(number, nouns, verb, form=",") == text


def _files():
    for folder in ("selfrag", "critic", "retrieval", "scripts/reproduction"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def _counted(tree):
    """The nouns that a module counts by `count_of`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        nouns = getattr(node.args[1], "value", "")
        if getattr(node.func, "id", "") == "count_of" and isinstance(nouns, str):
            yield from nouns.split()[-1:]


def _bare(tree):
    """Each value of an f-string that a word follows, with the two words; constants in capitals are never 1."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue):
                continue
            words = re.match(
                rf" (?!(?:{VERBS}) )(?:[a-z-]+ )?([a-z]+s)\b",
                str(getattr(after, "value", "")),
            )
            shown = ast.unparse(value.value)
            is_float = "f" in ast.unparse(value.format_spec or ast.Constant(""))[2:]
            if is_float or "count_of" in shown or re.fullmatch(r"_?[A-Z_]+", shown):
                continue
            if words:
                yield shown, words[1]


def test_no_message_of_the_product_writes_a_plural_behind_a_number_itself():
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _files()}
    nouns = {noun for tree in trees.values() for noun in _counted(tree)}
    assert {"passages", "searches", "files", "rows", "questions"} <= nouns
    bare = [
        f"{path.relative_to(ROOT)}: {{{shown}}} {noun}"
        for path, tree in trees.items()
        for shown, noun in _bare(tree)
        if noun in nouns and (str(path.relative_to(ROOT)), noun) not in LEFT
    ]
    assert bare == []
