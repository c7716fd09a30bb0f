"""Measure a critic against its baselines: the table of the model card.

    python scripts/demo_model/eval_critic.py --rows DATA/dev/critic.jsonl --critic RUN/model --base BASE --train DATA

Any of --critic, --base and --train may be left out. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from critic.evaluation import EvaluationSubjects, report, run_evaluation
from scripts.command import command


@command
def main() -> int:
    """Read the command line, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("--rows", type=Path, required=True, help="labelled cases")
    parser.add_argument("--critic", help="folder of a trained critic, or demo")
    parser.add_argument("--base", help="untrained base model, asked with the teacher's prompt")
    parser.add_argument("--train", type=Path, help="training rows, or data folder, for majority label and tf-idf")
    parser.add_argument("--engine", choices=("vllm", "transformers"), help="default: the best one installed")
    parser.add_argument("--out", type=Path, help="write figures, manifest and judgments as JSON; killed, it continues")
    given = parser.parse_args()
    subjects = EvaluationSubjects(given.critic, given.base, given.train, given.engine)
    found = run_evaluation(given.rows, subjects, out=given.out, say=lambda text: print(text, file=sys.stderr))
    print(report(found, next(iter(found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
