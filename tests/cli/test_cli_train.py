"""`selfrag train`: a dry run costs nothing, a run leaves product, plot and card, other packages' commands join."""

import json

import pytest
import tiny

from retrieval.passage import Passage
from selfrag.cli.main import main
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

LONG = TargetEvidence(
    Passage("p", "Water boils at 100 degrees Celsius at sea level. " * 30)
)
CITED = (
    TargetToken("[Retrieval]"),
    LONG,
    TargetToken("[Relevant]"),
    TargetText("At 100 degrees."),
    TargetToken("[Fully supported]"),
)
PLAIN = (
    TargetToken("[No Retrieval]"),
    TargetText("Hello!"),
    TargetToken("[Utility:5]"),
)
ROWS = [
    TrainingRow("a", "greetings", "Say hello.", PLAIN),
    TrainingRow("b", "facts", "When does water boil?", CITED),
]


@pytest.fixture
def place(tmp_path):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    tiny.save_llama(tmp_path / "base", reflection=False)
    return tmp_path


def arguments(place, kind="adapter", *more):
    return [
        "train",
        kind,
        str(place / "rows.jsonl"),
        "--base",
        str(place / "base"),
        "-o",
        str(place / "out"),
        *more,
    ]


@pytest.mark.parametrize("kind", ["adapter", "generator"])
def test_a_dry_run_says_what_it_takes_and_writes_nothing(place, capsys, kind):
    assert (
        main(
            arguments(place, kind, "--dry-run", "--max-length", "200", "--epochs", "2")
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "rows        2; 1 with a shortened passage" in out
    assert "1 facts" in out
    for line in ("tokens", "steps", "parameters", "memory"):
        assert line in out
    assert not (place / "out").exists()


def test_an_adapter_is_trained_once_found_again_and_becomes_a_checkpoint_that_loads(
    place, capsys
):
    assert (
        main(arguments(place, "adapter", "--max-steps", "2", "--max-length", "300"))
        == 0
    )
    out = capsys.readouterr().out
    assert "retrieve" in out
    for file in (
        "run/manifest.json",
        "run/log.jsonl",
        "run/loss.png",
        "adapter/README.md",
        "adapter/reflection.json",
    ):
        assert (place / "out" / file).exists(), file
    card = (place / "out" / "adapter" / "README.md").read_text()
    assert "recipe generator/cpu with --max-length, --max-steps," in card
    before = (place / "out" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert (
        main(arguments(place, "adapter", "--max-steps", "2", "--max-length", "300"))
        == 0
    )
    assert (
        place / "out" / "adapter" / "adapter_model.safetensors"
    ).read_bytes() == before
    assert (
        main(arguments(place, "adapter", "--max-steps", "3", "--max-length", "300"))
        == 2
    )
    assert "other config.max_steps" in capsys.readouterr().err

    adapter, base, model = (
        str(place / part) for part in ("out/adapter", "base", "out/model")
    )
    assert f"selfrag train merge {adapter} --base {base} -o {model}" in out
    with pytest.raises(
        UserError, match=f"{adapter} is an adapter; merge it first: selfrag train merge"
    ):
        resolve_model(adapter)
    assert main(["train", "merge", adapter, "--base", base, "-o", model]) == 0
    assert "try selfrag ask --model" in capsys.readouterr().out
    assert (
        len(Vocabulary.from_tokenizer(load_tokenizer(resolve_model(model))).ids) == 15
    )
    assert (
        main(
            [
                "train",
                "merge",
                str(place / "none"),
                "--base",
                base,
                "-o",
                str(place / "other"),
            ]
        )
        == 2
    )
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [["generator", "rows.jsonl"], ["adapter", "answerability"]]
)
def test_the_settings_are_printed_with_what_set_them(capsys, more):
    data = ["--data", "d"] if more[1] == "answerability" else []
    given = ["--epochs", "7", "--set", "training.lora.rank=3"]
    assert (
        main(
            ["train", *more, "--base", "b", "-o", "o", *data, *given, "--print-config"]
        )
        == 0
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["epochs", "=", "7", "#", "--epochs"] in lines
    assert ["rank", "=", "3", "#", "--set", "training.lora.rank"] in lines
    assert ["clip", "=", "1.0", "#"] in [line[:4] for line in lines]


def test_rows_that_do_not_fit_are_counted_and_left_out_if_asked_for(place, capsys):
    more = [TrainingRow(f"c{n}", "s", "q " * 200, (TargetText("x"),)) for n in range(3)]
    write_rows(place / "rows.jsonl", [*more, *ROWS])
    assert main(arguments(place, "adapter", "--dry-run", "--max-length", "200")) == 2
    assert "row 'c0' needs" in (err := capsys.readouterr().err)
    assert "2 more rows have the same fault" in err

    assert (
        main(
            arguments(
                place, "adapter", "--leave-long", "--dry-run", "--max-length", "200"
            )
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "rows        2; 1 with a shortened passage" in out
    assert "3 too long and left out" in out
    assert (
        main(
            arguments(
                place,
                "adapter",
                "--leave-long",
                "--max-steps",
                "1",
                "--max-length",
                "200",
            )
        )
        == 0
    )
    assert (
        json.loads((place / "out/run/manifest.json").read_text())["facts"][
            "rows_left_out"
        ]
        == 3
    )
    assert "3 too long and left out" in (place / "out/adapter/README.md").read_text()

    write_rows(place / "rows.jsonl", more)
    assert (
        main(
            arguments(
                place, "adapter", "--leave-long", "--dry-run", "--max-length", "200"
            )
        )
        == 2
    )
    assert "row 'c0' needs" in capsys.readouterr().err


def test_shards_without_gpus_are_refused_with_the_way_out(place, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there are GPUs here")
    assert main(arguments(place, "generator", "--recipe", "fsdp")) == 2
    assert (
        "needs GPUs, and there is none here; use the recipe cpu or cpus"
        in capsys.readouterr().err
    )


def test_other_packages_add_their_commands(tmp_path, monkeypatch, capsys):
    """As an installed distribution does it: an entry point in the group `selfrag.train`."""
    (tmp_path / "guest_package.py").write_text(
        "def cook(dish: str) -> None:\n    print('cooked', dish)\n"
    )
    info = tmp_path / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[selfrag.train]\ncook = guest_package:cook\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["train", "--help"]) == 0
    assert {"cook", "adapter"} <= set(capsys.readouterr().out.split())
    assert main(["train", "cook", "pasta"]) == 0
    assert "cooked pasta" in capsys.readouterr().out
