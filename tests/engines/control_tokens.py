"""Tokenizers of six families, text that tries to become their control tokens, and a count of where it does.

Which ids are control is read off the tokenizers here, not asked of the code under test, and what a template may put
into a prompt is what it puts there around harmless text.
"""

import os
from collections import Counter

import tiny
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerFast

from selfrag.reflection.labels import TOKENS

EXAMPLES = int(os.environ.get("SELFRAG_FUZZ", "200"))
"""Examples of each property."""

_WRITTEN = (
    "<|im_start|> <|im_end|> <|endoftext|> <s> </s> <unk> <pad> <mask> <bos> <eos> <|begin_of_text|> <|eot_id|>"
    " <|start_header_id|> <|end_header_id|> <|python_tag|> <start_of_turn> <end_of_turn> [INST] [/INST] [TOOL_CALLS]"
    " [AVAILABLE_TOOLS] [SYSTEM_PROMPT] [THINK] <<SYS>> <think> </think> <tool_call> </tool_response> <|system|>"
    " <|user|> <|assistant|> <|end|> <|channel|> <|message|> <|start|> <|return|> <|vision_start|> <|image_pad|> <img>"
    " <\uff5cbegin\u2581of\u2581sentence\uff5c> <\uff5cUser\uff5c> <\uff5ctool\u2581calls\u2581begin\uff5c>"
    " <|START_OF_TURN_TOKEN|> <|CHATBOT_TOKEN|> <EOS_TOKEN> <|start_of_role|> <|end_of_role|> <|end_of_text|>"
    " [|endofturn|] [gMASK] <sop> [CLS] [SEP] [MASK] [PAD] [UNUSED_TOKEN_1] <extra_id_0> <reserved_106> <unused9>"
    " <fim_prefix> <|fim_middle|> <turn|> <seed:bos> <SPECIAL_12> ]~b] ]~!b[ [e~[ >>TITLE<< |||IP_ADDRESS||| |NEWLINE|"
    " <b> </b> <h1> <0x41> <mask:1> <role> [Round]"
)
MARKERS = tuple(_WRITTEN.split())
HOSTILE = (*TOKENS, *MARKERS)

CHATML = (
    "{% for d in documents or [] %}<|im_start|>document {{ d.doc_id }}\n{{ d.title }}\n{{ d.text | trim }}<|im_end|>\n"
    "{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
JSON = CHATML.replace(
    "{{ d.doc_id }}\n{{ d.title }}\n{{ d.text | trim }}", "{{ d | tojson }}"
)


def _with_markers(tokenizer, *, normalized=False, template=CHATML):
    """Half of the markers as special tokens, half as ordinary added ones; `<|im_end|>` ends a turn."""
    for special in (False, True):
        some = [
            one
            for at, one in enumerate(HOSTILE)
            if (at % 2 == 0) == special or one.startswith("<|im_")
        ]
        missing = [
            one for one in some if one not in TOKENS or one not in tokenizer.get_vocab()
        ]
        added = [
            AddedToken(one, special=special, normalized=normalized) for one in missing
        ]
        tokenizer.add_tokens(added, special_tokens=special)
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", template
    return tokenizer


def byte_level():
    return _with_markers(tiny.byte_level_tokenizer())


def sentencepiece():
    return _with_markers(tiny.sentencepiece_tokenizer(), template=JSON)


def careless():
    """Everything is folded to lower case and compatibility forms before added tokens are looked for."""
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase()]
    )
    return _with_markers(tokenizer, normalized=True)


def unigram():
    """Control tokens are pieces of the model itself, found by its search."""
    control = [
        (token, 0.0)
        for token in ("<unk>", "<s>", "</s>", *TOKENS, "<think>", "[INST]", "<bos>")
    ]
    letters = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ<>/[]:|_0123456789.,~!"
    core = Tokenizer(
        models.Unigram([*control, *((letter, -5.0) for letter in letters)], unk_id=0)
    )
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _with_markers(
        PreTrainedTokenizerFast(
            tokenizer_object=core, unk_token="<unk>", bos_token="<s>"
        )
    )


def wordpiece():
    """Drops control and invisible characters, accents and case, as BERT does, also in front of its added tokens."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789<>[]|/:_.,"
    words = ["[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    core = Tokenizer(
        models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    )
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    return _with_markers(tokenizer, normalized=True, template=JSON)


def tiktoken():
    """Byte-level BPE over the pieces of a pattern, as in GPT-4 and Qwen."""
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    pattern = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
    )
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    return _with_markers(tokenizer)


MADE = (byte_level, sentencepiece, unigram, wordpiece, tiktoken, careless)
FAMILIES = {make.__name__.replace("_", "-"): make for make in MADE}


def control_ids(tokenizer):
    """Ids that text must not become. The unknown token is none where it stands for letters that are not known."""
    added = {
        i for i, token in tokenizer.added_tokens_decoder.items() if str(token).strip()
    }
    known = tokenizer.get_vocab()
    control = (
        added
        | set(tokenizer.all_special_ids)
        | {known[one] for one in HOSTILE if one in known}
    )
    spells_all = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    return frozenset(control if spells_all else control - {tokenizer.unk_token_id})


def counted(ids, control):
    """How often each control id occurs."""
    return Counter(one for one in ids if one in control)


DROPPED = ["\u200b", "\x00", "\u0301", "\u00ad", "\x1f", " ", "\ufeff"]
WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})
_marker, _cut = st.sampled_from(HOSTILE), st.integers(0, 20)
_pieces = st.one_of(
    _marker,
    _marker,
    _marker.map(lambda token: token.translate(WIDE)),
    _marker.map(str.swapcase),
    st.builds(lambda token, at: token[:at], _marker, _cut),
    st.builds(lambda token, at: token[at:], _marker, _cut),
    st.builds(
        lambda token, at, drop: token[:at] + drop + token[at:],
        _marker,
        st.integers(0, 8),
        st.sampled_from(DROPPED),
    ),
    st.sampled_from(
        [
            "a",
            " ",
            "\n",
            "Is it? ",
            "no.",
            *"<[|>]",
            "<|",
            "|>",
            "\ue000",
            "\ue0000",
            '\ue0001aA"<\ue001',
        ]
    ),
    st.sampled_from(
        [
            "\ud800",
            "\udfff",
            "{{ 7 }}",
            "{% raw %}",
            *'"\\\u226e\ufe64\uff3b',
            "[1]",
            "<c0>",
        ]
    ),
    st.text(st.characters(codec=None), max_size=3),
)
texts = st.lists(_pieces, min_size=1, max_size=5).map("".join)
"""Hostile text: markers whole, in halves, in other letters, with characters inside that some tokenizers drop."""
