"""`python -m forwardpass`, the same as the command `forwardpass`."""

import sys

from .cli import main

sys.exit(main())
