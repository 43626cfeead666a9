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
PHILOX_WEYL = 0x9E3779B9
PHILOX_ROUNDS = 10

GUMBEL_CELL_BITS = 7
GUMBEL_FRACTION_BITS = 10
GUMBEL_UNIT = np.float32(2.0**-18)
GUMBEL_EXPONENTS = 32
GUMBEL_MAX = np.float32(23.0)  # an upper bound, not tight
_MANTISSA_BITS = GUMBEL_CELL_BITS + GUMBEL_FRACTION_BITS
_BLOCK = 4096

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


def philox(counter: Words, row_word: int, key: int) -> Words:
    """First words of Philox-2x32-10; counter [K] uint64 and the others hold 32-bit values."""
    first: Words = counter
    second: Words | np.uint64 = np.uint64(row_word)
    for index in range(PHILOX_ROUNDS):
        product = first * PHILOX_MULTIPLIER
        first = product >> np.uint64(32)
        first ^= np.uint64((key + index * PHILOX_WEYL) & 0xFFFFFFFF)
        first ^= second
        product &= WORD_MASK
        second = product
    return first


def gumbel(token_ids: npt.NDArray[np.int64], key: tuple[int, int]) -> Floats:
    """Noise [K] of tokens [K] at the reply position whose `row_key` is `key`."""
    word = philox(token_ids.astype(np.uint64), key[1], key[0]).astype(np.int64)
    is_upper = word >> 31
    distance = 2 * (word ^ (-is_upper & 0xFFFFFFFF)) + 1  # odd, below 2^32
    exponent = np.frexp(distance.astype(np.float64))[1].astype(np.int64) - 1
    # 17 bits below the leading one: of the cell and of the fraction
    mantissa = (distance << 32 >> (exponent + 32 - _MANTISSA_BITS)) & (2**_MANTISSA_BITS - 1)
    cell = (is_upper * GUMBEL_EXPONENTS + exponent) << GUMBEL_CELL_BITS
    cell += mantissa >> GUMBEL_FRACTION_BITS
    fraction = mantissa & (2**GUMBEL_FRACTION_BITS - 1)
    bases, steps = gumbel_table()
    units = bases[cell] + (steps[cell] * fraction >> GUMBEL_FRACTION_BITS)
    noise: Floats = units.astype(np.float32) * GUMBEL_UNIT
    return noise


def may_reach(
    token_ids: npt.NDArray[np.int64], key: tuple[int, int], least: float
) -> npt.NDArray[np.int64]:
    """Those of the tokens whose noise may be `least` or more, with few others among them.

    Noise rises with its word, so a word below that quantile (less a slack far above the table's
    error) rules a token out before the costlier half of `gumbel`.
    """
    least_word = np.uint64(math.exp(-math.exp(-(least - 1e-3))) * 2**32)
    found = []
    for start in range(0, token_ids.size, _BLOCK):  # blocks stay in the cache
        block = token_ids[start : start + _BLOCK]
        found.append(block[philox(block.astype(np.uint64), key[1], key[0]) >= least_word])
    return np.concatenate(found) if found else token_ids


@cache
def gumbel_table() -> npt.NDArray[np.int64]:
    """[2, 8192]: each cell's first value in GUMBEL_UNITs, and the step to the next; fit int32."""
    rows: list[tuple[int, int]] = []
    for half in (0, 1):
        for exponent in range(GUMBEL_EXPONENTS):
            ends = [
                _gumbel_units(half, (1 + cell / 2**GUMBEL_CELL_BITS) * 2.0 ** (exponent - 33))
                for cell in range(2**GUMBEL_CELL_BITS + 1)
            ]
            rows += [(a, b - a) for a, b in pairwise(ends)]
    return np.array(rows, dtype=np.int64).T.copy()


def _gumbel_units(half: int, distance: float) -> int:
    """-ln(-ln u) in GUMBEL_UNITs, u being `distance` from 0 (half 0) or from 1 (half 1)."""
    log_u = math.log(distance) if half == 0 else math.log1p(-distance)
    return round(-math.log(-log_u) / float(GUMBEL_UNIT))


def weights(below_best: Floats) -> npt.NDArray[np.int64]:
    """Integer softmax weights [K] of tokens `below_best` [K] (<= 0, in nats)."""
    scaled = np.minimum(-below_best * LOG2E_SCALED, EXPONENT_LIMIT).astype(np.int64)
    cell = (scaled >> WEIGHT_FRACTION_BITS) & (2**WEIGHT_CELL_BITS - 1)
    fraction = scaled & (2**WEIGHT_FRACTION_BITS - 1)
    bases, steps = weight_table()
    mass = bases[cell] + (steps[cell] * fraction >> WEIGHT_FRACTION_BITS)
    shifted: npt.NDArray[np.int64] = mass >> (scaled >> EXPONENT_BITS)
    return shifted


@cache
def weight_table() -> npt.NDArray[np.int64]:
    """[2, 1024]: 2^24 * 2^(-cell/1024), and the step to the next cell's; fit int32."""
    cells = 2**WEIGHT_CELL_BITS
    ends = [round(2**WEIGHT_BITS * 2.0 ** (-cell / cells)) for cell in range(cells + 1)]
    return np.array([(a, b - a) for a, b in pairwise(ends)], dtype=np.int64).T.copy()
