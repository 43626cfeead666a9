"""From int8 to float32 inside a Triton kernel, without the conversion instruction.

A multiprocessor converts a quarter as many numbers as it multiplies, and int8 K/V rows and weights
are bound by how fast they are unpacked.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def float_of_int8(q):
    """The same numbers as float32, put together as bits.

    The byte becomes the low end of 2^23 + byte, from which subtracting is exact; the flipped sign
    bit has added 128.
    """
    byte = q.to(tl.uint8, bitcast=True).to(tl.int32)
    return (byte ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0
