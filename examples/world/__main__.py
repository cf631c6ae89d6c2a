"""`python -m examples.world --port 8099`: serves an agent's world until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from examples.world.serving import FLAKY, SLOW, Settings, serving


def main() -> None:
    """Reads the options, and serves."""
    parser = argparse.ArgumentParser(prog="python -m examples.world", description=__doc__)
    parser.add_argument("--port", type=int, default=8099, help="port of 127.0.0.1; 0: a free one (default 8099)")
    parser.add_argument("--seed", type=int, default=0, help="who is whose friend, and what fails (default 0)")
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds that each call takes (default 0)")
    parser.add_argument("--slow", type=float, default=1000.0, help=f"milliseconds more for {SLOW} (default 1000)")
    parser.add_argument(
        "--failures", type=float, default=0.5, help=f"share of calls of {FLAKY} that fail (default 0.5)"
    )
    parser.add_argument("--relation", action="append", default=[], help="a further relation, such as godmother")
    parser.add_argument("--bad", action="store_true", help="with tools that answer garbage, 10 MiB and lies")
    given = parser.parse_args()
    try:
        settings = Settings(
            given.seed, given.delay / 1000, given.slow / 1000, given.failures, tuple(given.relation), given.bad
        )
        asyncio.run(_serve(settings, given.port))
    except (ValueError, OverflowError, OSError) as error:
        sys.exit(f"the world cannot be served: {error}")
    except KeyboardInterrupt:
        pass


async def _serve(settings: Settings, port: int) -> None:
    async with serving(settings, port) as served:
        print(f"serving the village at {served.url}, MCP at {served.mcp}", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


main()
