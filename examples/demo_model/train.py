"""Train the demo model and write the folder that ships.

    python -m examples.demo_model.train --minutes 60 --out pie_inference/demo_model

trains for a given time; `--steps N` instead of `--minutes` gives the same run on every machine of the same kind. The
learning rate falls linearly to zero over the last part of the run. Matrices are trained with Muon, the rest with AdamW;
both update float32 copies of the bfloat16 weights that compute.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from examples.demo_model.data import IGNORED, Batch, batches, draw_mixed, training_texts
from examples.demo_model.export import export
from examples.demo_model.model import DemoLlama, ModelConfig
from examples.demo_model.reasoning.mixture import draw_reasoning
from examples.demo_model.tokenizer import save_tokenizer, train_tokenizer

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
MIXTURES = {"first": draw_mixed, "reasoning": draw_reasoning}


@dataclass(frozen=True)
class TrainConfig:
    """One training run; either `steps` or `minutes` is positive."""

    steps: int
    minutes: float
    seed: int = 1
    units: int = 4
    unit_tokens: int = 1024
    workers: int = 2
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup: float = 0.01
    decay: float = 0.6
    save_minutes: float = 3.0


class MixedPrecision:
    """bfloat16 weights that compute, and float32 copies of them that the optimizers update."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.working = list(model.parameters())
        self._masters = [nn.Parameter(parameter.detach().float().clone()) for parameter in self.working]
        model.to(torch.bfloat16)
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for (name, _), master in zip(model.named_parameters(), self._masters, strict=True):
            (matrices if name.endswith("proj.weight") else others).append(master)
        # One Muon for each worker, since the workers update side by side.
        for_matrices = [_muon(matrices[part :: config.workers], config) for part in range(config.workers)]
        for_others = torch.optim.AdamW(others, lr=config.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._optimizers = [*for_matrices, for_others]
        self._rates = [*[config.matrix_rate] * config.workers, config.other_rate]

    def step(self, gradients: list[Tensor], scale: float, pool: ThreadPoolExecutor) -> None:
        """Update with the gradients of the working weights; `scale` multiplies the learning rates."""
        for master, gradient in zip(self._masters, gradients, strict=True):
            master.grad = gradient

        def update(optimizer: torch.optim.Optimizer, rate: float) -> None:
            optimizer.param_groups[0]["lr"] = rate * scale
            optimizer.step()

        list(pool.map(update, self._optimizers, self._rates))
        with torch.no_grad():
            for master, working in zip(self._masters, self.working, strict=True):
                working.copy_(master)


def _muon(matrices: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.Muon(matrices, lr=config.matrix_rate, momentum=0.95, weight_decay=0.01)


def rate_scale(progress: float, config: TrainConfig) -> float:
    """Warm-up, constant, then linear to zero; `progress` from 0 to 1."""
    if progress < config.warmup:
        return (progress + 1e-3) / (config.warmup + 1e-3)
    if progress <= 1.0 - config.decay:
        return 1.0
    return (1.0 - progress) / config.decay


class Run:
    """The progress of a training run, by its steps or by the clock, and the tokens that it has seen."""

    def __init__(self, config: TrainConfig) -> None:
        self.losses: list[float] = []
        self._config = config
        self._tokens = 0
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def progress(self) -> float:
        """The progress from 0 to 1; more than 1 if the time ran out during a step."""
        if self._config.steps:
            return len(self.losses) / self._config.steps
        return self.seconds / (60 * self._config.minutes)

    def add(self, loss: float, parts: Sequence[Batch]) -> None:
        self.losses.append(loss)
        self._tokens += sum(ids.size for ids, _ in parts)

    def __str__(self) -> str:
        recent = self.losses[-20:]
        mean = sum(recent) / max(1, len(recent))
        speed = self._tokens / self.seconds
        done = f"step {len(self.losses)} at {self.progress:.3f}"
        return f"{done}, loss {mean:.4f}, {self._tokens} tokens, {speed:.0f} tokens/s"


def train(
    model: DemoLlama, steps: Iterator[list[Batch]], config: TrainConfig, save: Callable[[DemoLlama], None]
) -> list[float]:
    """Train `model` in bfloat16 on its device; save it regularly and at the end; return the losses of the steps."""
    weights = MixedPrecision(model, config)
    run, saved = Run(config), 0.0
    with ThreadPoolExecutor(config.workers) as pool:
        while (progress := run.progress) < 1:
            parts = next(steps)
            loss, gradients = gradients_of(model, weights.working, parts, pool)
            weights.step(gradients, rate_scale(progress, config), pool)
            run.add(loss, parts)
            if len(run.losses) % 20 == 0:
                print(run, flush=True)
            if run.seconds - saved > 60 * config.save_minutes:
                save(model)
                saved = run.seconds
    print(run)
    save(model)
    return run.losses


def gradients_of(
    model: DemoLlama, weights: list[nn.Parameter], parts: list[Batch], pool: ThreadPoolExecutor
) -> tuple[float, list[Tensor]]:
    """The mean loss over all learned positions of the parts, and its gradients in float32.

    Each worker computes one part at a time with one thread: on a shared machine that is far faster than many threads
    that wait for each other in each operation. The sum is in the order of the parts.
    """
    device = weights[0].device
    learned = sum(int((targets != IGNORED).sum()) for _, targets in parts)

    def compute(unit: Batch) -> tuple[float, tuple[Tensor, ...]]:
        ids, targets = (torch.from_numpy(array).to(device) for array in unit)
        loss = model.loss(ids, targets) / learned
        return float(loss.detach()), torch.autograd.grad(loss, weights)

    total, sums = 0.0, [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
    for loss, gradients in pool.map(compute, parts):
        total += loss
        for so_far, gradient in zip(sums, gradients, strict=True):
            so_far += gradient
    return total, sums


def load(sizes: ModelConfig, device: torch.device, start: Path | None) -> DemoLlama:
    """A new model, or one with the weights in the folder of an earlier run, which may have fewer layers."""
    model = DemoLlama(sizes).to(device)
    if start is not None:
        model.load_state_dict(deepened(load_file(start / "model.safetensors", device=str(device)), sizes.layers))
    return model


def deepened(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Weights of so many layers that compute the same: a new layer is a copy of the one before and adds nothing yet."""
    grouped: dict[int, dict[str, Tensor]] = {}
    result = {}
    for name, weight in weights.items():
        if found := LAYER.fullmatch(name):
            grouped.setdefault(int(found[1]), {})[found[2]] = weight
        else:
            result[name] = weight
    sources = [index * len(grouped) // layers for index in range(layers)]
    for index, source in enumerate(sources):
        new = index > 0 and sources[index - 1] == source
        for name, weight in grouped[source].items():
            silent = new and name.endswith(("o_proj.weight", "down_proj.weight"))
            result[f"model.layers.{index}.{name}"] = torch.zeros_like(weight) if silent else weight
    return result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, default=0)
    length.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a folder of a former run whose weights are trained on")
    parser.add_argument("--mixture", choices=list(MIXTURES), default="first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--matrix-rate", type=float, default=TrainConfig.matrix_rate)
    parser.add_argument("--decay", type=float, default=TrainConfig.decay, help="the last part of the run, 0 to 1")
    parser.add_argument("--other-rate", type=float, default=TrainConfig.other_rate)
    parser.add_argument("--unit-tokens", type=int, default=TrainConfig.unit_tokens, help="a step has four units")
    parser.add_argument("--layers", type=int, default=ModelConfig.layers)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    config = TrainConfig(
        steps=arguments.steps, minutes=arguments.minutes, seed=arguments.seed,
        unit_tokens=arguments.unit_tokens, matrix_rate=arguments.matrix_rate, other_rate=arguments.other_rate,
        decay=arguments.decay,
    )  # fmt: skip
    if device.type != "cpu":
        config = replace(config, workers=1, units=1, unit_tokens=config.units * config.unit_tokens)
    if arguments.start:
        tokenizer = Tokenizer.from_file(str(arguments.start / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(training_texts(config.seed, documents=40_000))
    save_tokenizer(tokenizer, arguments.out)
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # threads of each worker, see gradients_of
    model = load(ModelConfig(layers=arguments.layers), device, arguments.start)
    draw = MIXTURES[arguments.mixture]
    steps = batches(tokenizer, seed=config.seed, unit_tokens=config.unit_tokens, units=config.units, draw=draw)
    train(model, steps, config, lambda trained: export(trained, arguments.out))


if __name__ == "__main__":
    main()
