"""Cases as files: reading them strictly, and the state, codec and completions that they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.extensions.granite.chat import Spec, read_spec
from selfrag.extensions.granite.registry import (
    BINDINGS,
    chat_specs,
    codec,
    codec_of_spec,
)
from selfrag.judges.wire import Completion, TokenLogprob
from selfrag.reflection.inputs import JudgeInput, Message

CONTRACTS = "_contracts.json"
DIALECT = {
    "D1": "granite-3.2",
    "D2": "granite-3.3",
    "D3": "granite-common",
    "D4": "mellea",
}
CODES = """QR query_rewrite UQ uncertainty HD hallucination_detection AD answerability CG citation_generation
CR context_relevance QC query_clarification ARC answer_relevance_classifier ARR answer_relevance_rewriter
RC requirement_check CA context_attribution GU guardian PG policy_guardrails FC factuality_correction
FD factuality_detection GEN generation"""
WORDS = CODES.split()
INTRINSIC = dict(zip(WORDS[::2], WORDS[1::2], strict=True))
KINDS = ("wire", "decode", "rewrite", "rewrite+decode", "api", "input")


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded case."""

    path: Path  # its file
    raw: Mapping[str, Any]  # its content
    contracts: Mapping[str, Spec]  # configurations that stand beside it

    @property
    def id(self):
        """Such as `D3/UQ/uncertainty`."""
        return str(self.raw.get("id") or self.path.stem)

    @property
    def kind(self):
        """One of `KINDS`."""
        return str(self.raw["kind"])

    @property
    def chat(self):
        """Whether it is of a chat dialect."""
        return self.raw["dialect"] in ("D3", "D4")

    @property
    def intrinsic(self):
        """Our name of the intrinsic."""
        code = str(self.raw["intrinsic"])
        return INTRINSIC.get(code, code)

    def codec(self):
        """The codec that the case is about, exactly as published; its contract wins over what is shipped.

        Raises:
            UserError: nobody knows the contract or the intrinsic.
        """
        dialect = DIALECT[self.raw["dialect"]]
        if not self.chat:
            return codec(dialect, self.intrinsic, exact=False)
        name = self.raw.get("contract")
        if name is None:
            suffix = (
                "-gpt-oss"
                if str(self.raw.get("name", "")).startswith("gpt_oss")
                else ""
            )
            return codec(f"{dialect}{suffix}", self.intrinsic, exact=False)
        known = {**chat_specs(dialect), **self.contracts}
        if name not in known:
            raise UserError(
                f"{self.path}: no contract {name!r}; known: {', '.join(sorted(known))}"
            )
        return codec_of_spec(
            known[name],
            self.intrinsic if self.intrinsic in BINDINGS else None,
            exact=False,
        )

    def state(self, codec=None):
        """The caller's input.

        Args:
            codec: its instruction tells which arguments are looked for among the fields of the input.
        """
        values = self.raw["input"]
        documents = (
            values.get("documents")
            or (values.get("extra_body") or {}).get("documents")
            or ()
        )
        arguments = dict(self.raw.get("arguments") or {}) or _loose_arguments(
            codec, values
        )
        extra = {
            k: v
            for k, v in values.items()
            if k not in ("messages", "documents", "generate_inputs", *arguments)
        }
        return JudgeInput(
            tuple(Message(m["role"], m["content"]) for m in values["messages"]),
            tuple(_passage(d, index, self.chat) for index, d in enumerate(documents)),
            arguments,
            {**extra, **(values.get("generate_inputs") or {})},
        )

    def completions(self):
        """What models wrote."""
        texts = [Completion(text) for text in self.raw.get("completions") or ()]
        return texts + [
            Completion(
                out["content"], out.get("finish_reason"), _tokens(out.get("logprobs"))
            )
            for out in self.raw.get("model_output") or ()
        ]


def read_cases(folder):
    """Every case under a folder, by path.

    Raises:
        UserError: no folder, no cases, or a file that is no case; names it.
    """
    files = sorted(folder.rglob("*.json")) if folder.is_dir() else []
    cases = [path for path in files if path.name != CONTRACTS]
    if not cases:
        raise UserError(
            f"{folder}: no cases (*.json) there; give the folder that holds D1 .. D4, or one of them"
        )
    contracts = {
        path.parent: _contracts(path) for path in files if path.name == CONTRACTS
    }
    for path in cases:
        raw = _json(path)
        missing = [name for name in ("dialect", "intrinsic", "kind") if name not in raw]
        if missing:
            raise UserError(f"{path}: no case: the field {missing[0]!r} is missing")
        if raw["dialect"] not in DIALECT or raw["kind"] not in KINDS:
            raise UserError(
                f"{path}: unknown dialect {raw['dialect']!r} or kind {raw['kind']!r}"
            )
        yield Case(path, raw, contracts.get(path.parent, {}))


def _contracts(path):
    return {
        name: read_spec(name, raw)
        for name, raw in _json(path).get("contracts", {}).items()
    }


def _json(path):
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path}: holds a {type(raw).__name__}, not an object")
    return raw


def _passage(document, index, chat):
    name = document.get("doc_id", "" if chat else index)
    return Passage(str(name), document["text"])


def _loose_arguments(codec, arguments):
    """Arguments that an input carries as fields of its own, such as `requirement`."""
    instruction = getattr(getattr(codec, "spec", None), "instruction", None) or ""
    return {
        k: v
        for k, v in arguments.items()
        if isinstance(v, str) and f"{{{k}}}" in instruction
    }


def _tokens(logprobs):
    if not logprobs:
        return None
    entries = logprobs["content"] if isinstance(logprobs, Mapping) else logprobs
    return tuple(
        TokenLogprob(
            entry["token"],
            entry["logprob"],
            tuple(
                (alternative["token"], alternative["logprob"])
                for alternative in entry.get("top_logprobs") or ()
            ),
        )
        for entry in entries
    )
