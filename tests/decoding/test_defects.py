"""Defects of the official code and of its re-implementations that concern decoding: one named test each.

Numbers are those of the case list that this project keeps of the published code (paper arXiv 2310.11511). Case 14
(modes that crash) and case 40 (option likelihood) are in test_scores.py; cases about data, training
and metrics are tested where these are.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import written
from written import PROMPTING, VOCABULARY, Characters, Searches, passages, run, scripted

from selfrag.api import SelfRAG
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import read, read_critique
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import GROUPS, ISREL, ISUSE, RETRIEVE, TOKENS
from selfrag.reflection.requests import Finish, Generated
from selfrag.reflection.weights import Weights

D1, D2 = "[Retrieval]<d1>", "[Retrieval]<d2>"
GOOD, POOR = "{isuse 0 0 0 0 1}", "{isuse 1 0 0 0 0}"
MORE, NO_MORE, KEEP = "{retrieve 1 0 0}", "{retrieve 0 1 0}", "{retrieve 0 0 1}"
ALWAYS = {"mode": "always"}


@pytest.mark.parametrize(
    "log_yes, log_no, right, action",
    [
        (-0.01, -5, 0.993, "retrieve"),
        (-2, -0.2, 0.142, "write"),
        (-1, -1, 0.5, "retrieve"),
    ],
)
def test_defect_01_inverted_retrieve_test(log_yes, log_no, right, action):
    """The test compares probabilities, not log-probabilities."""
    judgment = Judgment.from_logprobs(
        RETRIEVE, [log_yes, log_no, -math.inf], site="start"
    )
    assert Decoding().retrieval_score(judgment) == pytest.approx(right, abs=1e-3)
    assert Decoding().action(judgment, has_evidence=False)[0] == action


def test_defect_02_literal_token_beside_the_probability():
    """Only the distribution where the decision is due counts, neither the text nor what greedy decoding emits later."""
    done = run(
        {"": "{~retrieve .1 .9 0}Sure![Retrieval]", "[No Retrieval]": "No search.</s>"},
        "d1",
    )
    assert done.answer.text == "No search."
    done = run({"": "{~retrieve .9 .1 0}Sure!", D1: "[Relevant]Searched.</s>"}, "d1")
    assert done.answer.text == "Searched."


def test_defect_03_utility_read_from_the_wrong_ids():
    """p(4) = 0.2, p(5) = 0.8 is a utility of 0.9, and adds 0.45 at weight 0.5."""
    written = "[Relevant]A.[Fully supported]{isuse 0 0 0 .2 .8}</s>"
    with_use = run({D1: written}, "d1", **ALWAYS).node("A.")
    without = run({D1: written}, "d1", **ALWAYS, weights=Weights(isuse=0)).node("A.")
    assert with_use.judgments["isuse"].score == pytest.approx(0.9)
    assert with_use.score - without.score == pytest.approx(0.45)


def test_defect_04_sequence_score_silently_off():
    """Equal critiques: the more likely candidate ranks first."""
    tree = {D1: ("[Relevant]Unlikely.</s>", 0.1), D2: ("[Relevant]Likely.</s>", 0.9)}
    done = run(tree, "d1", "d2", **ALWAYS)
    assert done.answer.text == "Likely."
    assert done.node("Likely.").score - done.node("Unlikely.").score == pytest.approx(
        0.8
    )


def test_defect_05_sibling_leak():
    """The prompt of c's continuation is Q + a passage + c, and holds neither of its siblings a and b."""
    tree = {
        f"[Retrieval]<d{i}>": f"[Relevant]{text}{MORE}"
        for i, text in enumerate("abc", 1)
    }
    tree |= {
        f"{text}[Retrieval]<d{i}>": f"[Relevant]{text}{i}.</s>"
        for text in "abc"
        for i in (1, 2, 3)
    }
    done = run(tree, "d1", "d2", "d3", **ALWAYS, beam=3, history="text")
    later = done.prompts[3:]
    assert sorted(later) == sorted(
        f"{text}[Retrieval]<d{i}>" for text in "abc" for i in (1, 2, 3)
    )
    for node in done.answer.trace.nodes[3:]:
        assert node.text[0] == done.answer.trace.nodes[node.parent].text


def test_defect_06_finished_answers_lost():
    """d0 finishes with 2.0; d1 continues with 0.3 and its child ends with 0.0: the answer is d0's."""
    tree = {
        D1: ("{isrel .9 .1}Whole.</s>", 1.0),
        D2: ("{isrel .1 .9}Part." + MORE, 0.1),
        "Part." + D1: ("{isrel 0 1}Rest.</s>", 0.01),
        "Part." + D2: ("{isrel 0 1}End.</s>", 0.01),
    }
    for accumulate in ("mean", "product"):
        assert (
            run(
                tree, "d1", "d2", **ALWAYS, history="text", accumulate=accumulate
            ).answer.text
            == "Whole."
        )


