"""Tables of cases as texts, which read better than lists of tuples. Importable from every test, like `tiny`."""

import re

import pytest


def each(names, table):
    """Parametrize a test by the lines of a table: a cell for each name, separated by ` → `.

    A line that begins with a space goes on with the line before; `\\n` ends a line in a cell.
    """
    rows = []
    for line in re.sub(r"\n +", "", table).strip("\n").split("\n"):
        cells = [cell.strip().replace(r"\n", "\n") for cell in line.split(" →")]
        rows.append(cells if "," in names else cells[0])
    return pytest.mark.parametrize(names, rows)
