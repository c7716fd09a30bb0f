"""A number and its noun agree."""

import pytest
from json_files import parse_table

from selfrag.common.errors import count_of


@pytest.mark.parametrize(
    "number, nouns, verb, text",
    parse_table("""
1 | passages | "" | 1 passage
0 | passages | "" | 0 passages
1 | searches | "" | 1 search
1 | queries | have | 1 query has
2 | queries | have | 2 queries have
1 | passes | are | 1 pass is
1 | indexes | were | 1 index was
1 | long rows | do | 1 long row does
1 | files | need | 1 file needs
1234 | bytes | "" | 1,234 bytes
"""),
)
def test_a_noun_and_a_verb_agree_with_their_number(number, nouns, verb, text):
    assert count_of(number, nouns, verb, form=",") == text
