"""What `critic eval` evaluates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from selfrag.interface import UserError


@dataclass(frozen=True, slots=True)
class EvaluationSubjects:
    """What is evaluated; at least one.

    Attributes:
        critic: Folder or hub name of a trained critic, or 'demo'.
        base: Untrained base model to compare with, prompted as the teacher: a folder or a name on the hub.
        train: Training rows for the baselines majority label and tf-idf.
        engine: vllm or transformers; by default the best one installed.
        generator: Model with reflection tokens, which judges by them: a folder, a name, or demo.
    """

    critic: str | Path | None = None
    base: str | Path | None = None
    train: Path | None = None
    engine: str | None = None
    generator: str | Path | None = None

    def __post_init__(self) -> None:
        if self.train is None and not self.models():
            raise UserError(
                "nothing to evaluate: give a critic, a generator, a base model or training rows"
            )

    def models(self) -> dict[str, str | Path]:
        """Return the models by what they are."""
        models = {"critic": self.critic, "base": self.base, "generator": self.generator}
        return {name: model for name, model in models.items() if model is not None}

    def folders(self) -> dict[str, Path]:
        """Return the folders of the models, fetched where they are named on the hub."""
        from critic.student.judge import resolve_critic
        from selfrag.loading import resolve_model

        return {
            name: resolve_critic(model) if name == "critic" else resolve_model(model)
            for name, model in self.models().items()
        }
