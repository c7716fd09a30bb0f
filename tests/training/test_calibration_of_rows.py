"""IsRel stricter after training: the threshold by hand, and what moving the row does to a model."""

import pytest
import torch
from families import save_base
from lettered import passage, row
from trained import config, train, write

from relevance_calibration import restrain_relevance, threshold_for
from selfrag.errors import UserError
from selfrag.training.export import save_checkpoint
from selfrag.training.run import layout_for


@pytest.mark.parametrize(("most", "threshold"), [(0.0, 4.5), (0.25, 3.0), (0.4, 3.0), (0.5, 1.0), (0.75, -0.5)])
def test_the_threshold_by_hand(most, threshold):
    assert threshold_for([0.0, 4.0, -1.0, 2.0], most) == threshold


def judged(label, text, number):
    return row("[Retrieval]", passage(text), label, "Yes.", "[Utility:5]", instruction="What is it?", id=f"h{number}")


TEXTS = ["Snow is white.", "Grass is green and soft.", "Coal is black.", "Milk.", "Who knows that?", "A long one " * 9]
HELD_OUT = [judged("[Relevant]" if n % 2 else "[Irrelevant]", text, n) for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=["llama tied", "llama"])
def trained_base(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("balanced")
    base, rows = save_base(directory / "base", request.param), write(directory / "rows.jsonl")

    def load():
        """As it was trained, each time anew: saving spoils a trainee."""
        trainee = train(rows, base, directory / "run", config(epochs=1))
        return trainee, layout_for(trainee.tokenizer, config())

    return load


def margins(directory, examples):
    """Log-odds of Relevant against Irrelevant where IsRel is due, by transformers from the saved checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    yes, no = tokenizer.convert_tokens_to_ids(["[Relevant]", "[Irrelevant]"])
    found = []
    for example in examples:
        due = next(i for i, label in enumerate(example.labels) if label in (yes, no))
        logits = model(torch.tensor([example.ids[:due]])).logits[0, -1].float()
        found.append((float(logits[yes] - logits[no]), example.labels[due] == yes))
    return found


def test_the_exported_model_judges_as_the_calibration_says_and_no_other_row_moves(trained_base, tmp_path):
    save_checkpoint(trained_base()[0], tmp_path / "before")
    trainee, layout = trained_base()
    examples = [layout.example(one) for one in HELD_OUT]
    with pytest.raises(UserError, match="both IsRel labels"):
        restrain_relevance(trainee, examples[::2], most_taken=0.34)
    old = {name: value.detach().clone() for name, value in trainee.parameters.items()}
    calibration = restrain_relevance(trainee, examples, most_taken=0.34)
    ((name, changed),) = [(n, value) for n, value in trainee.parameters.items() if not torch.equal(value, old[n])]
    assert [i for i in range(15) if not torch.equal(changed[i], old[name][i])] == [4]

    save_checkpoint(trainee, tmp_path / "after")
    before, after = margins(tmp_path / "before", examples), margins(tmp_path / "after", examples)
    moved = [old - new for (old, _), (new, _) in zip(before, after, strict=True)]
    assert sum(moved) / len(moved) == pytest.approx(calibration.shift, abs=0.05)
    assert calibration.rows == (3, 3)
    for at, odds in enumerate((before, after)):
        assert calibration.missed[at] == pytest.approx(sum(value <= 0 for value, good in odds if good) / 3)
        assert calibration.taken[at] == pytest.approx(sum(value > 0 for value, good in odds if not good) / 3)


def test_exactly_the_share_asked_for_is_left_however_unlike_the_states_are(trained_base):
    trainee, layout = trained_base()
    rows = [judged("[Irrelevant]", f"Passage {n} {'and on ' * n}", n) for n in range(20)]
    rows.append(judged("[Relevant]", "Snow is white.", 99))
    for most in (0.3, 0.6):  # stricter first, then looser again
        found = restrain_relevance(trainee, [layout.example(one) for one in rows], most_taken=most)
        assert found.taken[1] == pytest.approx(most)
