"""`python -m critic`: the command line."""

import sys

from critic.cli.main import main

sys.exit(main())
