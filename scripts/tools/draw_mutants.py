"""Draw changes of the core at random, and say which of them no test notices.

`draw_mutants.py [--count 150] [--seed 0]`. `mutmut` makes the mutants, and runs for each the tests that reach its
function. The folder `mutants` keeps what it knows.
"""

import argparse
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path


def mutmut(*words: str, check: bool = True, stdout: int | None = None) -> str:
    """Run `mutmut`, and return what it wrote to a pipe."""
    command = [str(Path(sys.executable).with_name("mutmut")), *words]
    done = subprocess.run(command, check=check, stdout=stdout, text=True)  # noqa: S603
    return done.stdout or ""


def statuses() -> dict[str, str]:
    """Return the status of every mutant, by its name."""
    lines = mutmut("results", "--all", "true", stdout=subprocess.PIPE).splitlines()
    return dict(line.strip().split(": ") for line in lines)


def main() -> None:
    """Decide the drawn mutants, and print the survivors with their changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # This makes the mutants and times the tests of every function; that no mutant has the name comes after.
    mutmut("run", "no mutant", check=False)
    drawn = random.Random(args.seed).sample(sorted(statuses()), args.count)  # noqa: S311
    mutmut("run", *drawn)
    decided = statuses()
    print(dict(Counter(decided[name] for name in drawn)))
    for name in drawn:
        if decided[name] != "killed":
            print(f"\n{name}: {decided[name]}", flush=True)
            mutmut("show", name)


if __name__ == "__main__":
    main()
