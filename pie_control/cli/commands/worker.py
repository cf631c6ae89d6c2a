"""`pie worker`: a worker that servers, perhaps of other machines, find at an address."""

from __future__ import annotations

import argparse
import os
import sys

from pie_control.errors import ConfigError
from pie_inference.options import add_arguments as add_model_settings
from pie_inference.options.lifetime import command_of

from ..server_options import TUPLE_METAVARS

NAME = "worker"
HELP = "serve a model to the `pie serve` of another machine, until interrupted"
EXAMPLES = """  pie worker --model ~/models/llama --listen tcp://10.0.0.2:8012 --secret-file secret
  pie worker --listen tcp://127.0.0.1:8012             for servers of this machine; needs no secret
  pie worker --worker paced:15ms --listen tcp://127.0.0.1:8012
  pie serve --worker tcp://10.0.0.2:8012 --secret-file secret     the server, there"""

SETTINGS = ("model", "worker", "secret_file", "cache_dir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--listen",
        metavar="tcp://ADDRESS:PORT",
        help="where servers find the worker (default: $PIE_LISTEN); port 0: any free one",
    )
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="file with the secret, 32 characters at least, that the server has, too; $PIE_WORKER_SECRET is the other "
        "way; only addresses as tcp://127.0.0.1:8012 need none",
    )
    parser.add_argument(
        "--model",
        metavar=TUPLE_METAVARS["model"],
        help="folder of a Hugging Face checkpoint, its id on the hub, `demo` or `demo-reasoner` (default: demo)",
    )
    parser.add_argument(
        "--worker",
        metavar="paced:TIME",
        help="no model, but a stand-in that takes this time for a wave, as in `pie serve`",
    )
    parser.add_argument("--cache-dir", metavar="FOLDER", help="for compiled kernels (default: $XDG_CACHE_HOME/pie)")
    add_model_settings(parser)


def execute(options: argparse.Namespace) -> int:
    """Becomes the worker; returns only if that cannot be."""
    from pie_control.config import LISTEN_VARIABLE, build_config
    from pie_control.config.workers import find_secret
    from pie_control.inference_client.process import PACED_WORKER, WORKER, worker_environment
    from pie_inference.options import option_fields

    listen = options.listen or os.environ.get(LISTEN_VARIABLE)
    if not listen:
        raise ConfigError("say where servers find the worker: --listen tcp://ADDRESS:PORT, as tcp://127.0.0.1:8012")
    names = (*SETTINGS, *(option.name for option in option_fields()))
    config = build_config({name: getattr(options, name) for name in names}, os.environ).resolved()
    if config.remote_workers:
        raise ConfigError("a worker has no workers: --worker is paced:TIME here, or left out")
    if len(config.models) != 1:
        raise ConfigError("a worker serves one model: start one worker for each")
    (model,) = config.models
    find_secret(config.worker_secret, config.secret_file, (listen,))
    place = ["--listen", listen]
    if config.secret_file:
        place += ["--secret-file", config.secret_file]
    module = PACED_WORKER if config.pace else WORKER
    command = [*command_of(module), *place, *config.worker_arguments(model)]
    sys.stdout.flush()
    os.execve(sys.executable, command, worker_environment(os.environ, config.worker_secret))