def test_defect_07_product_of_scores():
    """Under the default rule three equal segments score as one, and two bad segments do not look good."""
    line = {
        "[No Retrieval]"
        + "".join(f"{i}[No Retrieval]" for i in range(n)): f"{n}{NO_MORE}"
        for n in range(3)
    }
    done = run(line, mode="never", max_segments=3)
    assert done.node("2").path_score == pytest.approx(done.node("0").score)
    bad = {
        D1: (f"[Irrelevant]Bad.{POOR}{MORE}", 0.01),
        D2: ("{isrel .3 .7}Fair.</s>", 0.01),
        "Bad." + D1: (f"[Irrelevant]Worse.{POOR}</s>", 0.01),
        "Bad." + D2: (f"[Irrelevant]Worst.{POOR}</s>", 0.01),
    }
    done = run(bad, "d1", "d2", **ALWAYS, history="text")
    assert done.node("Bad.").score < 0
    assert done.answer.text == "Fair."


def test_defect_08_a_missing_id_is_an_error_never_a_number():
    """Every label is watched by its exact id; a group with a value missing is refused."""
    row = np.log(np.arange(1, len(VOCABULARY.watch) + 1, dtype=np.float32) / 100)
    assert read_critique(VOCABULARY, ISREL, row, "here").distribution == pytest.approx(
        (4 / 9, 5 / 9)
    )
    assert read_critique(VOCABULARY, ISUSE, row, "here").distribution == pytest.approx(
        [i / 55 for i in range(9, 14)]
    )
    for request in run({D1: "[Relevant]A.</s>"}, "d1", **ALWAYS).engine.requests:
        assert request.watch_ids == VOCABULARY.watch


def test_defect_09_missing_id_floors_with_top_k():
    """Labels far outside any top-k keep their exact ratio: 2e-12 against 6e-12 is 0.25 to 0.75."""
    written = "{~isrel 2e-12 6e-12}A.</s>"
    node = run({D1: written}, "d1", **ALWAYS, undefined="force").node("A.")
    assert node.judgments["isrel"].distribution == pytest.approx((0.25, 0.75), rel=1e-4)
    assert node.judgments["isrel"].coverage == pytest.approx(8e-12, rel=1e-3)


def test_defect_10_unemitted_critique_scored_zero():
    """An utility that was not emitted must not beat an honest Utility:2, nor Irrelevant count as contradicted."""
    tree = {
        D1: ("[Relevant]Silent.</s>", 0.9),
        D2: ("[Relevant]Honest.{isuse 0 1 0 0 0}</s>", 0.9),
    }
    silent, honest = (
        run(tree, "d1", "d2", **ALWAYS).node(text) for text in ("Silent.", "Honest.")
    )
    assert silent.judgments["isuse"] is None
    assert silent.score == pytest.approx(0.9 + 2.5)
    assert honest.score == pytest.approx(0.9 + (1 - 0.25) / 1.5 * 2.5)
    irrelevant = run({D1: "[Irrelevant]A.</s>"}, "d1", **ALWAYS).node("A.")
    assert irrelevant.judgments["issup"] is None


class Stripping(Characters):
    """A codec whose texts never show a special token, as engines do by default."""

    def decode(self, ids):
        return super().decode(ids).replace("[", "").replace("]", "").upper()


def test_defect_11_decisions_from_decoded_text(monkeypatch):
    """The same ids with another text give the same tree."""
    again = D1 + "[Relevant][one].[Continue to Use Evidence]"
    tree = {
        "": "{~retrieve .9 .1 0}x",
        D1: f"[Relevant][one].{KEEP}",
        D2: "[Irrelevant]zwei.</s>",
    }
    tree |= {
        again: f"two.{GOOD}{NO_MORE}",
        again + "two.[Utility:5][No Retrieval]": "three.</s>",
    }
    plain = run(tree, "d1", "d2")
    monkeypatch.setattr(written, "PROMPTING", Prompting(Stripping(), VOCABULARY))
    done = run(tree, "d1", "d2")
    assert [r.prompt_ids for r in done.engine.requests] == [
        r.prompt_ids for r in plain.engine.requests
    ]
    mine, theirs = (
        [replace(n, text="") for n in one.answer.trace.nodes] for one in (done, plain)
    )
    assert mine == theirs
    assert done.answer.text == "ONE. TWO. THREE."


