"""`python -m eyrie`: the same as the `eyrie` script, in whatever interpreter a rule names."""

import sys

from eyrie.cli import main

sys.exit(main())
