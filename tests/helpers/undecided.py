"""What the references of tests raise."""


class Undecided(Exception):
    """Which token comes is a matter of rounding."""
