"""The model under training: a base checkpoint, expanded, with LoRA and token rows (or everything) trainable.

Knows losses and parameters. Knows no data files, no schedule and no checkpoint of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from selfrag.errors import UserError
from selfrag.training import attention
from selfrag.training.expansion import Expansion, expand
from selfrag.training.fused import Fused, fuse
from selfrag.training.packing import Pack

Method = Literal["lora", "full"]


@dataclass(frozen=True, slots=True)
class Lora:
    """Size of the adapter.

    Attributes:
        rank: inner width of every LoRA pair.
        alpha: the product B A is scaled by alpha / rank.
    """

    rank: int = 16
    alpha: float = 32.0


@dataclass(eq=False)
class Trainee:
    """A model that can say its loss at label positions.

    Attributes:
        model: the PEFT model (`lora`) or the plain causal language model (`full`).
        tokenizer: expanded.
        expansion: what the expansion did.
        weights: trained parameters by name, without the token rows.
        rows: trained token rows by name (`lora`), or the embedding matrices (`full`).
        fused: what computes in place of PEFT's layers; empty for `full`.
    """

    model: Any
    tokenizer: Any
    expansion: Expansion
    weights: dict[str, Parameter]
    rows: dict[str, Parameter]
    fused: Fused

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Everything that is trained, in a fixed order."""
        return {**self.weights, **self.rows}

    def losses(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """Cross entropy and hit of every target position; logits are made there and nowhere else.

        Returns:
            Losses [n] in float32 with a gradient, and whether the target was the most probable token [n].
        """
        causal = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        hidden = causal.base_model(
            input_ids=pack.ids, position_ids=pack.positions, row_lengths=pack.row_lengths, use_cache=False
        )[0][0]
        logits = causal.get_output_embeddings()(hidden[pack.predictors]).float()
        return cross_entropy(logits, pack.targets, reduction="none"), logits.detach().argmax(-1) == pack.targets

    def refresh(self) -> None:
        """Call after each change of the parameters."""
        self.fused.refresh()


def load_trainee(base_dir: Path, *, method: Method = "lora", lora: Lora | None = None, seed: int = 0) -> Trainee:
    """Load a base checkpoint, expand its vocabulary, and make it trainable.

    Args:
        base_dir: a Hugging Face checkpoint with its tokenizer.
        method: `lora` trains LoRA pairs on every linear layer and the 15 token rows; `full` trains all weights.
        lora: size of the adapter, for `lora`.
        seed: of the LoRA initialisation.

    Raises:
        UserError: the directory holds no causal language model, or one that cannot be expanded.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = attention.register()
    try:
        tokenizer = AutoTokenizer.from_pretrained(base_dir)
        model = AutoModelForCausalLM.from_pretrained(
            base_dir, dtype=torch.bfloat16 if method == "lora" else torch.float32, attn_implementation=name
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{base_dir} holds no causal language model with its tokenizer: {error}") from error
    model.config.use_cache = False
    expansion = expand(model, tokenizer)
    torch.manual_seed(seed)
    if method == "full":
        matrices = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
        named = dict(model.named_parameters())
        rows = {key: value for key, value in named.items() if id(value) in matrices}
        weights = {key: value for key, value in named.items() if id(value) not in matrices}
        return Trainee(model, tokenizer, expansion, weights, rows, Fused())
    adapted = with_adapter(model, expansion, lora or Lora())
    fused = fuse(adapted)
    trained = {key: value for key, value in adapted.named_parameters() if value.requires_grad}
    rows = {key: value for key, value in trained.items() if "trainable_tokens_delta" in key}
    weights = {key: value for key, value in trained.items() if key not in rows}
    return Trainee(adapted, tokenizer, expansion, weights, rows, fused)


def with_adapter(model: Any, expansion: Expansion, lora: Lora) -> Any:
    """Wrap an expanded model into a PEFT model: LoRA on all linear layers, the 15 rows trainable."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type, unused-ignore]
        target_modules="all-linear",
        trainable_token_indices=_row_modules(model, expansion),
    )
    return get_peft_model(model, config)


def _row_modules(model: Any, expansion: Expansion) -> dict[str, list[int]]:
    """Names of the embedding modules, as PEFT matches them, to the trained row numbers."""
    wanted = [model.get_input_embeddings()] + ([] if expansion.tied else [model.get_output_embeddings()])
    names = {id(module): name.rsplit(".", 1)[-1] for name, module in model.named_modules()}
    return {names[id(module)]: list(expansion.token_ids) for module in wanted}
