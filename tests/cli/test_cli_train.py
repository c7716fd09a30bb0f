"""`selfrag train`: a dry run costs nothing, a run leaves product, plot and card, other packages' commands join."""

import pytest
import tiny
from json_files import read_json

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.training.rows import (
    TargetEvidence,
    TargetText,
    TargetToken,
    TrainingRow,
    write_rows,
)

LONG = Passage("p", "Water boils at 100 degrees Celsius at sea level. " * 30)
CITED = (
    TargetToken("[Retrieval]"),
    TargetEvidence(LONG),
    TargetToken("[Relevant]"),
    TargetText("At 100 degrees."),
    TargetToken("[Fully supported]"),
)
PLAIN = (TargetToken("[No Retrieval]"), TargetText("Hello!"))
ROWS = [
    TrainingRow("a", "greetings", "Say hello.", PLAIN),
    TrainingRow("b", "facts", "When does water boil?", CITED),
]


@pytest.fixture
def place(tmp_path):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    tiny.save_llama(tmp_path / "base", reflection=False)
    return tmp_path


@pytest.fixture
def train(place, command):
    """Train from the rows by a kind of training and options, as `command` does."""

    def run(line, code=0):
        kind, options = line.split(" ", 1)
        files = f"{place}/rows.jsonl --base {place}/base -o {place}/out"
        return command(f"selfrag train {kind} {files} {options}", code=code)

    return run


@pytest.mark.parametrize("kind", ["adapter", "generator"])
def test_a_dry_run_says_what_it_takes_and_writes_nothing(place, train, kind):
    out, _ = train(f"{kind} --dry-run --max-length 200 --epochs 2")
    assert "rows        2; 1 with a shortened passage" in out
    assert "1 facts" in out
    for line in ("tokens", "steps"):
        assert line in out
    assert not (place / "out").exists()


def test_an_adapter_is_trained_once_found_again_and_becomes_a_checkpoint_that_loads(
    place, train, command
):
    out, _ = train("adapter --max-steps 2 --max-length 300")
    assert "retrieve" in out
    made = place / "out"
    for file in ("manifest.json", "log.jsonl"):
        assert (made / "run" / file).exists(), file
    assert (made / "adapter/reflection.json").exists()
    card = (made / "adapter/README.md").read_text()
    assert "recipe generator/cpu with --max-length, --max-steps," in card
    weights = made / "adapter/adapter_model.safetensors"
    before = weights.read_bytes()
    train("adapter --max-steps 2 --max-length 300")
    assert weights.read_bytes() == before
    _, err = train("adapter --max-steps 3 --max-length 300", code=2)
    assert "config.max_steps" in err

    merge = f"selfrag train merge {made}/adapter --base {place}/base -o {made}/model"
    assert merge in out
    with pytest.raises(UserError, match=f"{made}/adapter .* selfrag train merge"):
        resolve_model(f"{made}/adapter")
    assert "selfrag ask --model" in command(merge)[0]
    tokenizer = load_tokenizer(resolve_model(f"{made}/model"))
    assert len(Vocabulary.from_tokenizer(tokenizer).ids) == 15
    missing = f"selfrag train merge {place}/none --base {place}/base -o {place}/other"
    assert "none" in command(missing, code=2)[1]


@pytest.mark.parametrize(
    "line", ["generator rows.jsonl", "adapter answerability --data d"]
)
def test_the_settings_are_printed_with_what_set_them(command, line):
    settings = "--epochs 7 --set training.lora.rank=3 --print-config"
    out, _ = command(f"selfrag train {line} --base b -o o {settings}")
    lines = [line.split() for line in out.splitlines()]
    assert "epochs = 7 # --epochs".split() in lines
    assert "rank = 3 # --set training.lora.rank".split() in lines
    assert "clip = 1.0 #".split() in [line[:4] for line in lines]


def test_rows_that_do_not_fit_are_counted_and_left_out_if_asked_for(place, train):
    long = [TrainingRow(f"c{n}", "s", "q " * 200, (TargetText("x"),)) for n in range(3)]
    write_rows(place / "rows.jsonl", [*long, *ROWS])
    _, err = train("adapter --dry-run --max-length 200", code=2)
    assert "row 'c0'" in err
    assert "2 more rows" in err

    leaving = "adapter --leave-long --max-length 200"
    out, _ = train(f"{leaving} --dry-run")
    assert "rows        2; 1 with a shortened passage" in out
    assert "3 too long and left out" in out
    train(f"{leaving} --max-steps 1")
    assert read_json(place / "out/run/manifest.json")["facts"]["rows_left_out"] == 3
    assert "3 too long and left out" in (place / "out/adapter/README.md").read_text()

    write_rows(place / "rows.jsonl", long)
    assert "row 'c0'" in train(f"{leaving} --dry-run", code=2)[1]


def test_shards_without_gpus_are_refused_with_the_way_out(train):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    _, err = train("generator --recipe fsdp", code=2)
    assert "the recipe cpu or cpus" in err


def test_other_packages_add_their_commands(install, command):
    """By entry points in the group `selfrag.train`."""
    cook = "def cook(dish: str) -> None:\n    print('cooked', dish)\n"
    install("[selfrag.train]\ncook = guest_package:cook\n", guest_package=cook)
    assert {"cook", "adapter"} <= set(command("selfrag train --help")[0].split())
    assert "cooked pasta" in command("selfrag train cook pasta")[0]
