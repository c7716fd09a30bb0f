"""`intrinsic.json` beside an adapter: which intrinsic, dialect and base it was trained for. And its model card.

The fingerprint is of what the codec asks on a fixed conversation: a codec whose wording has changed since is found out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from retrieval.atomic import write_text
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.intrinsics.contract import ChatPrompt, Codec, Message, State
from selfrag.untrusted import printable

if TYPE_CHECKING:
    from selfrag.training.settings import TrainingConfig

_PROBE = State(
    (Message("user", "Who wrote it? When?"), Message("assistant", "Goethe did. In 1808.")),
    (Passage("a", "Faust is a play. Goethe wrote it.", "Faust"), Passage("b", "It appeared in 1808.")),
)


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """What an adapter is for.

    Attributes:
        intrinsic: its name.
        dialect: whose codec it speaks.
        prompt: fingerprint of what that codec asked when the adapter was trained.
        base: shape of the base model: type, width, layers, rows of the vocabulary.
        rank: of its pairs.
        invocation: ids that switch it on; empty for a LoRA that always acts.
    """

    FILE: ClassVar[str] = "intrinsic.json"
    FORMAT: ClassVar[int] = 1

    intrinsic: str
    dialect: str
    prompt: str
    base: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    invocation: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, codec: Codec, config: TrainingConfig, *, base: dict[str, Any], invocation: tuple[int, ...]
    ) -> AdapterCard:
        """The card of a run."""
        return cls(codec.intrinsic, codec.dialect, fingerprint(codec), base, config.lora.rank, invocation)

    @classmethod
    def read(cls, directory: Path) -> AdapterCard:
        """The card beside an adapter.

        Raises:
            UserError: there is none, or it cannot be read.
        """
        path = directory / cls.FILE
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.pop("format") != cls.FORMAT:
                raise UserError(f"{path} has another format; this version reads {cls.FORMAT}")
            return cls(**{**record, "invocation": tuple(record["invocation"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be used: {error}; give the folder of a trained adapter") from error

    def check(self, codec: Codec) -> None:
        """Refuse a codec that asks something else than the one of training.

        Raises:
            UserError: another intrinsic, dialect or wording.
        """
        for name in ("intrinsic", "dialect"):
            if getattr(self, name) != getattr(codec, name):
                raise UserError(
                    f"the adapter was trained for {name} {getattr(self, name)!r}, not {getattr(codec, name)!r}"
                )
        if self.prompt != fingerprint(codec):
            raise UserError(f"the adapter for {self.intrinsic} was trained with other prompts; train it again")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": self.FORMAT} | asdict(self)


def fingerprint(codec: Codec) -> str:
    """Changes with whatever the codec asks, on conversations that end with either role."""
    found = []
    for messages in (_PROBE.messages, _PROBE.messages[:1]):
        request = codec.encode(State(messages, _PROBE.passages))
        prompt = request.prompt
        text = [asdict(one) for one in prompt.messages] if isinstance(prompt, ChatPrompt) else prompt.text
        found.append([text, [(slot.prefill, slot.surfaces) for slot in request.slots], request.max_tokens])
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def write_card(directory: Path, card: AdapterCard, run_dir: Path, *, base: str, preset: str) -> None:
    """Write README.md and training.json (the run's manifest) into the adapter's folder.

    Raises:
        UserError: the run's manifest or log is missing or bad.
    """
    from selfrag.training.card import read_log

    manifest = run_dir / "manifest.json"
    try:
        run: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{manifest} cannot be read: {error}") from error
    write_text(directory / "training.json", json.dumps(run, indent=2) + "\n")
    write_text(directory / "README.md", render(card, run, read_log(run_dir / "log.jsonl"), base=base, preset=preset))


def render(card: AdapterCard, run: dict[str, Any], log: list[dict[str, Any]], *, base: str, preset: str) -> str:
    """The card as Markdown."""
    facts, config = run["facts"], run["config"]
    looks = [(one["step"], one["validation"]) for one in log if "validation" in one]
    best = min(looks, key=lambda one: (one[1]["loss"], one[0]), default=None)
    seconds, tokens = sum(one["seconds"] for one in log), sum(one["tokens"] for one in log)
    held = "nothing was held out"
    if best is not None:
        accuracy = best[1]["groups"]["text"]["accuracy"]
        held = (
            f"best of {len(looks)} looks at {facts['held_out']} held-out examples after step {best[0]}: loss"
            f" {best[1]['loss']:.3f}, {accuracy:.1%} of the tokens of the answer most probable"
        )
    begun = f"\n- **Begun with** an adapter, SHA-256 `{start}`." if (start := run["inputs"].get("start")) else ""
    sources = "\n".join(f"| {_cell(name)} | {count} |" for name, count in facts["sources"].items())
    kind = "activated LoRA (aLoRA)" if card.invocation else "LoRA"
    layers = config["reach"]["last_layers"]
    return f"""---
library_name: peft
tags: [retrieval-augmented-generation, intrinsic]
---
# {card.intrinsic}: {kind} for {_cell(base)}

Dialect `{card.dialect}`, rank {card.rank}, {"all layers" if layers is None else f"the last {layers} layers"}.

- **Base**: {_cell(base)}, SHA-256 of its weights `{run["inputs"]["base"]}`.{begun}
- **Run**: settings `{_cell(preset)}`, {len(log)} steps, {tokens} tokens in {seconds / 60:.1f} minutes of computing
  ({tokens / max(seconds, 1e-9):.0f} tokens a second); all settings, versions and the commit: `training.json`.
- **Held out**: {held}.

## Rows

| source | examples |
|---|---|
{sources}

What it is good for, `selfrag eval intrinsics` measures on rows that were not trained on.
"""


def _cell(text: str) -> str:
    return " ".join(printable(text).split()).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
