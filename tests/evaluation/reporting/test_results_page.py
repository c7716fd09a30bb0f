"""The results page: made of what is kept and of nothing else; the one in the documents is what the command prints."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from make_results import (
    groups,
    keep,
    page,
)
from retrieval.errors import UserError
from selfrag.evaluation.comparison import compare, read_runs
from selfrag.evaluation.tables import markdown

ROOT = Path(__file__).parents[3]


def test_the_committed_page_is_what_the_command_makes(tmp_path: Path, monkeypatch) -> None:
    """Figures, intervals and differences are computed again from the scores of every item."""
    shown = ROOT / "docs" / "records" / "results.md"
    shutil.copytree(shown.with_suffix(""), tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["make_results.py", "--into", str(tmp_path / "results.md")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / "make_results.py"), run_name="__main__")
    assert ended.value.code == 0
    made = (tmp_path / "results.md").read_text(encoding="utf-8")
    for picture in re.findall(r"\]\((\S+)\)", made):
        assert (tmp_path / picture).is_file()
    assert made == shown.read_text(encoding="utf-8"), "run scripts/make_results.py again, and change nothing by hand"


def test_runs_of_other_items_stand_in_tables_of_their_own(runs: list[Path], tmp_path: Path) -> None:
    keep(runs, tmp_path / "results")
    keep([runs[0].parent], tmp_path / "results")  # a run that is made again replaces the old one
    assert len(list((tmp_path / "results").iterdir())) == 2
    one = next(path for path in (tmp_path / "results").iterdir() if path.name.startswith("finetuned"))
    values = json.loads(one.read_text())
    del values["files"]["long"]
    (tmp_path / "results" / "finetuned-other.json").write_text(json.dumps(values))
    kept = [[one.run.name for one in group.digests] for group in groups(tmp_path / "results")]
    assert kept == [["finetuned", "reflective"], ["finetuned"]]
    text = page(tmp_path / "results", against="finetuned")
    assert "## 2 systems on short, long" in text
    assert "## 1 system on short" in text
    assert markdown(compare(read_runs(sorted(runs)), against="finetuned")) in text
    assert "| finetuned | finetuned | model.safetensors abcdefabcdef | scripted |" in text


def study(folder: Path, text: str = "# Sweep\n\n![front](plots/front.svg)\n\n```\n# code\n```\n\n## Part\n") -> Path:
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "front.svg").write_text("<svg/>")
    (folder / "sweep.md").write_text(text)
    about = {"time": "now", "commit": "c" * 40, "versions": {"numpy": "2"}, "rows": [1]}
    (folder / "sweep.json").write_text(json.dumps(about))
    return folder / "sweep.md"


def test_what_cannot_be_kept_is_one_line(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keeps no run and no study"):
        page(tmp_path)
    text = study(tmp_path / "a")
    text.with_suffix(".json").write_text('{"rows": []}')
    with pytest.raises(UserError, match="no JSON file beside it says where its figures come from"):
        keep([text], tmp_path / "results")
    with pytest.raises(UserError, match=r"the picture '\.\./secret\.svg' is not beside it"):
        keep([study(tmp_path / "b", "![x](../secret.svg)")], tmp_path / "results")
    half = shutil.copytree(runs[0], tmp_path / "half")
    manifest = json.loads((half / "manifest.json").read_text())
    del manifest["files"]["short"]["result"]
    (half / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="short is not finished"):
        keep([runs[0], half], tmp_path / "none")
    assert not (tmp_path / "none").exists()  # nothing is kept by half
