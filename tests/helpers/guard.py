"""How long tests wait for what should come at once."""

from __future__ import annotations

HANG_SECONDS = 240.0
"""What takes longer hangs. A test never measures by it: a machine may have ten times as much to do as it has cores."""
