"""Weight matrices in panels of 16 rows, the form that the CPU pass computes with.

Packing keeps every effective weight bit for bit. Legend: N outputs, K inputs, P = ceil(N/16)
panels, G = K/32 groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernels.errors import require
from kernels.linear import GROUP, DenseWeight, Int4Weight, Int8Weight, LinearWeight

LANES = 16
DENSE, INT4, INT8 = 0, 1, 2
GROUP_BYTES = {DENSE: GROUP * LANES * 4, INT4: 320, INT8: 544}  # of one panel
INT8_BIAS = 128  # bytes are stored as q + 128
_HALVES_BYTES = LANES * 2  # one float16 per lane


@dataclass(frozen=True, slots=True)
class PanelWeight:
    """`data[p]` is panel p, group after group (32 inputs each); rows beyond N are zero.

        int4   scale 16 x f16 | minimum 16 x f16 | 4 words x 16 lanes x i32   320 bytes a group
        int8   scale 16 x f16 | 8 words x 16 lanes x i32                      544 bytes
        dense  32 inputs x 16 lanes x f32                                     2048 bytes

    Lane n of int4 word t holds inputs 4j + t (j = 0..7) in its nibbles, of int8 word t inputs 8j +
    t (j = 0..3) in its bytes, lowest first.
    """

    kind: int  # DENSE, INT4 or INT8
    num_outputs: int
    num_inputs: int
    data: torch.Tensor  # [P, G * GROUP_BYTES[kind]] uint8
    bias: torch.Tensor | None = None  # [N] float32

    @property
    def num_panels(self) -> int:
        return int(self.data.shape[0])

    def unpack(self) -> LinearWeight:
        """What `pack` was given."""
        return replace(self.take(torch.arange(self.num_outputs)), bias=self.bias)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """float32[len(index), K]: some rows of the effective weights (embedding lookup)."""
        return self.take(index).dense()

    def take(self, index: torch.Tensor) -> LinearWeight:
        """The rows `index` as a weight of their own, without bias."""
        panel, lane, count = index // LANES, index % LANES, len(index)
        groups = self.data.view(self.num_panels, -1, GROUP_BYTES[self.kind])  # [P, G, bytes]
        num_groups = groups.shape[1]
        if self.kind == DENSE:
            values = groups.view(torch.float32).view(-1, num_groups, GROUP, LANES)
            return DenseWeight(values[panel, :, :, lane].reshape(count, -1))
        halves = groups.view(torch.float16)
        scale = halves[..., :LANES][panel, :, lane]  # [I, G]
        if self.kind == INT8:
            words = groups[..., _HALVES_BYTES:].reshape(-1, num_groups, 8, LANES, 4)
            q = words[panel, :, :, lane].transpose(-1, -2)  # [I, G, j, t]
            signed = q.to(torch.int16) - INT8_BIAS
            return Int8Weight(signed.to(torch.int8).reshape(count, -1), scale)
        minimum = halves[..., LANES : 2 * LANES][panel, :, lane]
        words = groups[..., 2 * _HALVES_BYTES :].reshape(-1, num_groups, 4, LANES, 4)
        pairs = words[panel, :, :, lane]  # [I, G, t, byte]
        nibbles = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)  # [I, G, t, j]
        q = nibbles.transpose(-1, -2).reshape(count, num_groups, GROUP)
        packed = q[..., : GROUP // 2] | q[..., GROUP // 2 :] << 4
        return Int4Weight(packed.reshape(count, -1), scale, minimum)


def can_pack(weight: LinearWeight) -> bool:
    """Whether `pack` takes the weight: float32 or quantised with float16 scales, K in groups."""
    if weight.shape[1] % GROUP:
        return False
    if isinstance(weight, DenseWeight):
        return weight.w.dtype == torch.float32
    return weight.scale.dtype == torch.float16


def pack(weight: LinearWeight) -> PanelWeight:
    """The same effective weights in panels.

    Raises:
        KernelArgumentError: `can_pack` is False.
    """
    require(can_pack(weight), f"weight of {weight.shape} has no panel form")
    num_outputs, num_inputs = weight.shape
    num_panels, num_groups = -(-num_outputs // LANES), num_inputs // GROUP
    if isinstance(weight, DenseWeight):
        kind, data = DENSE, _dense(weight.w, num_panels, num_groups)
    elif isinstance(weight, Int8Weight):
        kind, data = INT8, _int8(weight, num_panels, num_groups)
    else:
        kind, data = INT4, _int4(weight, num_panels, num_groups)
    data = data.reshape(num_panels, num_groups * GROUP_BYTES[kind])
    return PanelWeight(kind, num_outputs, num_inputs, data, weight.bias)


def _dense(w: torch.Tensor, num_panels: int, num_groups: int) -> torch.Tensor:
    lanes = _padded(w, num_panels).reshape(num_panels, LANES, num_groups, GROUP)
    return lanes.permute(0, 2, 3, 1).contiguous().view(torch.uint8)


def _int8(weight: Int8Weight, num_panels: int, num_groups: int) -> torch.Tensor:
    biased = (weight.q.to(torch.int16) + INT8_BIAS).to(torch.uint8)
    q = _padded(biased, num_panels).reshape(num_panels, LANES, num_groups, 4, 8)  # [P, n, G, j, t]
    words = q.permute(0, 2, 4, 1, 3).contiguous()  # [P, G, t, n, j]
    scale = _lanes(weight.scale, num_panels)
    return torch.cat((scale, words.flatten(2)), dim=-1)


def _int4(weight: Int4Weight, num_panels: int, num_groups: int) -> torch.Tensor:
    stored = _padded(weight.packed, num_panels).reshape(num_panels, LANES, num_groups, GROUP // 2)
    q = torch.cat((stored & 15, stored >> 4), dim=-1)  # [P, n, G, 32] in the order of inputs
    nibbles = q.reshape(num_panels, LANES, num_groups, 8, 4).permute(0, 2, 4, 1, 3)
    words = nibbles[..., 0::2] | nibbles[..., 1::2] << 4  # [P, G, t, n, byte]
    scale, low = _lanes(weight.scale, num_panels), _lanes(weight.minimum, num_panels)
    return torch.cat((scale, low, words.flatten(2)), dim=-1)


def _padded(x: torch.Tensor, num_panels: int) -> torch.Tensor:
    missing = num_panels * LANES - x.shape[0]
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def _lanes(scales: torch.Tensor, num_panels: int) -> torch.Tensor:
    """float16[N, G] -> the bytes of [P, G, 16]."""
    by_panel = _padded(scales, num_panels).reshape(num_panels, LANES, -1)
    return by_panel.transpose(1, 2).contiguous().view(torch.uint8)
