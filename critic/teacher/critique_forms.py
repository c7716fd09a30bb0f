"""The forms of the three critiques: relevance, support and usefulness (paper, Tables 10 to 12)."""

from __future__ import annotations

from critic.cases import Case
from critic.teacher.forms import EVIDENCE, INSTRUCTION, OUTPUT, PRECEDING, Demonstration, Form
from retrieval.passage import Passage

RELEVANT, IRRELEVANT = "Relevant", "Irrelevant"
FULLY, PARTIALLY, NOT = "Fully supported", "Partially supported", "No support / Contradictory"


def _passage(title: str, text: str) -> Passage:
    return Passage("demonstration", text, title)


_BRIDGE = _passage(
    "Forth Bridge",
    "The Forth Bridge is a cantilever railway bridge across the Firth of Forth in the east of Scotland. Construction"
    " began in 1882 and it was opened on 4 March 1890. It is 2,467 metres long.",
)

ISREL = Form(
    name="isrel",
    task=(
        "You are given an instruction and a passage of evidence; preceding sentences, if any, are the part of the"
        " response that is already written. Decide whether the evidence holds information that helps to write the"
        " response, or what comes next in it."
    ),
    surfaces={"[Relevant]": RELEVANT, "[Irrelevant]": IRRELEVANT},
    meanings={
        RELEVANT: "the evidence gives information that is useful for carrying out this very instruction.",
        IRRELEVANT: "it does not, even if it is about the same subject or shares words with the instruction.",
    },
    fields=(INSTRUCTION, PRECEDING, EVIDENCE),
    question="Rating:",
    demonstrations=(
        Demonstration(Case("IsRel", "When did the Forth Bridge open?", evidence=_BRIDGE), RELEVANT),
        Demonstration(Case("IsRel", "Who designed the Forth Bridge?", evidence=_BRIDGE), IRRELEVANT),
        Demonstration(
            Case(
                "IsRel",
                "Choose the best answer.\nWhich melts at the lowest temperature?\nA: iron\nB: gallium\nC: gold",
                evidence=_passage("Gallium", "Gallium is a soft, silvery metal that melts in the hand, at 29.8 C."),
            ),
            RELEVANT,
        ),
        Demonstration(
            Case(
                "IsRel",
                "how many players are there in a water polo team",
                evidence=_passage("Polo", "Polo is played on horseback by two teams of four players each."),
            ),
            IRRELEVANT,
        ),
    ),
)

ISSUP = Form(
    name="issup",
    task=(
        "You are given an instruction, an output and a passage of evidence; preceding sentences, if any, come before"
        " the output and are not judged. Decide how much of the information in the output follows from the evidence."
        " Use the evidence only: it does not matter whether the output is true, or whether it follows the instruction."
    ),
    surfaces={"[Fully supported]": FULLY, "[Partially supported]": PARTIALLY, "[No support / Contradictory]": NOT},
    meanings={
        FULLY: "everything that the output says is said in the evidence or follows from it directly.",
        PARTIALLY: "some of it is, but important information in the output is not to be found there.",
        NOT: "the evidence says nothing about it, is about something else, or says the opposite.",
    },
    fields=(INSTRUCTION, PRECEDING, OUTPUT, EVIDENCE),
    question="Score:",
    demonstrations=(
        Demonstration(
            Case("IsSup", "Tell me about the Forth Bridge.", "", "The bridge was opened in March 1890.", _BRIDGE), FULLY
        ),
        Demonstration(
            Case(
                "IsSup",
                "Tell me about the Forth Bridge.",
                "The bridge was opened in March 1890.",
                "It took eight years to build and cost 57 workers their lives.",
                _BRIDGE,
            ),
            PARTIALLY,
        ),
        Demonstration(
            Case("IsSup", "Tell me about the Forth Bridge.", "", "The Forth Bridge carries a motorway.", _BRIDGE), NOT
        ),
    ),
)

ISUSE = Form(
    name="isuse",
    task=(
        "You are given an instruction and the output of an assistant. Rate how helpful and informative the output is"
        " as a response to the instruction, from 1 (lowest) to 5 (highest). Whether it is factually right is judged"
        " elsewhere; judge how well it serves whoever asked."
    ),
    surfaces={str(grade): str(grade) for grade in range(1, 6)},
    meanings={
        "1": "off the subject, or hardly a response at all.",
        "2": "about the subject, but incomplete to the point of not answering, or answering another question.",
        "3": "acceptable, yet major parts of what was asked for are missing.",
        "4": "mostly serves the need; details, structure or wording could be better.",
        "5": "complete and clear; serves the need fully at the length that was asked for.",
    },
    fields=(INSTRUCTION, OUTPUT),
    question="Perceived utility:",
    demonstrations=(
        Demonstration(
            Case("IsUse", "Which planets have rings?", output="Jupiter, Saturn, Uranus and Neptune all have rings."),
            "5",
        ),
        Demonstration(
            Case(
                "IsUse",
                "Explain step by step how to change a bicycle tube.",
                output="Take the wheel off, lever the tyre from the rim, pull out the old tube, put in the new one,"
                " press the tyre back and inflate it.",
            ),
            "4",
        ),
        Demonstration(
            Case(
                "IsUse",
                "Name five dishes from Peru and describe each of them.",
                output="Ceviche is raw fish cured in lime juice. Lomo saltado is a stir-fry of beef and onions.",
            ),
            "3",
        ),
        Demonstration(
            Case(
                "IsUse",
                "Who is the mayor of Oslo today?",
                output="Oslo has had a mayor since 1837, elected by the council.",
            ),
            "2",
        ),
        Demonstration(
            Case("IsUse", "Translate into French: Good evening, madam.", output="Bicycles have two wheels."), "1"
        ),
    ),
)
