"""Tiny random models and tokenizers built on the spot, without network: what tests of real engines run on.

Every function is deterministic (seeded) and writes an ordinary Hugging Face checkpoint directory. The tokenizers are
trained on a few sentences but behave like the real families: byte-level BPE (GPT-2, SmolLM2) and llama-style
sentencepiece BPE (word-start mark, byte fallback, `<s>` in front of every sequence). Weights are random, wide enough
for peaked distributions, so greedy decoding has no near-ties.
"""

import json

from selfrag.reflection.labels import TOKENS

SENTENCES = (
    "### Instruction:\nWho wrote the first novel about the sea?\n\n### Response:\n",
    "The capital of France is Paris, and the river through it is the Seine.",
    "Water boils at 100 degrees Celsius (212 degrees Fahrenheit) at sea level.",
    "She said: 'It doesn't matter; we're leaving at 7:45 tomorrow, aren't we?'",
    "In 1969 two people walked on the Moon. They came back with 21.5 kg of rock.",
    "def f(x):\n    return {'a': x, 'b': [1, 2, 3]}\n",
    "Ein Süßwasserfisch schwimmt gemächlich; l'été dernier, il pleuvait à Genève.",
    "A passage may say anything: relevant, irrelevant, supported, contradictory or useful.",
)
"""Training text of the tokenizers."""


LABEL_WORDS = "yes no Yes No fully partially not Fully Partially Not new nothing same New Nothing Same"
"""What chat models are asked to reply; their tokenizers have these words as tokens."""


def _trained(
    core,
    vocab_size,
    special,
    alphabet,
    sentences=SENTENCES,
):
    from tokenizers import trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator(sentences, trainer)
    return core


SMOL = {
    "unk_token": "<|endoftext|>",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
}


def byte_level_tokenizer(
    *,
    reflection=True,
    vocab_size=400,
    special=SMOL,
    more=(),
    sentences=SENTENCES,
):
    """A byte-level BPE tokenizer; by default as SmolLM2 has it: `<|im_start|>` as BOS (never added) and `<|im_end|>`.

    `special` are its named special tokens, `more` further ones.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    _trained(
        core,
        vocab_size,
        [*special.values(), *more],
        pre_tokenizers.ByteLevel.alphabet(),
        sentences,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, clean_up_tokenization_spaces=False, **special
    )
    return with_reflection_tokens(tokenizer) if reflection else tokenizer


def sentencepiece_tokenizer(*, reflection=True, vocab_size=500):
    """A llama-style tokenizer: ids 0..2 are `<unk>`, `<s>`, `</s>`, then 256 byte tokens; `<s>` comes first."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaTokenizerFast

    core = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = json.loads(_trained(core, vocab_size, special, []).to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = LlamaTokenizerFast(
        vocab=model["vocab"], merges=merges, add_bos_token=True
    )
    return with_reflection_tokens(tokenizer) if reflection else tokenizer


def with_reflection_tokens(tokenizer):
    """Append the 15 reflection tokens, in the order of the published checkpoints, as special tokens."""
    from transformers import AddedToken

    tokens = [AddedToken(token, special=True, normalized=False) for token in TOKENS]
    tokenizer.add_tokens(tokens, special_tokens=True)
    return tokenizer


def _common(tokenizer, tie):
    common = {
        "vocab_size": len(tokenizer),
        "tie_word_embeddings": tie,
        "initializer_range": 0.3,
        "dtype": "float32",
    }
    return common | {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def save_llama(
    path,
    *,
    family="byte_level",
    reflection=True,
    tie=False,
    context=1024,
):
    """Write a two-layer random Llama that transformers and vLLM load, with a tokenizer of a family; returns `path`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    make = byte_level_tokenizer if family == "byte_level" else sentencepiece_tokenizer
    tokenizer = make(reflection=reflection)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 32,
    }
    sizes |= {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": context,
    }
    return _save(
        LlamaForCausalLM,
        LlamaConfig(**sizes, **_common(tokenizer, tie)),
        tokenizer,
        path,
    )


def save_qwen2(path, version=2):
    """Write a two-layer random Qwen2, which has biases of queries, keys and values, or a Qwen3; norms are not 1."""
    import transformers

    tokenizer = byte_level_tokenizer()
    config = getattr(transformers, f"Qwen{version}Config")(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16 if version == 2 else 32,
        max_position_embeddings=512,
        **_common(tokenizer, tie=True),
    )
    model_class = getattr(transformers, f"Qwen{version}ForCausalLM")
    return _save(model_class, config, tokenizer, path, is_uneven=True)


def save_qwen3(path):
    """Write a Qwen3, whose heads have norms and together are wider than the hidden states."""
    return save_qwen2(path, 3)


_QWEN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
_LLAMA = """{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""


def save_chat(path, family, *, context=2048):
    """Write a random chat model without reflection tokens, a Qwen 3 or a Llama, with the chat template of `family`."""
    import transformers

    if family == "qwen":
        template = _QWEN
        special = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
        more = ("<|im_start|>", "<think>", "</think>")
    else:
        template = _LLAMA
        special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
        more = ("<|start_header_id|>", "<|end_header_id|>")
    # Each word stands at the beginning of texts, where a reply has it without a space.
    sentences = [*SENTENCES, *LABEL_WORDS.split() * 50]
    tokenizer = byte_level_tokenizer(
        reflection=False,
        vocab_size=500,
        special=special,
        more=more,
        sentences=sentences,
    )
    tokenizer.chat_template = template
    name = {"qwen": "Qwen3", "llama": "Llama"}[family]
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 32,
    }
    sizes |= {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": context,
    }
    config = getattr(transformers, f"{name}Config")(
        **sizes, **_common(tokenizer, tie=False)
    )
    return _save(getattr(transformers, f"{name}ForCausalLM"), config, tokenizer, path)


def save_gpt2(path, *, reflection=True, tie=True):
    """Write a two-layer random GPT-2: learned positions, byte-level BPE, tied or untied output matrix."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_level_tokenizer(reflection=reflection)
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=2, n_positions=512, **_common(tokenizer, tie)
    )
    return _save(GPT2LMHeadModel, config, tokenizer, path)


def save_bert(path):
    """Write a BERT with random weights and a WordPiece vocabulary of letters, without a pooler: a text encoder."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(path / "vocab.txt"), model_max_length=64).save_pretrained(
        path
    )
    torch.manual_seed(7)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(path)
    return path


def _save(model_class, config, tokenizer, path, seed=0, is_uneven=False):
    # uneven: norms are not 1, biases not 0
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config)
        for name, parameter in model.named_parameters():
            if is_uneven and ("norm" in name or "bias" in name):
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
