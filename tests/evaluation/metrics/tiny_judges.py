"""Tiny random judges of entailment, built on the spot: a T5 and a BERT, with the shapes of the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = (
    "premise",
    "hypothesis",
    "title",
    ":",
    ".",
    "ann",
    "wrote",
    "it",
    "rained",
    "in",
    "paris",
    "a",
    "the",
    "0",
    "1",
)


def tokenizer(*, cls: bool) -> Any:
    """Words as tokens; with `[CLS]` and `[SEP]` around pairs, or `</s>` at the end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "</s>")
    vocabulary = {word: at for at, word in enumerate((*special, *WORDS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if cls:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
        )
    else:
        core.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
        )
    known = {"pad_token": "[PAD]", "unk_token": "[UNK]"} | ({"cls_token": "[CLS]", "sep_token": "[SEP]"} if cls else {})
    eos = {} if cls else {"eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **known, **eos)


def save_t5(path: Path, seed: int = 0) -> Path:
    """A T5 of one layer whose output layer knows little but 0, 1 and the end."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    words = tokenizer(cls=False)
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(words),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=words.pad_token_id,
        pad_token_id=words.pad_token_id,
        eos_token_id=words.eos_token_id,
        tie_word_embeddings=False,
        initializer_factor=4.0,
    )
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(path)
    words.save_pretrained(path)
    return path


def save_classifier(
    path: Path, labels: tuple[str, ...] = ("contradiction", "neutral", "entailment"), seed: int = 0
) -> Path:
    """A BERT of one layer with a head of these labels."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    words = tokenizer(cls=True)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=48,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: at for at, label in enumerate(labels)},
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(path)
    words.save_pretrained(path)
    return path
