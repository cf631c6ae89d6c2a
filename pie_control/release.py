"""The release of Pie that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Version of the installed package."""
    try:
        return version("pie-serving")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
