"""Turning names into things: a checkpoint directory, its tokenizer, adapters, a retriever; packages register more."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval.index import MODES, load_manifest, open_index
from retrieval.passage import Retriever
from retrieval.search import IndexRetriever, as_retriever
from selfrag.common import pretrained
from selfrag.common.errors import UserError, require
from selfrag.common.fast_tokenizer import fast_tokenizer
from selfrag.common.plugins import load_registered, names, plugin, registered
from selfrag.common.reading import user_path

if TYPE_CHECKING:
    from retrieval.remote import RemoteIndexes

DEMO = "demo"
"""Name of the default model, index and encoder."""
RETRIEVERS = "selfrag.retrievers"
"""Entry points of retrievers: each names a `Retriever`, asked for by NAME, or a function of the text after the colon of
NAME:TEXT that gives one."""
REMOTE_INDEXES = "selfrag.remote_indexes"
"""Entry points by the scheme of an address: each names a `retrieval.remote.RemoteIndexes`."""
WEIGHTS, CALIBRATOR = "combined.json", "certainty.json"
"""Files in the folder of an intrinsic: weights of tokens and words, and what calibrates the scores of a beam."""


_GGUF = ".gguf"
_AT_ADDRESS = re.compile(r"(?P<name>.*)@(?P<url>\w+://.*)", re.DOTALL)


def model_address(name_or_path: str | Path) -> tuple[str, str] | None:
    """Return name and address of `NAME@URL`, a model behind an address; None for any other name."""
    parts = _AT_ADDRESS.fullmatch(str(name_or_path))
    return None if parts is None else (parts["name"], parts["url"])


def resolve_model(name_or_path: str | Path) -> Path:
    """Directory of a checkpoint: of a registered name such as `demo`, a local one, or a snapshot from the hub.

    A GGUF file is converted to one, once.
    """
    if (make := registered("selfrag.models", name_or_path)) is not None:
        return Path(make())
    path = local_model(name_or_path)
    if path is None:
        name = str(name_or_path)
        return fetch_snapshot(name, name, ", or give a directory")
    if path.suffix == _GGUF:
        from selfrag.common.gguf_files import checkpoint_of

        return checkpoint_of(path)
    return path


def local_model(name_or_path: str | Path) -> Path | None:
    """Return a local checkpoint, a directory or a GGUF file; None for what may be a name on the hub."""
    path = user_path(name_or_path)
    if path.suffix == _GGUF:
        if not path.is_file():
            raise UserError(f"no GGUF file at {path}")
        return path
    if path.is_dir():
        if not (path / "config.json").is_file():
            if (path / "adapter_config.json").is_file():
                raise UserError(
                    f"{path} is an adapter; merge it first: selfrag train merge {path} --base BASE -o MODEL"
                )
            for file in sorted(path.glob(f"*{_GGUF}")):
                raise UserError(f"{path} holds GGUF files; give one, such as {file}")
            raise UserError(
                f"{path} holds no config.json; give the directory of a Hugging Face checkpoint"
            )
        return path
    name = str(name_or_path)
    if (
        isinstance(name_or_path, Path)
        or name.count("/") != 1
        or name.startswith((".", "/", "~"))
    ):
        raise UserError(
            f"no model at {name}; give 'demo', 'demo-base', a checkpoint directory, a GGUF file or a hub name such as"
            " owner/model"
        )
    return None


def resolve_base(name_or_path: str | Path) -> Path:
    """Return the directory of a checkpoint that is trained further, or that an adapter is put into.

    Raises:
        UserError: as `resolve_model`, or its weights are quantised.
    """
    path = resolve_model(name_or_path)
    check_base(path)
    return path


def check_base(path: Path) -> None:
    """Refuse a checkpoint with quantised weights: neither full training nor merging can change them."""
    kind = pretrained.quantisation(path)
    if kind is not None:
        raise UserError(
            f"{path} is quantised ({kind}), and such weights cannot be trained or merged into; give the unquantised"
            " base that it was made from, which `selfrag train adapter --recipe gpu-24gb` packs into 4 bits itself"
        )


def fetch_snapshot(repository: str, what: str, otherwise: str, **options: Any) -> Path:
    """Return the folder of a repository of the hub, fetched if it is not there yet."""
    hub = require("huggingface_hub", extra="cpu")
    try:
        return Path(hub.snapshot_download(repository, **options))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{what} could not be fetched from the hub ({reason}); check the name and the network{otherwise}"
        ) from error


def index_directory(name_or_path: str | Path) -> Path:
    """Return the directory of an index: of a registered name such as `demo`, else the one given."""
    make = registered("selfrag.indexes", name_or_path)
    return user_path(name_or_path) if make is None else Path(make())


_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What transformers raises for files that it cannot use."""


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a checkpoint, for texts, ids and chat templates; without transformers if it can be."""
    return fast_tokenizer(path) or load_training_tokenizer(
        path, trust_remote_code=trust_remote_code
    )


def load_training_tokenizer(path: Path, *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of transformers, which can be changed, pads and saves itself.

    No code of the checkpoint is run unless the user trusts it.
    """
    try:
        return pretrained.load(
            "AutoTokenizer", path, trust_remote_code=trust_remote_code
        )
    except _DAMAGED as error:
        raise UserError(f"{path} has no usable tokenizer: {error}") from error


def check_chat_template(tokenizer: Any, model: str | Path) -> None:
    """Refuse a model without reflection tokens that has no chat template either."""
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"{model} has neither reflection tokens nor a chat template; give a Self-RAG checkpoint or an"
            " instruction-tuned model, or train this one: selfrag train adapter ROWS --base MODEL"
        )


