"""Tokenizers of checkpoints with a `tokenizer.json`, read without transformers: importing that takes seconds."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfrag.common.errors import UserError
from selfrag.common.reading import read_json, read_whole

_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that are what `tokenizer.json` says, unless a setting changes it."""
_CHANGES = {"add_bos_token", "add_eos_token", "added_tokens_decoder"}
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # fmt: skip


class FastTokenizer:
    """A tokenizer of the library `tokenizers`, with the names that a tokenizer of transformers has.

    Attributes:
        backend_tokenizer: the tokenizer itself.
        init_kwargs: what `tokenizer_config.json` says.
        name_or_path: its folder.
        chat_template: the program that writes conversations; None where there is none.
        special_tokens_map: the text of each named special token.
        model_max_length: most tokens of a text, as the configuration says.
    """

    is_fast = True

    def __init__(self, directory: Path) -> None:
        """Read the files of a folder.

        Raises:
            UserError: a file is damaged.
        """
        from tokenizers import Tokenizer

        path = directory / "tokenizer.json"
        try:
            self.backend_tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise UserError(f"{directory} has no usable tokenizer: {error}") from error
        self.name_or_path = str(directory)
        self.init_kwargs = _settings(directory)
        self.chat_template = _chat_template(directory, self.init_kwargs)
        self.model_max_length = self.init_kwargs.get("model_max_length") or 10**30
        self.special_tokens_map = {}
        for name in _NAMES:
            if token := _content(self.init_kwargs.get(name)):
                self.special_tokens_map[name] = token
        self._special = list(self.special_tokens_map.values())
        for name in ("additional_special_tokens", "extra_special_tokens"):
            further = self.init_kwargs.get(name)
            if isinstance(further, list):
                self._special += filter(None, map(_content, further))
        known = {token.content for token in self.added_tokens_decoder.values()}
        missing = [token for token in self._special if token not in known]
        self.backend_tokenizer.add_special_tokens(missing)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens."""
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab()
        return vocabulary

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Tokens that are matched before a text is cut, by their ids."""
        decoder: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return decoder

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens that the configuration names."""
        ids = {self.backend_tokenizer.token_to_id(token) for token in self._special}
        return sorted(token_id for token_id in ids if token_id is not None)

    def _id(self, name: str) -> int | None:
        token = self.special_tokens_map.get(name)
        if token is None:
            return None
        token_id: int | None = self.backend_tokenizer.token_to_id(token)
        return token_id

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a text."""
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a text."""
        return self._id("eos_token")

    @property
    def unk_token_id(self) -> int | None:
        """Id of the token for what has none."""
        return self._id("unk_token")

    @property
    def pad_token_id(self) -> int | None:
        """Id of the token that fills up a batch."""
        return self._id("pad_token")

    def convert_ids_to_tokens(self, token_id: int) -> str:
        """Return how an id is spelled in the vocabulary."""
        return str(self.backend_tokenizer.id_to_token(token_id))

    def get_chat_template(self) -> str:
        """Return the chat template.

        Raises:
            UserError: there is none.
        """
        if self.chat_template is None:
            raise UserError(f"{self.name_or_path} has no chat template")
        return self.chat_template


def fast_tokenizer(directory: Path) -> FastTokenizer | None:
    """Return the tokenizer of a folder; None where transformers is needed to read it.

    A class of its own may change what `tokenizer.json` says. Where transformers is not installed, the file is believed.

    Raises:
        UserError: a file is damaged.
    """
    if not (directory / "tokenizer.json").is_file():
        return None
    settings = _settings(directory)
    is_plain = settings.get("tokenizer_class") in _PLAIN_CLASSES
    is_changed = not _CHANGES.isdisjoint(settings)
    if (is_changed or not is_plain) and importlib.util.find_spec("transformers"):
        return None
    return FastTokenizer(directory)


def _content(token: object) -> str | None:
    """Return the text of a token of the settings, which may be an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise UserError(
            f"{path} holds no object; copy or download the checkpoint again"
        )
    return settings


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the template of a file of its own, else of the settings; of several the one named `default`."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return read_whole(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        entries = [item for item in template if isinstance(item, dict)]
        templates = {item.get("name"): item.get("template") for item in entries}
        template = templates.get("default")
    return template if isinstance(template, str) else None
