"""How a model's passes change over training: temperature, noise and hardness by epoch."""

from __future__ import annotations

import math

import torch

from hmlet.config import HmletConfig, ModelConfig
from hmlet.models.base import NOISE_FREE, Pass

FLOOR = 0.01


def temperature(schedule: str, epoch: int) -> float:
    """τ in an epoch (from 0) by one of the three schedules that the formula, the text and the authors' program give."""
    if schedule == "formula":
        return math.exp(-0.001 * epoch)
    if schedule == "text":
        return max(0.7 * 0.995**epoch, FLOOR)
    return max(0.7 * math.exp(-0.005 * max(epoch - 300, 0)), FLOOR)


def training_pass(config: ModelConfig, tau: float | torch.Tensor, generator: torch.Generator) -> Pass:
    """The pass of a training step at temperature τ."""
    if not isinstance(config, HmletConfig):
        return Pass(dropout=generator)
    return Pass(
        noise=generator if config.gate_noise else None,
        dropout=generator,
        temperature=tau,
        hard=config.gate_training == "straight-through",
    )


def ranking_pass(config: ModelConfig, epoch: int, generator: torch.Generator) -> Pass:
    """The pass that makes the factors of a model as it stands in an epoch; noise only where the recipe asks for it."""
    if not isinstance(config, HmletConfig) or config.gate_ranking == "argmax":
        return NOISE_FREE
    tau = temperature(config.temperature, epoch)
    if config.gate_ranking == "soft":
        return Pass(temperature=tau, hard=False)
    return Pass(noise=generator, temperature=tau)


def training_temperature(config: ModelConfig, epoch: int) -> float:
    """τ of a training epoch; 1 for a model without gates."""
    return temperature(config.temperature, epoch) if isinstance(config, HmletConfig) else 1.0


def gates_frozen(config: ModelConfig, epoch: int) -> bool:
    """Whether the gates' parameters rest in an epoch."""
    return isinstance(config, HmletConfig) and epoch < config.gate_warmup
