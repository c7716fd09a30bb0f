"""Recipes: the paper's settings as a preset, strict reading, launch files that accelerate and DeepSpeed accept."""

from dataclasses import replace

import pytest
from json_files import parse_table
from refusals import refused

from selfrag.training.recipes import GENERATOR, launch_file, read_recipe
from selfrag.training.settings import Scale, Weighting


def test_the_paper_preset_has_the_settings_of_the_paper():
    """arXiv 2310.11511, appendix B.1: 3 epochs, batch 128, lr 2e-5, 3% warm-up, 2,048 tokens (13B: 1,524), ZeRO-3."""
    paper, large = read_recipe("paper"), read_recipe("paper-13b")
    config = paper.config
    assert config.method == "full"
    assert config.epochs == 3
    assert config.step_rows == 128
    assert config.learning_rate == 2e-5
    assert config.warmup == 0.03
    assert config.weight_decay == 0.0
    assert config.max_length == 2048
    assert config.weighting == Weighting.uniform()
    assert paper.scale.sharding == "zero3"
    assert large.config.max_length == 1524
    assert large.config.learning_rate == 2e-5


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text, message",
    parse_table(r"""
"[training]\nepoch = 3\n" | training.epoch is unknown; known: seed, method
"[training]\nepochs = 'three'\n" | training.epochs must be a whole number, not 'three'
"[training.lora]\nsize = 3\n" | training.lora.size is unknown; known: rank, alpha
"[scale]\nsharding = 'zero2'\n" | scale.sharding must be 'none', 'fsdp' or 'zero3', not 'zero2'
"[train]\n" | unknown train
"scale = 3\n" | scale must be an object, not 3
"epochs = \n" | "recipe .*mine.toml: "
"extends = 'nowhere'\n" | no recipe nowhere: give a file or one of 8xgpu, cpu
"""),
)
def test_a_bad_recipe_is_named(tmp_path, text, message):
    path = write(tmp_path / "mine.toml", text)
    with refused(message):
        read_recipe(path)


@pytest.mark.parametrize("sharding", ["none", "fsdp", "zero3"])
@pytest.mark.parametrize("gpu", [True, False])
def test_accelerate_reads_every_launch_file(sharding, gpu):
    """Checked by accelerate's own reader, which refuses keys it does not know."""
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    loaded = load_config_from_file(str(launch_file(Scale(sharding=sharding), gpu=gpu)))
    expected = {"none": "MULTI_GPU", "fsdp": "FSDP", "zero3": "DEEPSPEED"}[sharding]
    assert loaded.use_cpu == (sharding == "none" and not gpu)
    assert loaded.distributed_type == expected


def test_a_set_value_is_toml_or_a_word():
    given = "precision=fp32|lora={rank = 4}|reach.last_layers = 3|clip=2".split("|")
    before = read_recipe("gpu")
    recipe = before.assigned(
        [*(f"training.{one}" for one in given), "scale.checkpointing=false"]
    )
    config = recipe.config
    assert config.precision == "fp32"
    assert config.lora.rank == 4
    assert config.lora.alpha == 64.0
    assert config.reach.last_layers == 3
    assert recipe.scale == replace(before.scale, checkpointing=False)
    assert config.learning_rate == before.config.learning_rate
    assert isinstance(config.clip, float)


@pytest.mark.parametrize(
    "text, message",
    parse_table(r"""
training.epoch=3 | ^--set training\.epoch: training\.epoch is unknown; known: seed
training.epochs=two | ^--set training.epochs: training.epochs must be a whole number, not 'two'
training.lora=3 | ^--set training\.lora: training\.lora must be an object, not 3
training.epochs=0 | ^epochs=0
epochs=3 | write TABLE.NAME=VALUE, such as training.epochs=3; tables: training, scale
training.epochs | write TABLE.NAME=VALUE
"""),
)
def test_a_bad_set_value_is_named(text, message):
    with refused(message):
        _ = read_recipe("gpu").assigned([text]).config


@pytest.mark.parametrize("name", GENERATOR.names())
def test_a_printed_recipe_is_read_as_the_same_with_the_source_of_each_value(
    tmp_path, name
):
    recipe = read_recipe(name).changed(
        {"--epochs": {"training.epochs": 7}, "--lr": {"training.learning_rate": None}}
    )
    again = read_recipe(write(tmp_path / "printed.toml", text := recipe.text()))
    assert again.config == recipe.config
    assert again.scale == recipe.scale
    assert recipe.config.epochs == 7
    assert "epochs = 7                        # --epochs\n" in text
    assert "clip = 1.0                        # " in text
    assert text.startswith(f"# generator: generator/{name} with --epochs\n")


def test_a_recipe_extends_one_of_the_package_or_a_file_beside_it_and_tables_merge(
    tmp_path,
):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep/mine.toml", 'extends = "../other.toml"\n')
    write(
        tmp_path / "other.toml",
        'extends = "generator/gpu"\n[training]\nepochs = 9\n[training.lora]\nrank = 4\n',
    )
    recipe = read_recipe(tmp_path / "deep/mine.toml")
    assert recipe.name == "mine (extends other (extends generator/gpu))"
    assert recipe.config.epochs == 9
    assert recipe.config.lora.rank == 4
    assert recipe.config.lora.alpha == 64.0
    assert recipe.scale == read_recipe("gpu").scale
    write(tmp_path / "other.toml", 'extends = "deep/mine.toml"\n')
    with refused("extends itself"):
        read_recipe(tmp_path / "deep/mine.toml")
