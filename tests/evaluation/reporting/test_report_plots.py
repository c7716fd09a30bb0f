"""Plots: what they show, that names cannot break them, and that a file is whole and always the same."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import reported

from retrieval.errors import UserError
from selfrag.evaluation.comparison import Row, Table
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.plots import draw_tables, spoken
from selfrag.pages import encoded, save


def table(*names: str, head: str = "contains", shares: tuple[float, ...] = (0.2, 0.5, 0.4)) -> Table:
    def row(place: int, name: str) -> Row:
        value = shares[place % len(shares)]
        figures = {
            head: Estimate(value, value - 0.1, value + 0.1, 9),
            "retrieval_rate": Estimate(place / 10, 0.0, 1.0, 9),
            "prompt_tokens": Estimate(100.0 * (place + 1), 90.0, 900.0, 9),
            "generated_tokens": Estimate(10.0, 9.0, 11.0, 9),
        }
        return Row(name, figures, {}, 0.5, 0)

    metrics = (head, "retrieval_rate", "prompt_tokens", "generated_tokens")
    return Table("set", "short", metrics, 9, tuple(row(i, name) for i, name in enumerate(names)))


def test_the_panels_hold_the_figures() -> None:
    shown = table("a", "b", "c")
    assert spoken(shown).startswith("set (short, 9 items): contains of a 20.0 [10.0, 30.0]; b 50.0 [40.0, 60.0]")
    scores, tokens, _ = draw_tables([shown]).axes
    assert [label.get_text() for label in scores.get_yticklabels()] == ["1  a", "2  b", "3  c"]
    assert scores.get_xlabel() == "contains, % with 95% interval"
    values = [bar.lines[0].get_xdata()[0] for bar in scores.containers]
    assert values == pytest.approx([20, 50, 40])
    points = [(bar.lines[0].get_xdata()[0], bar.lines[0].get_ydata()[0]) for bar in tokens.containers]
    assert points == [pytest.approx((110, 20)), pytest.approx((210, 50)), pytest.approx((310, 40))]
    (front,) = [line for line in tokens.lines if line.get_linestyle() == "--"]
    assert list(front.get_xdata()) == pytest.approx([110, 210])  # c costs more than b and is worse


def test_nothing_to_draw_is_one_line() -> None:
    bare = Table("set", "short", ("contains",), 9, (Row("a", {"contains": None}, {}, 0.5, 0),))
    for nothing in ([], [bare]):
        with pytest.raises(UserError, match="nothing to draw"):
            draw_tables(nothing)


def test_names_of_others_are_only_text() -> None:
    text = "$\\frac{1}{$ <b>&</b> \ud83d\u202e\x1b[31m\n\u0645 " + reported.HOSTILE["closing"]
    drawn = encoded(draw_tables([table(text, "b", head=text)]), ".svg").decode()
    root = ElementTree.fromstring(drawn)
    shown = "".join(root.itertext())
    assert "$\\frac{1}{$ <b>&</b>" in shown
    assert not root.findall(".//{http://www.w3.org/2000/svg}script")
    assert "\u202e" not in drawn


def test_a_plot_is_written_whole_and_the_same_each_time(tmp_path) -> None:
    drawn = draw_tables([table("a", "b")])
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        paths = [save(drawn, tmp_path / f"{i}{ending}") for i in range(2)]
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 4
    with pytest.raises(UserError, match=r"a plot ends in \.png, \.svg, \.pdf"):
        save(drawn, tmp_path / "x.gif")
    with pytest.raises(UserError, match="cannot write"):
        save(drawn, tmp_path / "none" / "x.svg")
