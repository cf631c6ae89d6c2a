"""`python -m pie_inference.inspection checkup|measure MODEL ...`: JSON for `pie models` and `pie bench-model`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..config import add_config_arguments, read_config
from ..errors import InferenceError
from ..options.isa import limit_isa


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 with the reason on stderr."""
    options = _parser().parse_args(arguments)
    try:
        found = [_inspect(options, model) for model in options.models]
    except (InferenceError, MemoryError, RuntimeError) as error:
        print(f"pie: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


def _inspect(options: argparse.Namespace, model: Path) -> dict[str, object]:
    config = read_config(options, model, model.name)
    limit_isa(config.max_isa)
    if options.what == "checkup":
        from .checkup import check_up

        return check_up(config).as_json()
    from .measure import measure

    return asdict(measure(config, budget=options.budget))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("pie_inference.inspection", allow_abbrev=False)
    parser.add_argument("what", choices=("checkup", "measure"))
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--budget", type=float, default=1.0, help="factor on the time that measuring takes")
    add_config_arguments(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
