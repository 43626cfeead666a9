"""Cosines and sines of the rotary embedding, by position, for every supported scaling.

Legend: P positions of the table, T tokens, D head dimension.
"""

from __future__ import annotations

import math

import torch

from llm_engine.config import RopeConfig

_FIRST_TABLE = 1024  # positions


class RotaryTable:
    """cos/sin[P, D/2] float32, grown by doubling as positions are asked for."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._inverse = inverse_frequencies(rope, head_dim).to(device)  # [D/2]
        self._magnitude = attention_factor(rope)
        self._extend(_FIRST_TABLE)

    def _extend(self, num_positions: int) -> None:
        positions = torch.arange(num_positions, device=self._inverse.device).float()
        angles = positions[:, None] * self._inverse  # [P, D/2]
        self._cos = angles.cos() * self._magnitude
        self._sin = angles.sin() * self._magnitude

    def at(self, positions: torch.Tensor, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin [T, D/2] at positions[T] int64, none of which exceeds `last`."""
        if last >= self._cos.shape[0]:
            self._extend(1 << (last + 1).bit_length())
        return self._cos[positions], self._sin[positions]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """[D/2] float32: radians per position of each rotary pair."""
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, head_dim, plain)
    if rope.kind == "factors":
        return plain / torch.tensor(rope.factors)
    return plain


def attention_factor(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by (YaRN, Peng et al. 2023, eq. 15); 1 for other kinds."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended."""
    turns = rope.original_context * plain / (2 * math.pi)  # within the original context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: RopeConfig, head_dim: int, plain: torch.Tensor) -> torch.Tensor:
    """YaRN (Peng et al. 2023, section 3.2): a linear ramp over dimensions instead."""
    low, high = (
        head_dim
        * math.log(rope.original_context / (turns * 2 * math.pi))
        / (2 * math.log(rope.theta))
        for turns in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)
