"""GGUF in, plain checkpoint out. The real conversion needs the base model and runs with the demo tests."""

import json

import pytest
import torch

from selfrag.errors import UserError
from selfrag.training.export import convert


def test_a_missing_file_and_one_of_another_kind_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no GGUF file at .*nothing\.gguf"):
        convert(tmp_path / "nothing.gguf", tmp_path / "out")
    (tmp_path / "page.gguf").write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match="is not a GGUF file"):
        convert(tmp_path / "page.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.demo
def test_the_demo_base_becomes_a_plain_checkpoint_whose_new_rows_start_well():
    """Also the start of the reflection rows: above log-probability -8 where they are due (about -17 for mean rows)."""
    from lettered import passage, row

    from selfrag.demo.model import base_path
    from selfrag.training.model import load_trainee
    from selfrag.training.packing import pack
    from selfrag.training.rows import Group
    from selfrag.training.run import layout_for
    from selfrag.training.settings import TrainingConfig, Weighting

    base = base_path()
    settings = json.loads((base / "config.json").read_text())
    assert "quantization_config" not in settings
    assert settings["vocab_size"] == 49152

    trainee = load_trainee(base)
    layout = layout_for(trainee.tokenizer, TrainingConfig())
    # Prose too: the de-quantised model can read. 3.9 was measured; one that cannot is near 10.8, the logarithm of
    # its vocabulary.
    prose = "The Moon is the only natural satellite of the Earth. It orbits the Earth once in about four weeks."
    example = layout.example(
        row(
            "[Retrieval]", passage("Paris is the capital of France."), "[Relevant]", "Paris", "[Fully supported]",
            "[Utility:5]", instruction="What is the capital of France?",
        )
    )  # fmt: skip
    load = pack([example], Weighting())
    ids = torch.tensor([trainee.tokenizer(prose, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        losses, _ = trainee.losses(load)
        logits = trainee.causal(input_ids=ids, row_lengths=[ids.shape[1]], use_cache=False).logits[0, :-1].float()
    reflection = (load.groups >= Group.RETRIEVE) & (load.groups <= Group.ISUSE)
    assert float(-losses[reflection].mean()) > -8
    assert float(torch.nn.functional.cross_entropy(logits, ids[0, 1:])) < 5
