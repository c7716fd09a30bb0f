"""Critics by name, and what stands beside a trained one: label frequencies, tf-idf, shared words, other models.

The first three read no language: what they get right, the data give away. The untrained base is asked with the words
that a hosted teacher gets, so its figures say what prompting alone is worth. A generator judges by its own tokens.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from critic.cases import FIELDS, GROUPS, Case
from critic.demo import ADAPTER
from critic.judging import Critic, group_of
from critic.student.judge import DEMO, load_critic, resolve_critic
from critic.student.prompt import (
    CHARACTERS_A_TOKEN,
    CriticPrompt,
    Ids,
    PartLimits,
    cut,
    eos_of,
    fitted,
)
from critic.teacher.forms import OWN
from selfrag.interface import (
    ISREL,
    ISSUP,
    Cost,
    FunctionJudge,
    HFTextCodec,
    Judge,
    JudgeInput,
    Prompting,
    TextCodec,
    UserError,
    open_judge,
    require,
    sha256,
)
from selfrag.judges.external import Function
from selfrag.judges.words import overlap


def _by_group(rows: Sequence[Case]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return groups


def _baseline(name: str, group: str, shares: Function) -> Judge:
    """Return a judge without a language model, by a function that gives the share of each label, in label order."""
    labels = GROUPS[group]
    return FunctionJudge(f"{name}-{labels.role}", labels, shares, Cost.INLINE)


def _same(
    shares: Sequence[float], inputs: Sequence[JudgeInput]
) -> list[Sequence[float]]:
    return [shares] * len(inputs)


def majority_critic(rows: Sequence[Case]) -> Critic:
    """Return a critic that gives each group the label frequencies of the rows, whatever the case."""
    judges = {}
    for group, members in _by_group(rows).items():
        counts = Counter(row.label for row in members)
        shares = [counts[name] / len(members) for name in GROUPS[group].names]
        judges[group] = _baseline("majority", group, partial(_same, shares))
    return Critic(judges)


def tfidf_critic(rows: Sequence[Case]) -> Critic:
    """Return a critic by logistic regression on tf-idf of words and word pairs, each part of a case with its own words.

    Raises:
        UserError: a group has rows of one label only.
    """
    require("sklearn", extra="eval")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    judges = {}
    for group, members in _by_group(rows).items():
        if len({row.label for row in members}) < 2:
            raise UserError(
                f"{group} has rows of one label only: nothing to fit; add rows or leave the group out"
            )
        model = make_pipeline(
            _features(members),
            LogisticRegression(max_iter=500, class_weight="balanced"),
        )
        model.fit(members, [row.label for row in members])
        judges[group] = _baseline("tfidf", group, partial(_predicted, model, group))
    return Critic(judges)


def _predicted(
    model: Any, group: str, inputs: Sequence[JudgeInput]
) -> list[Sequence[float]]:
    """Return what a fitted pipeline of scikit-learn says; labels that it has not seen have the share 0."""
    shares: list[Sequence[float]] = []
    for row in model.predict_proba([Case(group, state) for state in inputs]):
        known = dict(zip(model.classes_, map(float, row), strict=True))
        shares.append([known.get(name, 0.0) for name in GROUPS[group].names])
    return shares


def _features(cases: Sequence[Case]) -> Any:
    """Return a vocabulary for each part that occurs in the cases."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer

    vectorizers = []
    for part in FIELDS:
        if not any(
            character.isalnum() for text in _texts(part, cases) for character in text
        ):
            continue
        vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), min_df=min(2, len(cases)), sublinear_tf=True
        )
        vectorizers.append(
            make_pipeline(FunctionTransformer(partial(_texts, part)), vectorizer)
        )
    return make_union(*vectorizers)


def _texts(part: str, cases: Sequence[Case]) -> list[str]:
    return [case.texts()[part] for case in cases]


@dataclass(frozen=True)
class PromptedCodec:
    """What `student_critic` asks an untrained model with: the teacher's prompt, its labels scored exactly."""

    text: TextCodec  # safe tokenisation; demonstrations and cases alike are text
    eos_id: int  # ends an answer
    # longest prompt in tokens; a longer one loses words of its passage
    max_length: int = 2048

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, max_length: int = 2048) -> PromptedCodec:
        """Make the codec of a Hugging Face tokenizer, which must have an EOS."""
        return cls(HFTextCodec(tokenizer), eos_of(tokenizer), max_length)

    def prompt(self, case: Case) -> CriticPrompt:
        """Return the teacher's prompt; labels that its form does not offer have no ids."""
        return fitted(case, self._ask, tuple(self.text.bos_ids), self.max_length)

    def _ask(self, case: Case) -> tuple[Ids, tuple[Ids, ...]]:
        surfaces = {label: surface for surface, label in OWN.of(case).surfaces.items()}
        options: list[Ids] = []
        for name in case.labels.names:
            surface = surfaces.get(name)
            options.append(
                () if surface is None else tuple(self.text.encode(f" {surface}"))
            )
        return tuple(self.text.encode(OWN.prompt(case))), tuple(options)


