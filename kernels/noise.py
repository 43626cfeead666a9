"""Counter-based Gumbel noise and softmax weights in integers: the same bits on every device.

Neither a libm logarithm nor the order of a sum nor a contracted multiply-add enters a result:

- random words: Philox-2x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
  section 3.3) of counter (token id, row word) and key (row word), 32-bit integer arithmetic;
- Gumbel: word r stands for u = (2r+1) / 2^33. The half of [0, 1] that u lies in, the exponent of
  its distance to that half's end and the next 7 bits select a cell of a table of -ln(-ln u) in
  units of 2^-18; 10 further bits interpolate linearly in integers. Below 2^24, so exact in float32.
  Error against the exact quantile below 2e-5; range [-3.13, 22.88];
- weight of a token z below the best (z <= 0, in nats): 2^24 * 2^(z * log2 e) from a table of
  1024 cells with the same interpolation; 0 from z = -16.7 on. Sums of weights are int64, exact in
  any order.

Decision record: docs/decisions/0005-gumbel-noise.md.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]

WORD_MASK = np.uint64(0xFFFFFFFF)
PHILOX_MULTIPLIER = np.uint64(0xD256D193)
PHILOX_WEYL = np.uint64(0x9E3779B9)
PHILOX_ROUNDS = 10

GUMBEL_CELL_BITS = 7
GUMBEL_FRACTION_BITS = 10
GUMBEL_UNIT = np.float32(2.0**-18)
GUMBEL_EXPONENTS = 32
GUMBEL_MAX = 23.0  # an upper bound, not tight
_MANTISSA_BITS = GUMBEL_CELL_BITS + GUMBEL_FRACTION_BITS

WEIGHT_BITS = 24  # the best token's weight is 2^24
EXPONENT_BITS = 20  # fixed point of z * log2(e)
LOG2E_SCALED = np.float32(math.log2(math.e) * 2**EXPONENT_BITS)
EXPONENT_LIMIT = np.float32(2**25 - 2)  # above it every weight is 0
WEIGHT_CELL_BITS = 10
WEIGHT_FRACTION_BITS = EXPONENT_BITS - WEIGHT_CELL_BITS
ZERO_WEIGHT_BELOW = np.float32(-16.7)


def row_key(seed: int, turn: int, reply_index: int) -> tuple[int, int]:
    """Two 32-bit words for one reply position (splitmix64's finaliser, Steele et al. 2014)."""
    state = 0
    for part in (seed, turn, reply_index):
        state = _mix64(state + (part & 0xFFFFFFFFFFFFFFFF) + 0x9E3779B97F4A7C15)
    return state >> 32, state & 0xFFFFFFFF


def _mix64(value: int) -> int:
    mask = 0xFFFFFFFFFFFFFFFF
    value &= mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def philox(counter: Words, row_word: Words, key: Words) -> Words:
    """First words of Philox-2x32-10. All uint64 holding 32-bit values, broadcast together."""
    first, second = counter, row_word
    for _ in range(PHILOX_ROUNDS):
        product = first * PHILOX_MULTIPLIER
        first = (product >> np.uint64(32)) ^ key ^ second
        second = product & WORD_MASK
        key = (key + PHILOX_WEYL) & WORD_MASK
    return first


def gumbel(token_ids: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]) -> Floats:
    """Noise of tokens [K], each at the reply position whose `row_key` is keys[K, 2]."""
    row_key_words = keys.astype(np.uint64)
    word = philox(token_ids.astype(np.uint64), row_key_words[..., 1], row_key_words[..., 0])
    is_upper = (word >> np.uint64(31)).astype(np.int64)
    signed = word.astype(np.int64)
    distance = 2 * np.where(is_upper == 1, 0xFFFFFFFF - signed, signed) + 1  # odd, below 2^32
    exponent = np.frexp(distance.astype(np.float64))[1].astype(np.int64) - 1
    # 17 bits below the leading one: of the cell and of the fraction
    mantissa = (distance << 32 >> (exponent + 32 - _MANTISSA_BITS)) & (2**_MANTISSA_BITS - 1)
    cell = (is_upper * GUMBEL_EXPONENTS + exponent) << GUMBEL_CELL_BITS
    cell += mantissa >> GUMBEL_FRACTION_BITS
    fraction = mantissa & (2**GUMBEL_FRACTION_BITS - 1)
    table = gumbel_table()
    units = table[cell, 0] + (table[cell, 1] * fraction >> GUMBEL_FRACTION_BITS)
    noise: Floats = units.astype(np.float32) * GUMBEL_UNIT
    return noise


@cache
def gumbel_table() -> npt.NDArray[np.int64]:
    """[8192, 2]: each cell's first value in GUMBEL_UNITs and the step to the next; fits int32."""
    rows = []
    for half in (0, 1):
        for exponent in range(GUMBEL_EXPONENTS):
            ends = [
                _gumbel_units(half, (1 + cell / 2**GUMBEL_CELL_BITS) * 2.0 ** (exponent - 33))
                for cell in range(2**GUMBEL_CELL_BITS + 1)
            ]
            rows += [(a, b - a) for a, b in pairwise(ends)]
    return np.array(rows, dtype=np.int64)


def _gumbel_units(half: int, distance: float) -> int:
    """-ln(-ln u) in GUMBEL_UNITs, u being `distance` from 0 (half 0) or from 1 (half 1)."""
    log_u = math.log(distance) if half == 0 else math.log1p(-distance)
    return round(-math.log(-log_u) / float(GUMBEL_UNIT))


def weights(below_best: Floats) -> npt.NDArray[np.int64]:
    """Integer softmax weights [K] of tokens `below_best` [K] (<= 0, in nats)."""
    scaled = np.minimum(-below_best * LOG2E_SCALED, EXPONENT_LIMIT).astype(np.int64)
    cell = (scaled >> WEIGHT_FRACTION_BITS) & (2**WEIGHT_CELL_BITS - 1)
    fraction = scaled & (2**WEIGHT_FRACTION_BITS - 1)
    table = weight_table()
    mass = table[cell, 0] + (table[cell, 1] * fraction >> WEIGHT_FRACTION_BITS)
    shifted: npt.NDArray[np.int64] = mass >> (scaled >> EXPONENT_BITS)
    return shifted


@cache
def weight_table() -> npt.NDArray[np.int64]:
    """[1024, 2]: 2^24 * 2^(-cell/1024), and the step to the next cell's; fits int32."""
    cells = 2**WEIGHT_CELL_BITS
    ends = [round(2**WEIGHT_BITS * 2.0 ** (-cell / cells)) for cell in range(cells + 1)]
    return np.array([(a, b - a) for a, b in pairwise(ends)], dtype=np.int64)
