"""`OwnWriter`: Table 1's prompt as an instruction of a model with reflection tokens, on token ids.

The contexts are in the prompt, so `[No Retrieval]` is written for the model, and where it asks for a passage all the
same its text ends. Other reflection tokens part its text and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from selfrag.decoding.answer import joint
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Engine, serve
from selfrag.experiments.interpretation.template import Template
from selfrag.experiments.interpretation.trials import Trial, Written
from selfrag.prompting import Prompting


@dataclass(frozen=True, slots=True)
class OwnWriter:
    """A model with reflection tokens as a writer of the grid.

    Attributes:
        engine: of the model.
        prompting: of the model.
        template: of the prompt.
        max_tokens: of a generation, reflection tokens included.
    """

    engine: Engine
    prompting: Prompting
    template: Template = Template()  # noqa: RUF009 - frozen value
    max_tokens: int = 200

    def write(self, trials: Sequence[Trial]) -> list[Written | Failed]:
        """One greedy generation a trial; all share the engine's batch."""
        requests = [self.request(trial) for trial in trials]
        results = serve(self.engine, requests)
        return [
            result if isinstance(result, Failed) else self._written(request, result)
            for request, result in zip(requests, results, strict=True)
        ]

    def request(self, trial: Trial) -> Generate:
        """The prompt as ids."""
        text = self.template.render(trial.asked, trial.question, trial.contexts, trial.examples)
        retrieval, none, _ = self.prompting.vocabulary.retrieve
        return Generate((*self.prompting.prompt(text), none), self.max_tokens, stop_ids=(retrieval,))

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()

    def _written(self, request: Generate, result: Generated) -> Written:
        control = self.prompting.vocabulary.control
        text = ""
        for is_control, run in groupby(result.token_ids, key=control.__contains__):
            piece = "" if is_control else self.prompting.codec.decode(list(run)).strip(" ")
            text += joint(text, piece) + piece if piece else ""
        usage = {
            "requests": 1,
            "prompt_tokens": len(request.prompt_ids),
            "generated_tokens": len(result.token_ids),
        }
        return Written(text, str(result.finish), usage, result.cached_tokens)
