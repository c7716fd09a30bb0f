"""Labels a second: one-token scoring against fifteen generated tokens a label, one row at a time, on vLLM.

    python scripts/bench_critic.py --critic RUN/model --data DATA/eval/dev/nq_dev.jsonl.gz --out FILE.json

The rival is the published way: one prompt, one call, fifteen tokens, the label read from the text. Both run on the same
weights, prompts and settings; the rival's engine keeps no prefixes, as the published code's did not. Wants a quiet
machine. A table goes to the standard output, progress to the error stream.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from command import command, progress
from critic.cases import Case
from critic.student.judge import StudentCritic
from critic.student.prompt import PromptCodec
from critic.tables import markdown
from selfrag.common.atomic import write_json, writing
from selfrag.common.checks import whole
from selfrag.common.errors import UserError
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Engine, Limits, Ticket
from selfrag.engines.vllm import VLLMConfig
from selfrag.evaluation.items import Item, item_of, read_items

ANSWER_TOKENS = 15
"""Length of a generated answer in the published code."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One way of labelling all cases."""

    name: str  # of the way
    seconds: float  # best of the runs
    labels: tuple[str | None, ...]  # a label a case; None where the answer names none
    generated: int  # tokens generated

    @property
    def per_second(self) -> float:
        """Labels a second."""
        return len(self.labels) / self.seconds


@dataclass(frozen=True, slots=True)
class Race:
    """All ways on the same cases; the first is ours."""

    paces: tuple[Pace, ...]  # of the ways
    prompt_tokens: int  # of all cases
    computed_tokens: int  # those of them that ours computed, prefixes being shared
    least_tokens: int  # the fewest that must be computed
    # what ours spends its time in, name to share, the dearest first; by one more run, profiled
    operators: dict[str, float]
    settings: dict[str, Any]  # of ours
    machine: dict[str, Any]  # that it ran on

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        ours = self.paces[0]
        return {
            "cases": len(ours.labels),
            "prompt_tokens": self.prompt_tokens,
            "computed_tokens": self.computed_tokens,
            "least_tokens": self.least_tokens,
            "operators": self.operators,
            "paces": [
                {
                    **asdict(pace),
                    "labels_per_second": pace.per_second,
                    "same_labels": same(ours, pace),
                    "ours_is_faster": pace.seconds / ours.seconds,
                }
                for pace in self.paces
            ],
            "settings": self.settings,
            "machine": self.machine,
        }


def same(one: Pace, other: Pace) -> int:
    """Cases with equal labels."""
    return sum(a == b for a, b in zip(one.labels, other.labels, strict=True))


def cases_of(path: Path, rows: int, passages: int) -> list[Case]:
    """The labels that writing reflection tokens asks for: of each row Retrieve and IsUse, of each passage IsRel, IsSup.

    Args:
        path: rows with instruction, an answer and passages, such as those of `eval/dev`.
        rows: how many of them.
        passages: how many of each.

    Raises:
        UserError: the file holds fewer such rows.
    """
    usable = [item for item in read_items(path, item_of) if _answer(item) and len(item.passages) >= passages][:rows]
    if len(usable) < rows:
        raise UserError(f"{path} holds {len(usable)} rows with an answer and {passages} passages; {rows} are asked for")
    cases = []
    for item in usable:
        answer = _answer(item)
        cases += [Case("Retrieve", item.instruction, "", answer), Case("IsUse", item.instruction, "", answer)]
        for passage in item.passages[:passages]:
            cases.append(Case("IsRel", item.instruction, evidence=passage))
            cases.append(Case("IsSup", item.instruction, "", answer, passage))
    return cases


@dataclass
class Counting:
    """An engine that counts the prompt tokens it computes."""

    engine: Engine  # does the work
    computed: int = 0  # prompt tokens that no prefix spared, of all requests that ended
    _prompts: dict[Ticket, int] = field(default_factory=dict)

    @property
    def limits(self) -> Limits:
        """Of the engine."""
        return self.engine.limits

    def submit(self, request: Generate) -> Ticket:
        """As the engine."""
        ticket = self.engine.submit(request)
        self._prompts[ticket] = len(request.prompt_ids)
        return ticket

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """As the engine."""
        done = self.engine.step()
        for ticket, result in done:
            tokens = self._prompts.pop(ticket)
            if isinstance(result, Generated):
                self.computed += tokens - result.cached_tokens
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """As the engine."""
        self.engine.abort(tickets)

    def close(self) -> None:
        """As the engine."""
        self.engine.close()


