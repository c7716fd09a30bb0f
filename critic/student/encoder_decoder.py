"""A critic from an encoder-decoder such as FLAN-T5 3B (Self-RAG, Figure 4): the decoder writes the label as words.

Its training is transformers' own, of all weights and with every row of equal weight. No engine serves it: it is loaded
by transformers alone. The causal critics of `training.py` are smaller and faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from critic.cases import GROUPS, Case
from critic.student.card import write_card
from critic.student.prompt import CaseCodec, CriticPrompt
from critic.student.settings import CriticConfig
from critic.student.training import codec_for, examples, load_rows
from selfrag.common import pretrained
from selfrag.interface import (
    FunctionJudge,
    Judge,
    JudgeInput,
    UserError,
    load_training_tokenizer,
    require,
)
from selfrag.judges.entailment import batches
from selfrag.training.rows import MASKED, TrainingExample

AT_ONCE = 8
"""Most rows of a batch in training."""
BATCH_TOKENS = 8_192
"""Tokens of a batch of prompts, padding included."""


def is_encoder_decoder(directory: Path) -> bool:
    """Return whether a checkpoint is of an encoder-decoder."""
    if not (directory / "config.json").is_file():
        return False
    config = pretrained.load("AutoConfig", directory)
    return bool(getattr(config, "is_encoder_decoder", False))


def train_encoder_decoder(
    rows_path: Path, base_dir: Path, out_dir: Path, config: CriticConfig
) -> Path:
    """Train, or continue an interrupted run; return the directory of the checkpoint.

    Labels are words whatever `config.style` says, and all weights are trained whatever the method is.

    Raises:
        UserError: rows or base cannot be used, or the settings hold rows out.
    """
    require("accelerate", extra="train")
    from transformers import (
        DataCollatorForSeq2Seq,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
    )
    from transformers.trainer_utils import get_last_checkpoint

    training, model_dir, run_dir = config.training, out_dir / "model", out_dir / "run"
    if model_dir.exists():
        return model_dir
    if training.held_out:
        raise UserError(
            "held_out is for causal critics; split the rows by `critic split` and set it to 0"
        )
    # 1. Rows as pairs of a prompt and a label.
    tokenizer = load_training_tokenizer(base_dir)
    codec = codec_for(tokenizer, replace(config, style="words"))
    rows, _ = load_rows(rows_path, config)
    made, _ = examples(rows, codec)
    pairs = [_pair(example, codec.eos_id) for example in made]
    # 2. The schedule; a step has `step_rows` rows, or as many as have `step_tokens` tokens on average.
    mean_length = max(1, sum(map(len, made)) // len(made))
    step_rows = training.step_rows or max(1, training.step_tokens // mean_length)
    batch_rows = _batch_rows(step_rows)
    steps_an_epoch = -(-len(pairs) // step_rows)
    steps = training.max_steps or training.epochs * steps_an_epoch
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(run_dir),
        max_steps=steps,
        per_device_train_batch_size=batch_rows,
        gradient_accumulation_steps=step_rows // batch_rows,
        learning_rate=training.learning_rate,
        warmup_steps=round(training.warmup * steps),
        lr_scheduler_type=training.decay,
        weight_decay=training.weight_decay,
        max_grad_norm=training.clip,
        save_steps=training.checkpoint_steps,
        save_total_limit=2,
        seed=training.seed,
        report_to="none",
        disable_tqdm=True,
    )
    model = pretrained.load("AutoModelForSeq2SeqLM", base_dir, dtype="float32")
    collator = DataCollatorForSeq2Seq(tokenizer, model, label_pad_token_id=MASKED)
    trainer = Seq2SeqTrainer(
        model=model, args=arguments, train_dataset=pairs, data_collator=collator
    )
    # 3. Training, and a checkpoint that is there only when it is complete.
    last = get_last_checkpoint(str(run_dir)) if run_dir.exists() else None
    trainer.train(resume_from_checkpoint=last)
    draft = out_dir / "model.partial"
    trainer.save_model(str(draft))
    tokenizer.save_pretrained(str(draft))
    write_card(draft, codec)
    return draft.rename(model_dir)


def _batch_rows(step_rows: int) -> int:
    """Return the largest batch that a step has a whole number of, so that each step has exactly its rows."""
    for rows in range(min(step_rows, AT_ONCE), 1, -1):
        if step_rows % rows == 0:
            return rows
    return 1


def _pair(example: TrainingExample, eos_id: int) -> dict[str, list[int]]:
    """Return a row as what the encoder reads, and what the decoder is to write."""
    label = [token for token in example.labels if token != MASKED]
    prompt = [*example.ids[: len(example) - len(label)], eos_id]
    return {"input_ids": prompt, "attention_mask": [1] * len(prompt), "labels": label}


@dataclass
class LabelScorer:
    """The model, loaded when it is first asked, and the prompt that it was trained with."""

    directory: Path
    codec: CaseCodec

    @cached_property
    def model(self) -> Any:
        """Return the loaded model, on a GPU where there is one."""
        torch = require("torch", extra="cpu")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return (
            pretrained.load("AutoModelForSeq2SeqLM", self.directory).eval().to(device)
        )

    def shares(self, group: str, inputs: Sequence[JudgeInput]) -> list[list[float]]:
        """Return the probability of each label of a group for each input."""
        prompts = [self.codec.prompt(Case(group, state)) for state in inputs]
        return self.probabilities(prompts)

    def probabilities(self, prompts: Sequence[CriticPrompt]) -> list[list[float]]:
        """Return the probability of each label with its end [prompts, labels]; the prompts are of one group."""
        torch = require("torch", extra="cpu")
        from torch.nn.utils.rnn import pad_sequence

        rows: list[list[float]] = [[] for _ in prompts]
        for batch in batches([len(prompt.ids) for prompt in prompts], BATCH_TOKENS):
            encoded = []
            for place in batch:
                ids_of_prompt = (*prompts[place].ids, self.codec.eos_id)
                encoded.append(torch.tensor(ids_of_prompt, device=self.model.device))
            ids = pad_sequence(encoded, batch_first=True)
            mask = pad_sequence(list(map(torch.ones_like, encoded)), batch_first=True)
            with torch.inference_mode():
                states = self.model.get_encoder()(input_ids=ids, attention_mask=mask)
                for option in prompts[batch[0]].options:
                    label = torch.tensor([(*option, self.codec.eos_id)] * len(batch))
                    label = label.to(self.model.device)
                    output = self.model(
                        encoder_outputs=states, attention_mask=mask, labels=label
                    )
                    logprobs = output.logits.float().log_softmax(-1)
                    of_label = logprobs.gather(-1, label[..., None]).sum((1, 2))
                    for place, value in zip(
                        batch, of_label.exp().tolist(), strict=True
                    ):
                        rows[place].append(value)
        return rows


def label_judges(directory: Path, codec: CaseCodec) -> dict[str, Judge]:
    """Return the judges of all groups of a checkpoint; they share its weights."""
    scorer = LabelScorer(directory, codec)
    judges: dict[str, Judge] = {}
    for group, labels in GROUPS.items():
        name = f"critic-{labels.role}"
        judges[group] = FunctionJudge(name, labels, partial(scorer.shares, group))
    return judges
