"""Installs Pie, editable, with the versions of constraints.txt, into the environment of the Python that runs this.

    .venv/bin/python scripts/install.py [EXTRA ...]

On Linux pip's usual torch brings several GB of CUDA libraries. Where there is no NVIDIA GPU this takes the CPU build
from PyTorch's own index instead, if that answers, and else what pip finds. A torch that is installed already stays.

TORCH_INDEX=URL takes torch from that index; TORCH_INDEX= (empty) leaves the choice to pip.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_SECONDS = 5
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
EDITABLE = ("--config-settings", "editable_mode=compat", "--editable")
"""By a path, which type checkers and editors follow; they do not follow the import hook that is setuptools' default."""
OF_SERVERS = (
    *("pie_control.application.host", "pie_control.cli.main", "pie_control.http_server.server"),
    *("pie_control.runtime", "pie_inference.serving.loop"),
)
OF_TESTS = ("hypothesis.strategies", "pytest", "xdist.remote")
"""What each start of a server imports, and each process of tests: an eighth of all code that is installed."""
WITH_TORCH = ("torch", "triton")  # torch's package requires one version of triton


@dataclass(frozen=True)
class Choice:
    """Where torch comes from: an index of its own, or what pip finds. `why` is for the reader of the terminal."""

    index: str | None
    why: str


def choose(asked: str | None, environment: Mapping[str, str], cpu_index: str = CPU_INDEX) -> Choice:
    """`asked`: TORCH_INDEX, None where it is not set."""
    if asked is not None:
        return Choice(asked or None, f"from {asked}" if asked else "from where pip finds it, as TORCH_INDEX= asks")
    if platform.system() != "Linux":
        return Choice(None, "from where pip finds it")
    if has_nvidia_gpu():
        return Choice(None, "from where pip finds it, for the NVIDIA GPU")
    if index := own_index(environment):
        return Choice(None, f"from where pip finds it ({index} is set; TORCH_INDEX={cpu_index} asks for the CPU build)")
    if not offers(cpu_index, pinned_torch(), environment):
        return Choice(None, f"from where pip finds it; {cpu_index} does not answer (TORCH_INDEX=URL names another)")
    return Choice(cpu_index, f"the CPU build from {cpu_index}, for there is no NVIDIA GPU")


def has_nvidia_gpu(devices: Path = Path("/dev")) -> bool:
    return any(devices.glob("nvidia*")) or shutil.which("nvidia-smi") is not None


def own_index(environment: Mapping[str, str]) -> str | None:
    """The setting of pip by which somebody has decided where packages come from."""
    done = subprocess.run([*PIP, "config", "list"], env=environment, capture_output=True, text=True, check=False)
    names = re.findall(r"^[\w-]+\.(\S+?)=|^:env:\.(\S+?)=", done.stdout, re.MULTILINE)
    found = {name for pair in names for name in pair}
    return next((name for name in ("index-url", "no-index") if name in found), None)


def offers(index: str, version: str, environment: Mapping[str, str]) -> bool:
    """Whether the index answers soon and has this torch for this Python. Asks pip, which knows of proxies."""
    others = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")
    alone = {name: value for name, value in environment.items() if name not in others} | {"PIP_CONFIG_FILE": os.devnull}
    ask = [*PIP, "--timeout", str(ANSWER_SECONDS), "--retries", "0", "index", "versions", "torch", "--index-url", index]
    try:
        done = subprocess.run(ask, env=alone, capture_output=True, text=True, check=False, timeout=2 * ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    return found is not None and version in {each.partition("+")[0] for each in found[1].split(", ")}


def pinned_torch() -> str:
    """The version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


def installed_torch() -> str | None:
    """Its version."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def constraints(torch: str | None) -> str:
    """constraints.txt, with the torch that is installed instead of its own, and then any triton."""
    text = (ROOT / "constraints.txt").read_text()
    if torch is None or torch.partition("+")[0] == pinned_torch():
        return text
    kept = [line for line in text.splitlines() if line.partition("==")[0] not in WITH_TORCH]
    return "\n".join([*kept, f"torch=={torch}", ""])


def pip_install(*arguments: str) -> bool:
    """Without bytecode, of which `make_bytecode` makes what is needed: that of all takes 40 s of a processor."""
    return subprocess.run([*PIP, "install", "--quiet", "--no-compile", *arguments], check=False).returncode == 0


def make_bytecode(modules: Sequence[str]) -> None:
    """Imports modules, which makes the bytecode of all that they import; that of the rest comes when it is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", f"import {', '.join(modules)}"], env=environment, check=False)


def install_torch(choice: Choice, file: str) -> bool:
    """From its own index, if it has one; without other packages, which may be missing there."""
    print(f"torch: {choice.why}", flush=True)
    return choice.index is None or pip_install("--no-deps", "--constraint", file, "--index-url", choice.index, "torch")


def main(extras: list[str]) -> int:
    torch = installed_torch()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text(constraints(torch))
        if torch is not None:
            print(f"torch: {torch} is installed and stays")
        elif not install_torch(choose(os.environ.get("TORCH_INDEX"), os.environ), str(file)):
            return 1
        project = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
        return 0 if pip_install("--constraint", str(file), *EDITABLE, project) else 1


if __name__ == "__main__":
    status = main(sys.argv[1:])
    if status == 0:
        make_bytecode([*OF_SERVERS, *(OF_TESTS if "dev" in sys.argv else ())])
    sys.exit(status)
