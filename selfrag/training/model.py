"""The model under training: a base, expanded, with LoRA and token rows (or everything) trainable; and its losses."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from selfrag.common.errors import UserError, require
from selfrag.common.pretrained import (
    fast_format,
    leave_out_cudnn_attention,
    load,
    quiet,
)
from selfrag.loading import check_base
from selfrag.training.expansion import Expansion, expand, unexpanded
from selfrag.training.lora import Fused, TokenRows, fuse, replaceable, token_ids
from selfrag.training.packing import PACKED, Pack, apart, isolates, register_attention
from selfrag.training.rows import TargetGroup
from selfrag.training.settings import (
    Lora,
    Precision,
    Quantization,
    Reach,
    TrainingConfig,
)


def target_losses(
    model: Any,
    pack: Pack,
    *,
    packed: bool = True,
    keeps: bool = True,
    rowwise: bool = False,
) -> tuple[Tensor, Tensor]:
    """Cross entropy and hit of every target position; logits are made there and nowhere else.

    Args:
        model: a causal language model, or what PEFT, DDP, FSDP or DeepSpeed made of it.
        pack: on the model's device.
        packed: the model runs `packing.packed_attention`; otherwise an attention of transformers, which reads the
            borders of the rows off the positions.
        keeps: the model's forward has `logits_to_keep`; see `keeps_logits`.
        rowwise: one row after the other, for models whose rows would see each other in a pack; see `packing.isolates`.

    Returns:
        Losses [n] in float32 with a gradient, and whether the target was the most probable token [n].
    """
    losses, hits = [], []
    for part in apart(pack) if rowwise else [pack]:
        options: dict[str, Any] = {"position_ids": part.positions}
        if (
            rowwise
        ):  # positions and borders of a row that is alone are the model's own business
            options = {"attention_mask": torch.ones_like(part.ids)}
        elif packed:
            options["row_lengths"] = part.row_lengths
        if keeps:
            options["logits_to_keep"] = part.predictors
        logits = model(input_ids=part.ids, use_cache=False, **options).logits[0]
        if not keeps:
            logits = logits[part.predictors]
        logits = logits.float()
        losses.append(cross_entropy(logits, part.targets, reduction="none"))
        hits.append(logits.detach().argmax(-1) == part.targets)
    return torch.cat(losses), torch.cat(hits)


def keeps_logits(causal: Any) -> bool:
    """Return whether a causal language model can make logits at chosen positions only; nearly all can."""
    return "logits_to_keep" in inspect.signature(type(causal).forward).parameters


_BY_LABEL = (
    TargetGroup.RETRIEVE,
    TargetGroup.ISREL,
    TargetGroup.ISSUP,
    TargetGroup.ISUSE,
)


@dataclass(frozen=True, slots=True)
class LossTally:
    """Sums over target positions; two tallies add up."""

    loss_sum: float = 0.0  # weighted loss
    weight_sum: float = 0.0  # weights
    count: Counter[int] = field(default_factory=Counter)  # positions by group
    losses: Counter[int] = field(default_factory=Counter)  # unweighted loss by group
    # positions by group where the target was the most probable token
    hits: Counter[int] = field(default_factory=Counter)
    # positions by target id, reflection groups only
    label_count: Counter[int] = field(default_factory=Counter)
    label_hits: Counter[int] = field(default_factory=Counter)  # hits by target id

    def __add__(self, tally: LossTally) -> LossTally:
        return LossTally(
            *(
                getattr(self, item.name) + getattr(tally, item.name)
                for item in fields(self)
            )
        )

    @property
    def loss(self) -> float:
        """Weighted mean loss, what the optimiser sees."""
        if self.weight_sum:
            return self.loss_sum / self.weight_sum
        return 0.0

    def as_dict(self, tokenizer: Any) -> dict[str, Any]:
        """`loss`, then per group and per label the count, the mean loss and the accuracy."""
        groups = {
            TargetGroup(g).name.lower(): {
                "n": n,
                "loss": self.losses[g] / n,
                "accuracy": self.hits[g] / n,
            }
            for g, n in sorted(self.count.items())
        }
        labels = {
            str(tokenizer.convert_ids_to_tokens(i)): {
                "n": n,
                "accuracy": self.label_hits[i] / n,
            }
            for i, n in sorted(self.label_count.items())
        }
        return {"loss": self.loss, "groups": groups, "labels": labels}


def measure(load: Pack, losses: Tensor, hits: Tensor) -> LossTally:
    """Tally of one pack from its losses [n] and hits [n]."""
    tally = LossTally(float((losses * load.weights).sum()), float(load.weights.sum()))
    columns = (
        load.groups.tolist(),
        load.targets.tolist(),
        losses.tolist(),
        hits.tolist(),
    )
    for group, target, loss, hit in zip(*columns, strict=True):
        tally.count[group] += 1
        tally.losses[group] += loss
        tally.hits[group] += hit
        if group in _BY_LABEL:
            tally.label_count[target] += 1
            tally.label_hits[target] += hit
    return tally


def linear_layers(model: Any) -> list[str]:
    """Last names of the linear modules, without the output layer over the vocabulary; sorted."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, Linear | Conv1D) and module is not head
        }
    )


