"""One form of answering measured: ours against the floor, against the rivals, and without each of our choices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from selfrag.decoding.answer import Answer
from selfrag.experiments.speed.compare import Series, race, ratio
from selfrag.experiments.speed.floor import replay
from selfrag.experiments.speed.official import OfficialLoop
from selfrag.experiments.speed.results import FormReport
from selfrag.experiments.speed.run import Run, Work, answer_all
from selfrag.experiments.speed.served import Served
from selfrag.experiments.speed.sizes import FormSizes
from selfrag.experiments.speed.variants import CutAfterwards, Dictionaries, Recording
from selfrag.experiments.speed.workload import Form, Item
from selfrag.prompting import Prompting

KIND = 20
"""Log-probabilities of the kind rival: what vLLM gives without being asked to raise its limit."""
ABLATED = 5_000
"""Log-probabilities in the ablation that reads dictionaries; 32,000 would not fit in memory for a whole batch."""


@dataclass(slots=True)
class Bench:
    """Two loaded models and the questions."""

    cached: Served
    plain: Served
    prompting: Prompting
    items: Sequence[Item]
    say: Callable[[str], None]

    def measure(self, form: Form, sizes: FormSizes) -> tuple[FormReport, list[Answer]]:
        """One form: floor, rivals, ablations; and our recorded answers."""
        items = form.ask(self.items)
        for served in (self.cached, self.plain):  # the first steps of an engine are slow
            answer_all(items[:2], self.prompting, form.policy, served.engine)
        self.say(f"{form.name}: ours against the floor, {sizes.questions} questions, {sizes.repeats} rounds")
        pair, answers = self._floor(form, items[: sizes.questions], sizes.repeats)
        self.say(f"{form.name}: rivals, {sizes.rivals} questions, {sizes.rounds} rounds")
        rivals = self._rivals(form, items[: sizes.rivals], sizes.rounds)
        self.say(f"{form.name}: ablations, {sizes.ablated} questions, {sizes.rounds} rounds")
        ablations = self._ablations(form, items[: sizes.ablated], sizes.rounds)
        ours, floor = pair["ours"], pair["floor"]
        report = FormReport(
            form=form.name,
            ours=ours,
            floor=floor,
            over_floor=ratio(ours, floor),
            rivals=tuple(rivals.values()),
            faster={
                name: (ratio(series, rivals["ours"]), ours.speed / series.speed)
                for name, series in rivals.items()
                if name != "ours"
            },
            ablations=tuple(ablations.values()),
            slower={n: ratio(series, ablations["ours"]) for n, series in ablations.items() if n != "ours"},
            segments=sum(len(answer.segments) for answer in answers) / len(answers),
            same_text={n: _same(series, ablations["ours"]) for n, series in ablations.items() if n != "ours"},
        )
        return report, answers

    def _ours(self, form: Form, items: Sequence[Item]) -> Run:
        return answer_all(items, self.prompting, form.policy, self.cached.engine)

    def _floor(self, form: Form, items: Sequence[Item], repeats: int) -> tuple[dict[str, Series], list[Answer]]:
        recording = Recording(self.cached.engine)
        answers: list[Answer] = []

        def ours() -> Run:
            recording.requests.clear()
            run = answer_all(items, self.prompting, form.policy, recording)
            answers[:] = run.answers
            return run

        def floor() -> Run:
            seconds, generated = replay(self.cached.llm, recording.requests)
            prompts = sum(len(request.prompt_ids) for request in recording.requests)
            work = Work(len(generated), prompts, 0, sum(generated))
            return Run(seconds, ("",) * len(items), work)

        return race({"ours": ours, "floor": floor}, repeats, self._prepare), answers

    def _rivals(self, form: Form, items: Sequence[Item], rounds: int) -> dict[str, Series]:
        vocabulary = self.plain.engine.limits.vocab_size
        loops = {
            "faithful rival": OfficialLoop(self.plain.llm, self.prompting, form, min(form.rival_logprobs, vocabulary)),
            "kind rival": OfficialLoop(self.plain.llm, self.prompting, form, min(KIND, vocabulary)),
        }
        ways: dict[str, Callable[[], Run]] = {"ours": partial(self._ours, form, items)}
        ways |= {name: partial(loop.answer_all, items) for name, loop in loops.items()}
        return race(ways, rounds, self._prepare)

    def _ablations(self, form: Form, items: Sequence[Item], rounds: int) -> dict[str, Series]:
        core, vocabulary = self.cached.llm.llm_engine, self.cached.engine.limits.vocab_size
        run = partial(answer_all, items, self.prompting, form.policy)
        ways: dict[str, Callable[[], Run]] = {
            "ours": partial(run, self.cached.engine),
            "one question at a time": partial(run, self.cached.engine, max_live=1),
            "watched ids as dictionaries": partial(run, Dictionaries(core, None)),
            f"{KIND} most probable ids as dictionaries": partial(run, Dictionaries(core, min(KIND, vocabulary))),
            f"{ABLATED:,} most probable ids as dictionaries": partial(
                run, Dictionaries(core, min(ABLATED, vocabulary))
            ),
            "cut at the segment afterwards": partial(run, CutAfterwards(self.cached.engine)),
            "no prefix caching": partial(run, self.plain.engine),
        }
        return race(ways, rounds, self._prepare)

    def _prepare(self) -> None:
        self.cached.forget()
        gc.collect()


def _same(one: Series, other: Series) -> float:
    return sum(a == b for a, b in zip(one.texts, other.texts, strict=True)) / len(one.texts)
