"""What an adapter changes: no token rows, the last layers only, or nothing before its invocation tokens."""

import torch
from json_files import parse_table, read_json
from refusals import refused
from torch.nn.functional import cross_entropy
from trained import config

from selfrag.training.expansion import unexpanded
from selfrag.training.export import REFLECTION, WEIGHTS, save_adapter, save_checkpoint
from selfrag.training.model import load_trainee, with_adapter
from selfrag.training.packing import pack
from selfrag.training.rows import MASKED, TargetGroup, TrainingExample
from selfrag.training.settings import Lora, Reach, Weighting

INVOCATION = (1, 70, 71)
FIRST = TrainingExample(
    (5, 6, 7, *INVOCATION, 8, 9, 2),
    (*[MASKED] * 7, 9, 2),
    (*[TargetGroup.TEXT] * 8, TargetGroup.EOS),
)
SECOND = TrainingExample(
    (5, *INVOCATION, 9, *INVOCATION, 11, 2),
    (*[MASKED] * 8, 11, 2),
    (*[TargetGroup.TEXT] * 9, TargetGroup.EOS),
)


def reached(base_dir, reach):
    trainee = load_trainee(
        base_dir, config(lora=Lora(4, 8), reach=reach, precision="fp32", seed=0)
    )
    generator = torch.Generator().manual_seed(0)
    for name, parameter in trainee.weights.items():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    trainee.refresh()
    return trainee


def test_without_token_rows_the_vocabulary_stays_and_pairs_are_all_there_is(
    base_dir, tmp_path
):
    from safetensors.torch import load_file

    from selfrag.engines.adapters import read_adapter

    trainee = reached(base_dir, Reach(token_rows=False))
    assert trainee.rows == {}
    assert "[Relevant]" not in trainee.tokenizer.get_vocab()
    out = save_adapter(trainee, tmp_path / "adapter", beside={"note.json": {"a": 1}})
    assert all(".lora_" in name for name in load_file(out / WEIGHTS))
    assert not (out / REFLECTION).exists()
    assert read_json(out / "note.json") == {"a": 1}
    assert read_adapter("x", out).rank == 4  # what vLLM would serve


def test_last_layers_have_pairs_and_no_others(base_dir):
    trainee = reached(base_dir, Reach(token_rows=False, last_layers=1))
    assert {name.split(".layers.")[1].split(".")[0] for name in trainee.weights} == {
        "1"
    }
    assert any("gate_proj" in name for name in trainee.weights)
    assert not any("lm_head" in name for name in trainee.weights)
    losses, _ = trainee.losses(pack([FIRST], Weighting.uniform()))
    losses.sum().backward()
    assert all(parameter.grad is not None for parameter in trainee.weights.values())
    # The recipe of the demo says 16; a smaller base has pairs in all its layers.
    smaller = reached(base_dir, Reach(token_rows=False, last_layers=16))
    assert (
        smaller.weights.keys()
        == reached(base_dir, Reach(token_rows=False, last_layers=2)).weights.keys()
    )


def test_an_activated_adapter_gives_the_numbers_and_gradients_of_peft(base_dir):
    """Two packed rows against PEFT's own forward on each row alone; the second has the invocation twice."""
    from transformers import AutoModelForCausalLM

    reach = Reach(token_rows=False, invocation=INVOCATION)
    ours = reached(base_dir, reach)
    losses, _ = ours.losses(pack([FIRST, SECOND], Weighting.uniform()))
    gradients = torch.autograd.grad(losses.sum(), list(ours.weights.values()))

    model = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    peft = with_adapter(model, unexpanded(model), Lora(4, 8), reach)
    named = {
        name: parameter
        for name, parameter in peft.named_parameters()
        if parameter.requires_grad
    }
    for name, parameter in ours.weights.items():
        named[name].data = parameter.detach().clone()
    expected = []
    for example in (FIRST, SECOND):
        ids = torch.tensor([example.ids])
        logits = peft(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        where = [i for i, label in enumerate(example.labels) if label != MASKED]
        due = torch.tensor([example.labels[i] for i in where])
        expected.append(
            cross_entropy(logits[[i - 1 for i in where]], due, reduction="none")
        )
    torch.testing.assert_close(losses, torch.cat(expected), rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(
        torch.cat(expected).sum(), [named[name] for name in ours.weights]
    )
    for name, one, other in zip(ours.weights, gradients, wanted, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_what_does_not_go_together_is_refused(base_dir, tmp_path):
    for wrong, said in parse_table("""
{"invocation": [1]} | token_rows = false
{"last_layers": 0} | at least 1
"""):
        with refused(said):
            Reach(**wrong)
    with refused("trains everything"):
        load_trainee(base_dir, config(method="full", reach=Reach(token_rows=False)))
    trainee = reached(base_dir, Reach(token_rows=False, invocation=(90, 91)))
    with refused("lacks the invocation"):
        trainee.losses(pack([FIRST], Weighting.uniform()))
    with refused("cannot be merged"):
        save_checkpoint(trainee, tmp_path / "model")