def last_layers(model: Any, count: int) -> list[int]:
    """Numbers of the last `count` layers; all of a model that has fewer."""
    layers = int(model.config.get_text_config().num_hidden_layers)
    return list(range(max(0, layers - count), layers))


DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(eq=False)
class Trainee:
    """A trainable model that computes the loss at target positions.

    Trained numbers are float32 whatever the model computes in, so that small steps are not rounded away.
    """

    model: Any  # the PEFT model (`lora`) or the plain causal language model (`full`)
    tokenizer: Any  # expanded
    expansion: Expansion  # what the expansion did
    weights: dict[str, Parameter]  # trained parameters by name, without the token rows
    # the 15 trained token rows by name, [15, width]; input and output rows are one where embeddings are tied
    rows: dict[str, Parameter]
    fused: Fused  # what computes in place of the model's own layers
    # for `full`: the model's parameters, of which `weights` are the float32 originals
    computed: dict[str, Parameter] = field(default_factory=dict)
    rowwise: bool = False  # rows are computed one after the other, because this model would mix them in a pack

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Everything that is trained, in a fixed order."""
        return {**self.weights, **self.rows}

    @property
    def differentiated(self) -> list[Parameter]:
        """Return what to take gradients of, in the order of `parameters`."""
        return [
            self.computed.get(name, parameter)
            for name, parameter in self.parameters.items()
        ]

    def losses(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """Cross entropy and hit of every target position; logits are made there and nowhere else.

        Returns:
            Losses [n] in float32 with a gradient, and whether the target was the most probable token [n].
        """
        causal = self.causal
        if self.fused.activation is not None:
            self.fused.activation.mark(pack.ids, pack.row_lengths)
        packed = causal.config._attn_implementation == PACKED
        return target_losses(
            causal,
            pack.to(causal.device),
            packed=packed,
            keeps=keeps_logits(causal),
            rowwise=self.rowwise,
        )

    @property
    def causal(self) -> Any:
        """Return the causal language model, without PEFT's shell."""
        if hasattr(self.model, "get_base_model"):
            return self.model.get_base_model()
        return self.model

    def refresh(self) -> None:
        """Call after each change of the parameters."""
        self.fused.refresh()
        with torch.no_grad():
            for name, parameter in self.computed.items():
                parameter.copy_(self.weights[name])


def load_trainee(
    base_dir: Path,
    config: TrainingConfig,
    *,
    attend: str = PACKED,
    plain: bool = False,
) -> Trainee:
    """Load a base checkpoint, expand its vocabulary, and make it trainable.

    Args:
        base_dir: a Hugging Face checkpoint with its tokenizer.
        config: the run's settings, with a precision that is settled. Method `lora` trains LoRA pairs on every linear
            layer and the 15 token rows, `full` all weights; `quantize` wants `plain`.
        attend: the attention, by transformers' name.
        plain: leave every forward to transformers and PEFT, for wrappers that cut parameters into shards. `full` then
            trains the model's own parameters, token rows among them.

    Raises:
        UserError: the base, or `reach`, cannot be trained so, or bitsandbytes is not installed.
    """
    from safetensors import SafetensorError

    reach, place = config.reach, device_of(config.device)
    if config.method == "full" and reach != Reach():
        raise UserError(
            "token_rows, last_layers and invocation are for LoRA; method 'full' trains everything"
        )
    if plain and reach.invocation:
        raise UserError(
            "an activated LoRA is trained by the loop for one process; take a recipe without [scale]"
        )
    check_base(base_dir)
    register_attention()
    dtype = DTYPES[config.precision]
    more = _quantized(config.quantize, dtype)
    try:
        tokenizer = load("AutoTokenizer", base_dir)
        model, rowwise = _loaded(base_dir, dtype, attend, more)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"{base_dir} holds no causal language model with its tokenizer: {error}"
        ) from error
    if rowwise and reach.invocation:
        raise UserError(
            f"{type(model).__name__} cannot be trained as an activated LoRA: it mixes packed rows"
        )
    model.config.use_cache = False
    expansion = expand(model, tokenizer) if reach.token_rows else unexpanded(model)
    if config.quantize == "none":
        model.to(place)
    torch.manual_seed(config.seed)
    if config.method == "lora":
        trainee = _lora(model, tokenizer, expansion, config.lora, reach, plain=plain)
    elif plain:
        trainee = Trainee(
            model, tokenizer, expansion, dict(model.named_parameters()), {}, Fused()
        )
    else:
        trainee = _full(model, tokenizer, expansion)
    trainee.rowwise = rowwise
    return trainee


