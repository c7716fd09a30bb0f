"""Labels: the paper's values, the published token strings, lookup by name."""

import pytest

from selfrag.errors import UserError
from selfrag.reflection.labels import CRITIQUES, GROUPS, ISREL, ISSUP, ISUSE, RETRIEVE, TOKENS, group


def test_values_are_the_papers():
    assert dict(zip(ISREL.names, ISREL.values, strict=True)) == {"Relevant": 1, "Irrelevant": 0}
    assert ISSUP.values == (1, 0.5, 0)
    assert ISUSE.values == (-1, -0.5, 0, 0.5, 1)
    assert CRITIQUES == (ISREL, ISSUP, ISUSE)


def test_every_label_is_a_token_and_every_token_but_the_markers_is_a_label():
    labelled = [token for labels in GROUPS for token in labels.tokens]
    assert len(set(labelled)) == len(labelled) == 13
    assert set(TOKENS) - set(labelled) == {"<paragraph>", "</paragraph>"}
    assert len(TOKENS) == len(set(TOKENS)) == 15


def test_labels_are_found_by_name_or_token_in_any_case():
    assert ISSUP.index("fully supported") == ISSUP.index("[Fully supported]") == 0
    assert ISUSE.index("5") == ISUSE.index(" [utility:5] ") == 4
    assert group("ISREL") is ISREL
    assert group(" retrieve ") is RETRIEVE


def test_unknown_names_list_the_known_ones():
    with pytest.raises(
        UserError, match="unknown issup label 'maybe'; known: 'Fully supported', 'Partially supported', 'No"
    ):
        ISSUP.index("maybe")
    with pytest.raises(UserError, match="unknown reflection group 'isfun'; known: retrieve, isrel, issup, isuse"):
        group("isfun")
