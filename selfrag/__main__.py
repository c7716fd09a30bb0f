"""`python -m selfrag`: the command line."""

import sys

from selfrag.cli.main import main

sys.exit(main())
