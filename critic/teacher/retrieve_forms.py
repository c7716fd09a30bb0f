"""The three forms of Retrieve: the instruction alone, a sentence, a sentence with evidence (paper, Tables 8 and 9)."""

from __future__ import annotations

from critic.cases import Case
from critic.teacher.forms import EVIDENCE, INSTRUCTION, OUTPUT, PRECEDING, Demonstration, Form
from retrieval.passage import Passage

YES, NO, CONTINUE = "Retrieval", "No Retrieval", "Continue to Use Evidence"

WITH_INSTRUCTION = Form(
    name="retrieve/instruction",
    task=(
        "You are given an instruction that somebody wrote for an assistant. Decide whether looking something up in an"
        " encyclopedia or on the web before answering would make the response better or easier to verify."
    ),
    surfaces={"[Yes]": YES, "[No]": NO},
    meanings={
        YES: "the response states facts about the world: people, places, events, numbers, science, well-known or not.",
        NO: "the response needs none: a calculation, an edit of a given text, fiction, an opinion, small talk.",
    },
    fields=(INSTRUCTION,),
    question="Need retrieval?",
    demonstrations=(
        Demonstration(Case("Retrieve", "Which river flows through Budapest?"), YES),
        Demonstration(Case("Retrieve", "Rewrite in the passive voice: The gardener watered the roses."), NO),
        Demonstration(Case("Retrieve", "What causes the northern lights, and where can they be seen?"), YES),
        Demonstration(Case("Retrieve", "A train covers 180 km in 1.5 hours. What is its average speed?"), NO),
        Demonstration(
            Case(
                "Retrieve",
                "Is the following statement correct or not? Say true or false.\nThe okapi is related to the giraffe.",
            ),
            YES,
        ),
        Demonstration(Case("Retrieve", "Write a birthday greeting for a colleague who likes sailing."), NO),
    ),
)

WITH_SENTENCE = Form(
    name="retrieve/sentence",
    task=(
        "You are given an instruction and the output that an assistant writes next; preceding sentences, if any, come"
        " before that output. Decide whether the output should be backed by a document that has to be looked up."
    ),
    surfaces={"[Yes]": YES, "[No]": NO},
    meanings={
        YES: "the output makes a claim about the world that a reader may want to check.",
        NO: "the output holds nothing to check: greetings, opinions, fiction, arithmetic, an edit of a given text.",
    },
    fields=(INSTRUCTION, PRECEDING, OUTPUT),
    question="Need retrieval?",
    demonstrations=(
        Demonstration(
            Case(
                "Retrieve",
                "Tell me about the Suez Canal.",
                "The Suez Canal joins the Mediterranean Sea to the Red Sea.",
                "It was opened to shipping in November 1869.",
            ),
            YES,
        ),
        Demonstration(
            Case(
                "Retrieve",
                "Tell me about the Suez Canal.",
                "It was opened to shipping in November 1869.",
                "I hope this gives you a first idea of the canal!",
            ),
            NO,
        ),
        Demonstration(Case("Retrieve", "Who painted The Night Watch?", output="Rembrandt van Rijn"), YES),
        Demonstration(Case("Retrieve", "What is 17 times 6?", output="17 times 6 is 102."), NO),
    ),
)

_BEES = Passage(
    "demonstration",
    "A honey bee colony in summer consists of one queen, some hundreds of drones and tens of thousands of workers."
    " Workers are females that do not normally lay eggs; they clean cells, nurse larvae, build comb and forage.",
    "Honey bee",
)

WITH_EVIDENCE = Form(
    name="retrieve/evidence",
    task=(
        "You are given an instruction, a passage of evidence that has already been looked up, and the output that an"
        " assistant writes next; preceding sentences, if any, come before that output. Decide where the information in"
        " the output can be checked."
    ),
    surfaces={"[Retrieval]": YES, "[No Retrieval]": NO, "[Continue to Use Evidence]": CONTINUE},
    meanings={
        YES: "the output makes a claim that this evidence does not settle, so another document is needed.",
        NO: "the output holds nothing to check, such as an opinion, a greeting or common sense.",
        CONTINUE: "this evidence alone is enough to check the output.",
    },
    fields=(INSTRUCTION, PRECEDING, EVIDENCE, OUTPUT),
    question="Rating:",
    demonstrations=(
        Demonstration(
            Case(
                "Retrieve",
                "How is a bee colony organised?",
                "A colony has a single queen.",
                "In summer it has tens of thousands of workers besides.",
                _BEES,
            ),
            CONTINUE,
        ),
        Demonstration(
            Case(
                "Retrieve",
                "How is a bee colony organised?",
                "A colony has a single queen.",
                "A queen can live for three to four years.",
                _BEES,
            ),
            YES,
        ),
        Demonstration(
            Case(
                "Retrieve",
                "How is a bee colony organised?",
                "Workers clean cells, nurse larvae and forage.",
                "Isn't it wonderful how well they work together?",
                _BEES,
            ),
            NO,
        ),
    ),
)
