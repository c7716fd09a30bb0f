"""The form of human evaluation: what it asks, that it works offline, and figures by hand."""

from __future__ import annotations

import json
from pathlib import Path

import browsing
import pytest
from hostile import HOSTILE
from structure import Structure

from selfrag.cli.main import main
from selfrag.evaluation.annotation import asked, digest, form, read_forms, sampled

browser = browsing.browser


@pytest.fixture
def run(runs) -> Path:
    return runs[0]


def saved(folder: Path, run: Path, person: str, wrong: tuple[str, ...] = (), **changes: object) -> Path:
    """What somebody saved who said yes to all but `wrong`."""
    answers = sampled(run, 2, only=["long"])
    about = {"format": "selfrag-annotation-1", "count": 2, "seed": 0, "only": ["long"], "sample": digest(answers)}
    verdicts = {name: name not in wrong for _, _, name in asked(answers)}
    path = folder / f"{person}.json"
    path.write_text(json.dumps(about | {"annotator": person, "verdicts": verdicts} | changes))
    return path


def test_figures_and_agreement_by_hand(run, tmp_path):
    one = saved(tmp_path, run, "one")
    other = saved(tmp_path, run, "other", ("0.plausible", "1.0.isrel"))
    found = {figure.name: figure for figure in read_forms(run, [one, other])}
    assert (found["plausible"].share.value, found["plausible"].share.n) == (0.75, 2)
    assert found["s&p"].share.value == 0.75
    assert found["isrel"].share.value == pytest.approx((1 + 0.75) / 2)  # one of four verdicts on the second answer
    assert found["issup"].share.value == 1.0
    assert found["plausible"].agreement.value == 0.5
    assert found["isrel"].agreement.value == pytest.approx((1 + 0.5) / 2)
    assert found["plausible"].kappa.value == 0.0  # one person says yes to all
    assert read_forms(run, [one])[0].agreement is None


def test_the_command_writes_a_form_and_reads_it_back(run, tmp_path, capsys):
    page = tmp_path / "form.html"
    assert main(["eval", "annotate", str(run), "--sample", "2", "--only", "long", "-o", str(page)]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    people = [str(saved(tmp_path, run, name)) for name in "ab"]
    assert main(["eval", "annotate", str(run), "--read", people[0], "--read", people[1]]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "supported and plausible" in line and line.startswith("|"))
    assert [cell.strip() for cell in line.split("|")[3:5]] == ["2", "100.0 (100.0 to 100.0)"]
    assert "2 people" in shown


def test_a_form_in_a_browser_saves_what_was_said_and_asks_no_address(browser, run, tmp_path):
    file = tmp_path / "form.html"
    file.write_text(form(run, 2, only=["long"]), encoding="utf-8")
    page, seen = browsing.opened(browser, file)
    for button in page.locator("input[value=yes]").all():
        button.check()
    page.locator("input[name='0.plausible'][value=no]").check()
    assert page.locator("#left").inner_text() == "0 of 12 are open"
    with page.expect_download() as download:
        page.locator("#save").click()
    download.value.save_as(tmp_path / "said.json")
    assert seen["dialogs"] == seen["errors"] == []
    assert [url for url in seen["requests"] if not url.startswith("blob:")] == [file.as_uri()]
    found = {figure.name: figure.share.value for figure in read_forms(run, [tmp_path / "said.json"])}
    assert found == {"plausible": 0.5, "s&p": 0.5, "isrel": 1.0, "issup": 1.0}
    for _ in range(20):  # a busy browser writes its storage a little later
        page.reload()
        if (left := page.locator("#left").inner_text()) == "0 of 12 are open":
            break
    assert left == "0 of 12 are open"  # the browser has kept them


def test_hostile_texts_stay_texts(run, tmp_path):
    evil = json.dumps("</script><script>alert(1)</script>" + "".join(HOSTILE.values()))[1:-1]
    folder = tmp_path / "run"
    folder.mkdir()
    for file in run.iterdir():
        text = file.read_text(encoding="utf-8")
        (folder / file.name).write_text(text.replace("It is large.", evil), encoding="utf-8")
    found = Structure(form(folder, 1, only=["long"]))
    assert "</script><script>alert(1)" in found.text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "is no file that the form"),
        ({"verdicts": {"0.plausible": "yes"}}, "a verdict is neither true nor false"),
        ({"verdicts": {}}, "nothing was answered"),
        ({"sample": "0"}, "was made for another run"),
    ],
)
def test_what_is_no_saved_form_is_one_line(change, said, run, tmp_path, capsys):
    assert main(["eval", "annotate", str(run), "--read", str(saved(tmp_path, run, "me", **change))]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_run_without_traces_and_neither_option_are_refused(runs, tmp_path, capsys):
    assert main(["eval", "annotate", str(runs[1]), "-o", str(tmp_path / "f.html")]) == 2
    assert "run it again with --traces" in capsys.readouterr().err
    assert main(["eval", "annotate", str(runs[0])]) == 2
    assert "give --out FORM.html" in capsys.readouterr().err
