"""`PromptedJudge`: a codec on an executor. It asks a model by a prompt or an adapter, on an engine or an endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from selfrag.judges.wire import Codec, Executor, ModelRequest
from selfrag.reflection.findings import Code, Diagnostic, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput
from selfrag.reflection.judge import Cost, Judge, usual_scope
from selfrag.reflection.labels import LabelSet
from selfrag.reflection.requests import Failed, Steps


class PromptedJudge(Judge):
    """Asks a model. Its name says how: `prompt`, `adapter`, `activated adapter` or `endpoint`."""

    def __init__(
        self,
        executor: Executor,
        codec: Codec,
        labels: LabelSet,
        adapter: str | None = None,
        *,
        min_coverage: float = 0.0,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        """Judge by what a model answers.

        Args:
            executor: where requests run.
            codec: what is asked, in the dialect of the model or adapter.
            labels: what the judgments are over, or labels of the same role.
            adapter: name of the LoRA adapter on the executor; None for the codec's own, or the base model.
            min_coverage: least probability on the labels together; a judgment with less is undefined.
            identity: what decides the answers of the model, for manifests.
        """
        self.executor = executor
        self.codec = codec
        self.labels = labels
        self.adapter = adapter
        self.min_coverage = min_coverage
        self._identity = dict(identity or {})
        self.scope = usual_scope(labels)
        self._name: str | None = None
        self.cost = codec.cost
        if adapter is not None and codec.cost is Cost.ONE_TOKEN:
            self.cost = Cost.PREFILL

    @cached_property
    def engine(self) -> Any:
        """Engine of the executor."""
        return self.executor.engine

    @property
    def name(self) -> str:
        """Return how the model is asked, unless it was given another name."""
        if self._name is not None:
            return self._name
        if self.engine is None:
            return "endpoint"
        if self.adapter is None:
            return self.codec.embedded or "prompt"
        return (
            "activated adapter"
            if self.adapter in self.executor.activated
            else "adapter"
        )

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def identity(self) -> Mapping[str, Any]:
        """Return what decides its judgments."""
        options = {
            "adapter": self.adapter,
            "dialect": self.codec.dialect,
            "min_coverage": self.min_coverage,
        }
        return {"kind": "judge", **options, **self._identity}

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; all requests share a batch."""
        requests = [self._request(state) for state in inputs]
        if not requests:
            return []
        results = yield from self.executor.steps(requests)
        reflections = []
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Failed):
                reflections.append(Reflection.failed(request.state, result.reason))
            else:
                reflection = self._covered(self.codec.decode(request, result))
                if result.withheld:
                    note = Diagnostic(Code.EMPTY, result.withheld)
                    notes = (note, *reflection.diagnostics)
                    reflection = replace(reflection, diagnostics=notes)
                reflections.append(reflection)
        return reflections

    def _request(self, state: JudgeInput) -> ModelRequest:
        request = self.codec.encode(state)
        return (
            request if self.adapter is None else replace(request, adapter=self.adapter)
        )

    def _covered(self, reflection: Reflection) -> Reflection:
        """Return the reflection with every judgment of little coverage undefined."""
        findings = []
        notes = list(reflection.diagnostics)
        for finding in reflection.findings:
            judgment = finding.judgment
            if judgment is not None and judgment.coverage < self.min_coverage:
                notes.append(
                    Diagnostic(
                        Code.LOW_COVERAGE,
                        f"the labels at {finding.site} have too little probability",
                    )
                )
                finding = Finding(finding.site, None)
            findings.append(finding)
        return replace(reflection, findings=tuple(findings), diagnostics=tuple(notes))