def test_defect_12_meaning_flips_with_a_default():
    """One code path decides, before the first segment and after each; the trace has every decision and its reason."""
    tree = {
        "": "{~retrieve .3 .7 0}x",
        D1: "[Relevant]A.{retrieve .3 .7 0}",
        f"{D1}[Relevant]A.{D1}": "[Relevant]B.</s>",
    }
    trace = run(tree, "d1", threshold=0.2).answer.trace
    assert [(d.action, d.reason) for d in trace.decisions] == [
        ("retrieve", "0.300 > 0.2")
    ] * 2
    tree |= {
        "[No Retrieval]": "a.{retrieve .3 .7 0}",
        "[No Retrieval]a.[No Retrieval]": "b.</s>",
    }
    trace = run(tree, "d1", threshold=0.4).answer.trace
    assert [(d.action, d.reason) for d in trace.decisions] == [
        ("write", "0.300 <= 0.4")
    ] * 2


def test_defect_13_every_public_entry_point_runs():
    """Short form, long form, closed set, stream and list, through the public class."""
    tree = {"": "{~retrieve .9 .1 0}x"}
    tree |= {D1: "[Relevant]A.[Fully supported][Utility:5]</s>", f"{D1}[Relevant]": "A"}
    for option in "AB":
        tree |= {
            f"{D1}[Relevant]{option}{end}": "x" for end in ("", "[Fully supported]")
        }
    rag = SelfRAG(
        PROMPTING, scripted({"Q": tree}), Searches(lambda query: passages("d1"))
    )
    official = Decoding.official(max_segments=1, mode="always")
    for answer in (
        rag.generate("Q", max_segments=1),
        rag.generate(["Q", "Q"])[1],
        [*rag.stream("Q")][-1],
        rag.generate("Q", decoding=official),
    ):
        assert answer.text == "A."
    assert rag.choose("Q", ["A", "B"]).text == "A"


def test_defect_15_max_depth_off_by_one():
    """`max_segments = n` gives up to n segments."""
    tree = {
        "[No Retrieval]"
        + "".join(f"{i}.[No Retrieval]" for i in range(1, n)): f"{n}.{NO_MORE}"
        for n in (1, 2, 3)
    }
    for wanted, text in ((1, "1."), (2, "1. 2."), (3, "1. 2. 3.")):
        done = run(tree, mode="never", max_segments=wanted)
        assert (done.answer.text, done.answer.usage.requests) == (text, wanted)


def test_defect_16_ratios_stay_within_bounds():
    """p = (Yes 0.3, No 0.3, Continue 0.4): 0.5 or 0.3, never 0.7 / 0.6."""
    judgment = Judgment.from_logprobs(
        RETRIEVE, [math.log(p) for p in (0.3, 0.3, 0.4)], site="start"
    )
    assert Decoding().retrieval_score(judgment) == pytest.approx(0.5)
    assert Decoding(retrieve_test="all").retrieval_score(judgment) == pytest.approx(0.3)


def test_defect_17_continue_cites_its_own_passage():
    """Segment 1 from d3, segment 2 continues: both cite d3, not the first of the list."""
    tree = {
        "": "{~retrieve 1 0 0}x",
        D1: "[Irrelevant]No.</s>",
        "[Retrieval]<d3>": f"[Relevant]One.{KEEP}",
    }
    tree["[Retrieval]<d3>[Relevant]One.[Continue to Use Evidence]"] = "Two.</s>"
    done = run(tree, "d1", "d3")
    assert [s.citation.id for s in done.answer.segments if s.citation] == ["d3", "d3"]


def test_defect_18_citations_do_not_shift():
    """s1 (d2), s1 again (dropped), s2 (d0): the citations are d2 and d0."""
    tree = {
        "[Retrieval]<d2>": "[Relevant]s1." + MORE,
        "s1.[Retrieval]<d1>": "[Relevant]s1." + MORE,
        "s1.[Retrieval]<d0>": ("[Relevant]s2.</s>", 0.1),
    }
    search = {"Q": passages("d2"), "Q s1.": passages("d1", "d0")}
    done = run(tree, search=search, **ALWAYS, history="text")
    assert [(s.text, s.citation.id) for s in done.answer.segments if s.citation] == [
        ("s1.", "d2"),
        ("s2.", "d0"),
    ]
    assert done.answer.cited_text() == "s1. [1] s2. [2]"


def test_defect_19_last_character_is_kept():
    """Text is never cut to make room for a citation."""
    done = run({D1: "[Relevant]It was 1990</s>"}, "d1", **ALWAYS)
    assert done.answer.text == "It was 1990"
    assert done.answer.cited_text() == "It was 1990 [1]"