def load_checkpoint(
    name_or_path: str | Path, *, trust_remote_code: bool = False
) -> tuple[Path, Any]:
    """Return the directory and the tokenizer of a checkpoint."""
    path = resolve_model(name_or_path)
    return path, load_tokenizer(path, trust_remote_code=trust_remote_code)


def load_retriever(
    retriever: Retriever | str | Path | None, *, demo: bool
) -> Retriever | None:
    """Return a callable as it is, or what a name stands for; the demo index for None where `demo`.

    A name is a folder of an index, before which `words:`, `dense:` or `hybrid:` sets how it is searched; the address of
    a search server; a retriever of `selfrag.retrievers`; or MODULE:NAME. Of several with commas between them passages
    are taken in turn.

    Raises:
        UserError: there is no such index or retriever, or it cannot be used.
    """
    if retriever is None:
        return load_index(DEMO) if demo else None
    if isinstance(retriever, Path):
        return load_index(retriever)
    if not isinstance(retriever, str):
        return as_retriever(retriever)
    retrievers = list(map(open_retriever, retriever_parts(retriever)))
    if len(retrievers) == 1:
        return retrievers[0]
    from retrieval.combining import join

    return join(*retrievers)


def retriever_parts(name: str) -> list[str]:
    """Return the names of joined retrievers, such as `demo,searxng:http://HOST:PORT`; a folder of that name is one."""
    if Path(name).exists():
        return [name]
    parts = map(str.strip, name.split(","))
    return list(filter(None, parts)) or [name]


_MODULE_AND_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def check_index(name: str) -> None:
    """Refuse the name of a retriever of which an index is missing, or which may be mistyped.

    Nothing is loaded, and no address is asked.
    """
    for part in retriever_parts(name):
        scheme, colon, index = part.partition(":")
        if colon and scheme in MODES:
            part = index
        elif colon or is_plugin(part):
            continue
        if part in names("selfrag.indexes"):
            continue
        if not index_directory(part).exists():
            known = ", ".join(names(RETRIEVERS)) or "none"
            raise UserError(
                f"no index at {part}, and no retriever of that name ({known}); build an index: selfrag index build"
            )
        load_manifest(part)


def is_plugin(name: str) -> bool:
    """Return whether a name is that of a retriever of `selfrag.retrievers` or MODULE:NAME, and of no index."""
    scheme, _, _ = name.partition(":")
    if Path(name).exists() or scheme in MODES or remote_indexes(name) is not None:
        return False
    return scheme in names(RETRIEVERS) or bool(_MODULE_AND_NAME.fullmatch(name))


def open_retriever(name: str) -> Retriever:
    """Return one retriever by its name, see `load_retriever`."""
    scheme, colon, text = name.partition(":")
    if not is_plugin(name):
        if colon and scheme in MODES:
            return load_index(text, mode=scheme)
        check_index(name)
        return load_index(name)
    value = load_registered(RETRIEVERS, scheme)
    is_made = value is not None and bool(colon)
    if value is None:
        value = plugin(RETRIEVERS, name)
    # `NAME` stands for a retriever, `NAME:TEXT` for what a function makes of the text.
    arguments: tuple[object, ...] = (text,) if is_made else ([], 1)
    try:
        signature(value).bind(*arguments)
    except TypeError:
        use = f"give {scheme} without a text" if is_made else f"give {scheme}:TEXT"
        expected = "a function of a text" if is_made else "a function of queries and k"
        raise UserError(f"retriever {name!r:.120} is not {expected}; {use}") from None
    return as_retriever(value(text) if is_made else value)


def resolve_encoder(name_or_path: str) -> str:
    """Return the directory of a registered encoder such as `demo`; any other directory or hub name as it is."""
    make = registered("selfrag.encoders", name_or_path)
    return name_or_path if make is None else str(make())


def encoder_source(encoder: str | None, engine: str | None) -> str | None:
    """Return the address of a model of embeddings where its server is named, else the encoder as it is named."""
    return encoder if engine is None else f"{engine}#{encoder or ''}"


def remote_indexes(name: str | Path) -> RemoteIndexes | None:
    """Return what serves an address such as `milvus://HOST:PORT/NAME`; None for any other name of an index."""
    scheme, colon, _ = str(name).partition(":")
    return registered(REMOTE_INDEXES, scheme) if colon else None


def load_index(
    name_or_path: str | Path, encoder: str | None = None, mode: str | None = None
) -> IndexRetriever:
    """Return an index with its encoder; where that has moved since, with the packaged one.

    Args:
        name_or_path: folder of the index, a registered name such as `demo`, or the address of a remote index.
        encoder: directory, hub name or registered name of its encoder; None looks where it was at build time.
        mode: `dense`, `words` or `hybrid`; None is hybrid where the index has both, else what it has.

    Raises:
        UserError: the index cannot be used, or was built with another encoder.
    """
    remote = remote_indexes(name_or_path)
    if remote is not None:
        return remote.open_index(
            name_or_path, index_encoder(name_or_path, encoder), mode=mode
        )
    directory = index_directory(name_or_path)
    return open_index(directory, index_encoder(directory, encoder), mode=mode)


def index_encoder(index: str | Path, encoder: str | None) -> str | None:
    """Return where the encoder of an index is: `encoder`, else its place at build time, else the packaged one.

    A directory or hub name; None where the index does not say it.
    """
    if encoder is not None:
        return resolve_encoder(encoder)
    remote = remote_indexes(index)
    card = load_manifest(index) if remote is None else remote.read_card(index)
    source = card.encoder.source
    # A hub name may always be found; a directory may have moved.
    if source and Path(source).is_absolute() and not Path(source).is_dir():
        return resolve_encoder(DEMO)
    return source or None