@dataclass(frozen=True)
class GeneratorCodec:
    """What `student_critic` asks a generator with: its own reflection tokens, read where training puts them (C.1).

    Retrieve is due before the output, which a generator does not see; a passage stands before what precedes, as the one
    in use. IsRel follows a passage, IsSup the output, IsUse all of it, with the most favourable tokens before them.
    """

    prompting: Prompting
    limits: PartLimits = PartLimits(  # noqa: RUF009 - frozen value
        evidence=256, preceding=256, output=512, instruction=512
    )

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> GeneratorCodec:
        """Make the codec of a Hugging Face tokenizer, which must have reflection tokens and EOS."""
        return cls(Prompting.from_tokenizer(tokenizer))

    @property
    def eos_id(self) -> int:
        """Ends an answer."""
        return self.prompting.vocabulary.eos_id

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt with its label; 16 for the tokens around the parts."""
        return len(self.prompting.prompt("x")) + self.limits.most + 16

    def prompt(self, case: Case) -> CriticPrompt:
        """Lay out a case as in training, up to where the group's token is due."""
        vocabulary = self.prompting.vocabulary
        codec = self.prompting.codec
        layout = self.prompting.layout
        relevant, supported = vocabulary.group(ISREL)[0], vocabulary.group(ISSUP)[0]
        # 1. The parts of the case, within their limits.
        dropped: Counter[str] = Counter()
        instruction, preceding, output = (
            self._part(case, part, dropped)
            for part in ("instruction", "preceding", "output")
        )
        before = [vocabulary.retrieve[1], *preceding] if preceding else []
        passage: list[int] = []
        if case.evidence is not None:
            evidence = self.prompting.evidence(case.evidence, self.limits.evidence)
            dropped["evidence"] = evidence.dropped_tokens
            passage = [vocabulary.retrieve[0], *evidence.ids]
        # 2. What stands before the group's token.
        answer = [*before, *passage]
        if case.group == "Retrieve" and passage:
            answer = [*passage, relevant, *preceding]
        elif case.group in ("IsSup", "IsUse"):
            if passage:
                answer.append(relevant)
            elif not before:
                answer.append(vocabulary.retrieve[1])
            answer += output
            if case.group == "IsUse" and passage:
                answer.append(supported)
        ids = (
            *codec.bos_ids,
            *codec.encode(layout.before),
            *instruction,
            *codec.encode(layout.after),
            *answer,
        )
        options = tuple((token,) for token in vocabulary.group(case.labels))
        return CriticPrompt(ids, options, +dropped)

    def _part(self, case: Case, part: str, dropped: Counter[str]) -> list[int]:
        limit: int = getattr(self.limits, part)
        ids = self.prompting.codec.encode(
            case.texts()[part][: CHARACTERS_A_TOKEN * 4 * limit]
        )
        dropped[part] = max(0, len(ids) - limit)
        return cut(ids, limit, part)


LEXICAL = "lexical"

_NOTES = frozenset({"README.md", "training.json"})
"""Files of a critic's folder that decide no judgment."""

_ASKS = re.compile(
    r"\?|^\W*(who|what|when|where|which|whose|whom|how|why|is|are|was|were|did|does|do|can|in what|tell me about)\b",
    re.IGNORECASE,
)
_CHECKABLE = re.compile(r"\d|(?<=[a-z,;] )[A-Z]")
_SURE = 0.9


def open_critic(
    name: str, engine: str | None = None, judges: Sequence[str] = ()
) -> Critic:
    """Return a critic: `lexical`, `demo` (that of the package), or that of a folder.

    Args:
        name: of the critic.
        engine: as for `load_engine`.
        judges: names of judges as `open_judge` takes them, each in place of the critic's own for its group.
    """
    replacements = [open_judge(judge) for judge in judges]
    for judge in replacements:
        group_of(judge)  # refused before a model is loaded
    folder = critic_folder(name)
    critic = lexical_critic() if folder is None else load_critic(folder, engine)
    if replacements:
        return critic.replaced(replacements)
    return critic


def critic_folder(name: str) -> Path | None:
    """Folder of a trained critic by that name; None for `lexical`."""
    if name == LEXICAL:
        return None
    if name != DEMO and not (name and Path(name).is_dir()):
        raise UserError(
            f"no critic {name!r}: give the folder of a trained one, {DEMO} or {LEXICAL}"
        )
    return resolve_critic(name)


def fingerprint(name: str) -> str:
    """Return what changes with the critic: its name, and the content of files that decide its judgments."""
    folder = ADAPTER if name == DEMO else Path(name)
    if not folder.is_dir():
        return name
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in _NOTES
    )
    return " ".join(
        f"{path.relative_to(folder).as_posix()}:{sha256(path)[:16]}" for path in files
    )


def lexical_critic() -> Critic:
    """Return the critic by word overlap: the floor of a trained one. It ignores order, inflection and meaning."""
    judges = {}
    for group in GROUPS:
        judges[group] = _baseline(LEXICAL, group, partial(_overlaps, group))
    return Critic(judges)


def _overlaps(group: str, inputs: Sequence[JudgeInput]) -> list[Sequence[float]]:
    rows: list[Sequence[float]] = []
    for state in inputs:
        size = len(GROUPS[group])
        shares = [(1 - _SURE) / (size - 1)] * size
        shares[_lexical_label(Case(group, state))] = _SURE
        rows.append(shares)
    return rows


def _lexical_label(case: Case) -> int:
    """Return the position of the label in its group."""
    output = case.output
    match case.group:
        case "IsRel":
            return int(_evident(case, case.instruction) < 0.4)
        case "IsSup":
            share = _evident(case, output)
            return int(share < 0.8) + int(share < 0.4)
        case "IsUse":
            if overlap(output, case.instruction) < 0.9:
                return 4
            return 1
    # Retrieve: a question or something checkable retrieves, unless the evidence has it.
    if not case.preceding and (not output or case.evidence is None):
        retrieves = _ASKS.search(case.instruction)
    elif case.evidence is not None and _evident(case, output) >= 0.6:
        return 2
    else:
        retrieves = _CHECKABLE.search(output)
    return int(retrieves is None)


def _evident(case: Case, text: str) -> float:
    return overlap(text, case.texts()["evidence"])