def _quantized(quantize: Quantization, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments that load the linear layers in 4 bits, on the device of this process; none without quantisation."""
    if quantize == "none":
        return {}
    require("bitsandbytes", extra="qlora")
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantize,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    device: str | int = "cpu"
    if torch.accelerator.is_available():
        device = torch.accelerator.current_device_index()
    return {"quantization_config": settings, "device_map": {"": device}}


def _loaded(
    base_dir: Path, dtype: torch.dtype, attend: str, more: dict[str, Any]
) -> tuple[Any, bool]:
    """Load the model, and find out whether its rows must be computed one after the other."""

    def attending(kind: str | None) -> Any:
        model = load(
            "AutoModelForCausalLM",
            base_dir,
            dtype=dtype,
            attn_implementation=kind,
            **more,
        )
        _without_dropout(model)
        return model

    try:
        model = attending(attend)
        if isolates(model):
            return model, False
    except (
        KeyError,
        ImportError,
    ):  # families whose attention is a class of a fixed list
        pass
    return attending(None), True


def chosen_precision(precision: Precision, device: str) -> tuple[Precision, str]:
    """`bf16` or `fp32`, and why: what was asked for, or for `auto` what the device is fast in."""
    if precision != "auto":
        return precision, "as asked for"
    fast = fast_format(device)
    return ("bf16" if fast.name == "bfloat16" else "fp32"), fast.reason


def device_of(name: str) -> torch.device:
    """Return a device by its name.

    Raises:
        UserError: the device name is unknown, or this machine or this build of torch has no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(
            f"device {name!r} is none that torch knows; give cpu or cuda"
        ) from error
    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    if device.type != "cpu" and (
        accelerator is None or accelerator.type != device.type
    ):
        raise UserError(
            f"device {name!r}: this torch {torch.__version__} finds none here; give cpu"
        )
    if device.type == "cuda":
        leave_out_cudnn_attention()
    return device


def with_adapter(
    model: Any, expansion: Expansion, lora: Lora, reach: Reach | None = None
) -> Any:
    """Wrap a model into a PEFT model: LoRA on the linear layers, the 15 rows trainable where it was expanded.

    Raises:
        UserError: `reach` asks for more layers than there are.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    reach = reach or Reach()
    rows = None
    if reach.token_rows:
        rows = {
            name: list(expansion.token_ids) for name in _row_modules(model, expansion)
        }
    targets: list[str] | str = "all-linear"
    layers = None
    if reach.last_layers is not None:
        targets, layers = linear_layers(model), last_layers(model, reach.last_layers)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        layers_to_transform=layers,
        alora_invocation_tokens=list(reach.invocation) or None,
        trainable_token_indices=rows,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        with quiet():
            return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(
            f"PEFT has no LoRA for {type(model).__name__} ({error}); train with method 'full'"
        ) from error


def _without_dropout(model: Any) -> None:
    """Turn dropout off: a few epochs over instructions need none, and both trainers must compute the same loss."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
            continue
        for name, value in list(vars(module).items()):
            # read by functions, under many names
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)


def _lora(
    model: Any,
    tokenizer: Any,
    expansion: Expansion,
    lora: Lora,
    reach: Reach,
    *,
    plain: bool,
) -> Trainee:
    adapted = with_adapter(model, expansion, lora, reach)
    fused = Fused() if plain else fuse(adapted)
    trained = {
        name: value for name, value in adapted.named_parameters() if value.requires_grad
    }
    rows = {
        name: value
        for name, value in trained.items()
        if "trainable_tokens_delta" in name
    }
    for value in rows.values():
        value.data = value.data.float()
    weights = {name: value for name, value in trained.items() if name not in rows}
    return Trainee(adapted, tokenizer, expansion, weights, rows, fused)


def _full(model: Any, tokenizer: Any, expansion: Expansion) -> Trainee:
    computed = dict(model.named_parameters())
    weights = {
        name: Parameter(value.detach().float().clone())
        for name, value in computed.items()
    }
    rows: dict[str, Parameter] = {}
    tokens = []
    for name, module in _row_modules(model, expansion).items():
        if replaceable(module):
            ids = token_ids(expansion.token_ids, module.weight)
            rows[f"{name}.rows"] = Parameter(module.weight.detach()[ids].float())
            tokens.append(TokenRows(module.weight, rows[f"{name}.rows"], ids))
            module.forward = tokens[-1].forward_of(module)
    if expansion.tied and tokens:
        head = model.get_output_embeddings()
        head.forward = tokens[0].forward_of(head)
    return Trainee(
        model,
        tokenizer,
        expansion,
        weights,
        rows,
        Fused(tokens=tuple(tokens)),
        computed,
    )


def _row_modules(model: Any, expansion: Expansion) -> dict[str, Any]:
    """Return the modules that hold reflection rows, by last name, as PEFT matches them; one where they are tied."""
    modules = [model.get_input_embeddings()]
    if not expansion.tied:
        modules.append(model.get_output_embeddings())
    names = {
        id(module): name.rsplit(".", 1)[-1] for name, module in model.named_modules()
    }
    return {names[id(module)]: module for module in modules}