def test_defect_20_constraint_inside_the_search():
    """No support scores higher than Fully: with the constraint the second is chosen, and later segments follow it."""
    tree = {
        D1: (f"[Relevant]Wrong.{{issup .2 .2 .6}}{GOOD}{MORE}", 0.9),
        D2: (f"[Relevant]Right.{{issup .6 .2 .2}}{POOR}{MORE}", 0.1),
        "Wrong." + D1: "[Relevant]w.[Fully supported]</s>",
        "Wrong." + D2: "[Relevant]ww.[Fully supported]</s>",
        "Right." + D1: "[Relevant]More.[Fully supported]</s>",
        "Right." + D2: "[Irrelevant]Less.[Fully supported]</s>",
    }
    settings = {**ALWAYS, "beam": 1, "history": "text"}
    free = run(tree, "d1", "d2", **settings)
    assert free.answer.text == "Wrong. w."
    assert free.node("Wrong.").score > free.node("Right.").score
    done = run(
        tree, "d1", "d2", **settings, forbid={"issup": "No support / Contradictory"}
    )
    assert done.answer.text == "Right. More."
    assert not any("Wrong." in prompt for prompt in done.prompts)


def test_defect_21_no_reflection_token_survives_in_the_text():
    """Clean text contains none of the 15 strings, wherever the model puts them."""
    everything = "".join(
        f"{token}x" for token in TOKENS if token not in RETRIEVE.tokens
    )
    tree = {
        "[No Retrieval]": f"a{everything}[Continue to Use Evidence]",
        f"[No Retrieval]a{everything}[No Retrieval]": "b[Utility:5]</s>",
    }
    done = run(tree, mode="never")
    assert done.answer.text == "a" + "x" * 12 + " b"
    assert not any(token in done.answer.text for token in TOKENS)


def test_defect_39_one_eos_does_not_stop_its_siblings():
    """One hypothesis ends, the other continues and wins; so do two questions side by side."""
    tree = {
        D1: ("{isrel .5 .5}Over.</s>", 0.5),
        D2: ("[Relevant]Onward." + MORE, 0.5),
        "Onward." + D1: ("[Relevant]More.</s>", 0.9),
        "Onward." + D2: ("[Relevant]And more." + MORE, 0.9),
        "Onward.And more." + D1: ("[Relevant]End.</s>", 0.9),
        "Onward.And more." + D2: ("[Relevant]Fin.</s>", 0.9),
    }
    done = run(tree, "d1", "d2", **ALWAYS, history="text")
    assert done.answer.text == "Onward. And more. End."


# Traps seen in the field (re-implementations), where the numbered cases do not cover them.


def test_trap_empty_generation_is_read():
    """Nothing generated at all, as for a full context: no index error, nothing judged."""
    nothing = Generated(
        (), (), np.zeros((0, len(VOCABULARY.watch)), dtype=np.float32), Finish.CONTEXT
    )
    for forced in ((), tuple(labels.role for labels in GROUPS)):
        reading = read(
            nothing, VOCABULARY, branch="passage", site="here", forced=forced
        )
        assert (reading.text_ids, reading.likelihood, reading.ended) == ((), 0.0, True)
        assert set(reading.judgments.values()) == {None}


def test_prompts_are_byte_exact():
    """The layout of the published checkpoints, id for id: what the model wrote stands as it was written."""
    next_ = D1 + "[Relevant]A.[Fully supported][Utility:5][No Retrieval]"
    tree = {
        "": "{~retrieve 1 0 0}x",
        D1: "[Relevant]A.[Fully supported][Utility:5]{retrieve 0 1 0}",
    }
    tree |= {
        next_: "B.{retrieve 0 0 1}",
        next_ + "B.[Continue to Use Evidence]": "C.</s>",
    }
    engine = run(tree, "d1").engine

    def text(request):
        return "".join(
            chr(i - 100) if i >= 100 else f"<{i}>" for i in request.prompt_ids
        )

    prompt = "<40>### Instruction:\nQ\n\n### Response:\n"  # 40 is BOS; the tokens are counted as in TOKENS, from 1
    first = prompt + "<2><6>Title of d1\nText of d1.<7>"
    second = first + "<5>A.<13><12><1>"
    assert [text(request) for request in engine.requests] == [
        prompt,
        first,
        second,
        second + "B.<3>",
    ]
    assert [request.stop_ids for request in engine.requests] == [
        (),
        (2, 1, 3),
        (2, 1, 3),
        (2, 1, 3),
    ]
    assert [request.max_tokens for request in engine.requests] == [1, 100, 100, 100]
