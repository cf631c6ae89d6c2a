"""`python -m pie_control.cli` is `pie`."""

import sys

from .main import main

sys.exit(main())
