"""The form that people fill in, and what they said."""

import json
import shutil
from pathlib import Path

import browsing
import pytest
import reported
from json_files import write_json
from refusals import refused
from structure import Structure

from selfrag.cli.main import main
from selfrag.extensions.annotation.forms import (
    asked_questions,
    digest,
    form,
    read_forms,
    sampled,
)

browser = browsing.browser


def saved(folder, run, person, wrong=(), **changes):
    """What somebody saved in a form who said yes to all but `wrong`."""
    answers = sampled(run, 2, only=["long"])
    about = {
        "format": "selfrag-annotation-1",
        "count": 2,
        "seed": 0,
        "only": ["long"],
        "sample": digest(answers),
    }
    verdicts = {name: name not in wrong for _, _, name in asked_questions(answers)}
    path = folder / f"{person}.json"
    write_json(path, about | {"annotator": person, "verdicts": verdicts} | changes)
    return path


@pytest.fixture
def copied(runs, tmp_path):
    """The same runs, free to be damaged; their manifests name the data files of the first ones."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in runs]


def test_figures_and_agreement_by_hand(runs, tmp_path, capsys):
    run = runs[0]
    first_form = saved(tmp_path, run, "one")
    second_form = saved(tmp_path, run, "other", ("0.plausible", "1.0.isrel"))
    figures = {
        figure.name: figure for figure in read_forms(run, [first_form, second_form])
    }
    assert (figures["plausible"].share.value, figures["plausible"].share.n) == (0.75, 2)
    assert figures["s&p"].share.value == 0.75
    # one of four verdicts on the second answer
    assert figures["isrel"].share.value == pytest.approx((1 + 0.75) / 2)
    assert figures["issup"].share.value == 1.0
    assert figures["plausible"].agreement.value == 0.5
    assert figures["isrel"].agreement.value == pytest.approx((1 + 0.5) / 2)
    assert figures["plausible"].kappa.value == 0.0  # one person says yes to all
    assert read_forms(run, [first_form])[0].agreement is None
    assert (
        main(f"eval annotate {run} --read {first_form} --read {second_form}".split())
        == 0
    )
    shown = capsys.readouterr().out
    line = next(
        line
        for line in shown.splitlines()
        if line.startswith("|") and "supported and plausible" in line
    )
    assert [cell.strip() for cell in line.split("|")[3:5]] == [
        "2",
        "75.0 [50.0, 100.0]",
    ]
    assert "2 people" in shown


def test_a_form_in_a_browser_saves_what_was_said_and_asks_no_address(
    browser, runs, tmp_path, capsys
):
    file = tmp_path / "form.html"
    assert (
        main(f"eval annotate {runs[0]} --sample 2 --only long -o {file}".split()) == 0
    )
    assert "open it in a browser" in capsys.readouterr().out
    page, seen = browsing.opened(browser, file)
    for button in page.locator("input[value=yes]").all():
        button.check()
    page.locator("input[name='0.plausible'][value=no]").check()
    assert page.locator("#left").inner_text() == "0 of 12 are open"
    with page.expect_download() as download:
        page.locator("#save").click()
    download.value.save_as(tmp_path / "said.json")
    assert seen["dialogs"] == seen["errors"] == []
    assert [url for url in seen["requests"] if not url.startswith("blob:")] == [
        file.as_uri()
    ]
    shares = {
        figure.name: figure.share.value
        for figure in read_forms(runs[0], [tmp_path / "said.json"])
    }
    assert shares == {"plausible": 0.5, "s&p": 0.5, "isrel": 1.0, "issup": 1.0}
    for _ in range(20):  # a busy browser writes its storage a little later
        page.reload()
        if (left := page.locator("#left").inner_text()) == "0 of 12 are open":
            break
    assert left == "0 of 12 are open"  # the browser has kept them


def test_hostile_texts_stay_texts_in_a_form(copied):
    evil = json.dumps(
        "</script><script>alert(1)</script>" + "".join(reported.HOSTILE.values())
    )[1:-1]
    file = copied[0] / "long.jsonl"
    file.write_text(
        file.read_text(encoding="utf-8").replace("It is large.", evil), encoding="utf-8"
    )
    assert (
        "</script><script>alert(1)"
        in Structure(form(copied[0], 1, only=["long"])).text()
    )


def test_what_cannot_be_done_is_one_line(runs, tmp_path, refusal):
    assert "--out FORM.html" in refusal(f"selfrag eval annotate {runs[0]}")
    bare = f"selfrag eval annotate {runs[1]} -o {tmp_path}/f.html"
    assert "--traces" in refusal(bare)
    for change, said in (
        ({"format": "x"}, "is no file that the form"),
        ({"verdicts": {"0.plausible": "yes"}}, "must be true or false, not .yes."),
        ({"verdicts": {}}, "nothing was answered"),
        ({"sample": "0"}, "was made for another run"),
    ):
        with refused(said):
            read_forms(runs[0], [saved(tmp_path, runs[0], "me", **change)])
