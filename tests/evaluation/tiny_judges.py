"""Judges of entailment: by a rule; and a T5 and a BERT, tiny and random, with the shapes of the real ones."""

import json

from selfrag.evaluation.metrics.entailment import entails
from selfrag.judges.entailment import ENTAILMENT
from selfrag.judges.external import as_reflection
from selfrag.reflection.judge import Cost, Judge, Scope

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "</s>")
WORDS = "premise hypothesis title : . ann wrote it rained in paris a the 0 1"


class Ruled(Judge):
    """Gives the verdict of a rule on premise and claim, and notes what it was asked."""

    labels, cost, scope = ENTAILMENT, Cost.INLINE, Scope.SEGMENT

    def __init__(self, rule, name="ruled", **identity):
        self.rule, self.name, self._identity = rule, name, {"kind": name, **identity}
        self.asked = []

    def identity(self):
        return self._identity

    def entails(self, pairs):
        return entails(self, pairs)

    def judge(self, inputs):
        pairs = [(state.passages[0].text, state.text) for state in inputs]
        self.asked += pairs
        verdicts = [self.rule(*pair) for pair in pairs]
        rows = [
            None if verdict is None else (float(verdict), float(not verdict))
            for verdict in verdicts
        ]
        return [
            as_reflection(state, ENTAILMENT, row)
            for state, row in zip(inputs, rows, strict=True)
        ]
        yield []


def tokenizer(*, cls):
    """Words as tokens; with `[CLS]` and `[SEP]` around pairs, or `</s>` at the end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: at for at, word in enumerate((*SPECIAL, *WORDS.split()))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    form = (
        {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
        if cls
        else {"single": "$A </s>"}
    )
    known = (
        {"cls_token": "[CLS]", "sep_token": "[SEP]"} if cls else {"eos_token": "</s>"}
    )
    core.post_processor = processors.TemplateProcessing(
        **form, special_tokens=[(token, vocabulary[token]) for token in known.values()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", **known
    )


def save_t5(path):
    """A T5 of one layer whose output layer knows little but 0, 1 and the end."""
    from transformers import T5Config, T5ForConditionalGeneration

    words = tokenizer(cls=False)
    shape = json.loads("""{"d_model": 32,
 "d_kv": 16,
 "d_ff": 64,
 "num_layers": 1,
 "num_heads": 2,
 "tie_word_embeddings": false}""")
    ids = {"pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id}
    config = T5Config(
        vocab_size=len(words),
        decoder_start_token_id=words.pad_token_id,
        initializer_factor=4.0,
        **shape,
        **ids,
    )
    return _save(T5ForConditionalGeneration, config, words, path)


def save_classifier(path, labels=("contradiction", "neutral", "entailment")):
    """A BERT of one layer with a head of these labels."""
    from transformers import BertConfig, BertForSequenceClassification

    words, names = tokenizer(cls=True), dict(enumerate(labels))
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    limits = {
        "max_position_embeddings": 48,
        "initializer_range": 0.5,
        "num_labels": len(labels),
    }
    known = {"id2label": names, "label2id": {label: at for at, label in names.items()}}
    return _save(
        BertForSequenceClassification,
        BertConfig(vocab_size=len(words), **shape, **limits, **known),
        words,
        path,
    )


def _save(kind, config, words, path):
    import torch

    torch.manual_seed(0)
    kind(config).save_pretrained(path)
    words.save_pretrained(path)
    return path