def race(
    name: str | Path, cases: Sequence[Case], *, repeats: int = 3, say: Callable[[str], None] = lambda _: None
) -> Race:
    """Label the cases in every way.

    Args:
        name: a trained critic; as `resolve_critic` takes it.
        cases: what is labelled.
        repeats: runs of ours, of which the fastest counts; the rival, who takes minutes, runs once.
        say: told what is measured next.

    Raises:
        UserError: the model cannot be loaded, or there are no repeats.
    """
    from critic.student.judge import resolve_critic
    from critic.student.prompt import read_card
    from selfrag.common.provenance import machine
    from selfrag.loading import load_tokenizer
    from speed.timing import least_tokens, serve

    whole("repeats", repeats)
    model_dir = resolve_critic(name)
    codec = read_card(model_dir, load_tokenizer(model_dir))
    config = VLLMConfig(str(model_dir), max_model_len=codec.max_length + ANSWER_TOKENS)
    say("loading with prefix caching")
    served = serve(config)
    counting = Counting(served.engine)
    critic = StudentCritic(counting, codec)
    critic.judge(cases[:8])
    runs = []
    for number in range(repeats):
        say(f"ours, run {number + 1} of {repeats}")
        served.forget()
        counting.computed = 0
        runs.append(_ours(critic, cases))
    say("ours, profiled")
    computed = counting.computed
    served.forget()
    operators = _operators(critic, cases)
    settings = served.settings()
    served.engine.close()
    say("loading without prefix caching")
    plain = serve(VLLMConfig(config.model, max_model_len=config.max_model_len, enable_prefix_caching=False))
    _generated(plain.llm, codec, cases[:2], ANSWER_TOKENS, to_the_end=True)
    paces = [min(runs, key=lambda pace: pace.seconds)]
    for name, to_the_end in (
        (f"{ANSWER_TOKENS} tokens, one row at a time", True),
        ("to EOS, one row at a time", False),
    ):
        say(name)
        started = time.perf_counter()
        labels, count = _generated(plain.llm, codec, cases, ANSWER_TOKENS, to_the_end=to_the_end)
        paces.append(Pace(name, time.perf_counter() - started, labels, count))
    plain.engine.close()
    prompts = [codec.prompt(case).ids for case in cases]
    tokens, least = sum(map(len, prompts)), least_tokens(prompts)
    return Race(tuple(paces), tokens, computed, least, operators, settings, machine())


def _ours(critic: StudentCritic, cases: Sequence[Case]) -> Pace:
    started = time.perf_counter()
    judged = critic.judge(cases)
    seconds = time.perf_counter() - started
    labels = tuple(None if judgment is None else judgment.label for judgment in judged)
    return Pace("one token, shared prefixes", seconds, labels, len(cases))


def _operators(critic: StudentCritic, cases: Sequence[Case], most: int = 5) -> dict[str, float]:
    """Shares of the processor's time by torch's operators."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as run:
        critic.judge(cases)
    times = {event.key: float(event.self_cpu_time_total) for event in run.key_averages()}
    total = sum(times.values())
    return {name: times[name] / total for name in sorted(times, key=lambda name: -times[name])[:most]}


def _generated(
    llm: Any, codec: PromptCodec, cases: Sequence[Case], tokens: int, *, to_the_end: bool
) -> tuple[tuple[str | None, ...], int]:
    """The published loop: a call a case, the label that the answer begins with."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=to_the_end, skip_special_tokens=False)
    labels: list[str | None] = []
    count = 0
    for case in cases:
        prompt = codec.prompt(case)
        (output,) = llm.generate([{"prompt_token_ids": list(prompt.ids)}], params, use_tqdm=False)
        ids = tuple(output.outputs[0].token_ids)
        count += len(ids)
        labels.append(named(ids, prompt.options, case))
    return tuple(labels), count


def named(ids: tuple[int, ...], options: Sequence[tuple[int, ...]], case: Case) -> str | None:
    """The label that an answer begins with, the longest of several; None if it begins with none."""
    fitting = [i for i, option in enumerate(options) if option and ids[: len(option)] == option]
    return case.labels.names[max(fitting, key=lambda i: len(options[i]))] if fitting else None


def _answer(item: Item) -> str:
    return next(iter(item.references or item.answers or ()), item.label or "")


@command
def main() -> int:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--critic", required=True, help="folder of a trained critic, or demo")
    parser.add_argument("--data", type=Path, required=True, help="rows with instruction, answer and passages")
    parser.add_argument("--rows", type=int, default=20, help="rows; each asks 2 + 2 x passages labels (default 20)")
    parser.add_argument("--passages", type=int, default=5, help="passages of a row (default 5)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of ours (default 3)")
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    given = parser.parse_args()
    say = progress()

    if given.out:
        with writing(given.out):  # better said before minutes of measuring
            given.out.parent.mkdir(parents=True, exist_ok=True)
    cases = cases_of(given.data, given.rows, given.passages)
    found = race(given.critic, cases, repeats=given.repeats, say=say)
    if given.out:
        write_json(given.out, found.as_dict())
    ours = found.paces[0]
    header = ("way", "labels", "seconds", "labels/s", "slower than ours by", "labels as ours")
    rows = [
        (
            pace.name,
            len(pace.labels),
            f"{pace.seconds:.1f}",
            f"{pace.per_second:.2f}",
            f"{pace.seconds / ours.seconds:.1f}x",
            same(ours, pace),
        )
        for pace in found.paces
    ]
    print(markdown(header, rows))
    over = f"{found.computed_tokens / found.least_tokens:.2f} times the least ({found.least_tokens})"
    print(f"\n{found.prompt_tokens} prompt tokens, {found.computed_tokens} of them computed by ours, {over}; its time:")
    print(", ".join(f"{name} {share:.0%}" for name, share in found.operators.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
