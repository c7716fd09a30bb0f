"""What `check_plain.py` counts."""

import ast

from scripts.tools import check_plain

PACKED = """
def f(found):
    '''The rows.'''
    return [a for a in (b for b in found)] if found else [c for c in ()]
Name = int
"""


def test_places_of_a_module():
    tree = ast.parse(PACKED)
    assert sorted(
        {(check, line) for check, line, _ in check_plain.findings_in(tree)}
    ) == [
        ("no verb", 2),
        ("packed", 4),
        ("vague", 2),
        ("vague", 4),
    ]
    assert list(check_plain.types_of(tree)) == [("Name", 5)]
