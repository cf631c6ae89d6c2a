"""`python -m pie_inference.serving`: a worker process."""

from __future__ import annotations

import os
import sys

from .worker import main

status = main()
sys.stderr.flush()
os._exit(status)  # taking torch down in order would take a third of a second for nothing
