"""Names that another package registers by entry points, and what the program makes of them."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import tiny

from retrieval import build_index
from selfrag import plugins
from selfrag.errors import UserError
from selfrag.loading import DEMO, index_directory, load_index, resolve_encoder, resolve_model, shipped_adapters

TEXT = '{"id": "p1", "title": "Tea", "text": "Green tea wants 80 degrees."}\n'


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package registers `mine` in every group; the folder that holds its things."""
    tiny.save_bert(tmp_path / "bert")
    (tmp_path / "model").mkdir()
    (tmp_path / "passages.jsonl").write_text(TEXT)
    build_index([tmp_path / "passages.jsonl"], tmp_path / "index", encoder=str(tmp_path / "bert"))
    module = tmp_path / "house_names.py"
    module.write_text(
        f"from pathlib import Path\nHERE = Path({str(tmp_path)!r})\n"
        "def model(): return HERE / 'model'\ndef index(): return HERE / 'index'\n"
        f"def encoder(): return Path({str(tmp_path / 'bert')!r})\n"
        "def adapters(): return {'answerability': HERE / 'adapter'}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kinds = {"models": "model", "indexes": "index", "encoders": "encoder", "adapters": "adapters"}
    points = [EntryPoint("mine", f"house_names:{name}", f"selfrag.{kind}") for kind, name in kinds.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point for point in points if point.group == group])
    return tmp_path


def test_registered_names_are_found(registered: Path) -> None:
    assert resolve_model("mine") == registered / "model"
    assert shipped_adapters("mine") == {"answerability": registered / "adapter"}
    assert index_directory("mine") == registered / "index"
    assert resolve_encoder("mine") == str(registered / "bert")
    assert load_index("mine", "mine")(["tea"], 1)[0][0].id == "p1"


def test_other_names_are_what_they_were(registered: Path) -> None:
    assert index_directory(registered) == registered
    assert resolve_encoder("owner/encoder") == "owner/encoder"
    assert shipped_adapters("other") == {}
    with pytest.raises(UserError, match="no model at nowhere"):
        resolve_model("nowhere")
    with pytest.raises(UserError, match="no model at demo"):  # without the entry points of this package
        resolve_model(DEMO)
