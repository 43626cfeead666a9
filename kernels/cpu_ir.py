"""Vector code for the CPU: products with weight panels, and what threads need to meet.

Numba compiles what is written here as LLVM vectors of 16 lanes; the target splits them as its
registers allow, so nothing is bound to one instruction set. A lane is one output; kernels/panels.py
has the layout. A field of a word is masked where it stands and its place is taken back by the scale
(a power of two, exact): no shifts, and the effective weights are those of the torch references bit
for bit.

Every output is one chain of multiply-adds over its inputs in rising order, whatever the number of
tokens in the call: a token's result does not depend on what it is batched with.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels import numba_cache  # noqa: F401  (names the folder before anything is compiled)
from kernels.linear import GROUP
from kernels.panels import DENSE, GROUP_BYTES, INT4, INT8, INT8_BIAS, LANES

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS = ir.VectorType(_I32, LANES)
_FLOATS = ir.VectorType(_F32, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
# kind: bits of a field, fields in a word, words in a group, offset of the words
_FORMS = {INT4: (4, 8, 4, 64), INT8: (8, 4, 8, 32)}


class _Emitter:
    """Shorthands over one IR builder."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._muladd = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32"
        )

    def address(self, base: Any, offset: int, kind: Any) -> Any:
        place = self.builder.add(base, _I64(offset))
        return self.builder.inttoptr(place, kind.as_pointer())

    def load(self, base: Any, offset: int, kind: Any, align: int = 4) -> Any:
        return self.builder.load(self.address(base, offset, kind), align=align, typ=kind)

    def splat(self, scalar: Any, kind: Any) -> Any:
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, _I32(0))
        zeros = ir.Constant(_WORDS, [0] * LANES)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def constant(self, value: float) -> Any:
        return ir.Constant(_FLOATS, [value] * LANES)

    def muladd(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._muladd, [a, b, c])

    def halves(self, base: Any, offset: int) -> Any:
        return self.builder.fpext(self.load(base, offset, _HALVES, 2), _FLOATS)

    def weights(self, kind: int, groups: list[Any], use: Callable[[int, list[Any]], None]) -> None:
        """Call `use(input, vectors)` for the 32 inputs of a group, one vector per panel."""
        if kind == DENSE:
            for place in range(GROUP):
                use(place, [self.load(group, place * LANES * 4, _FLOATS) for group in groups])
            return
        bits, num_fields, num_words, start = _FORMS[kind]
        scales = [self.halves(group, 0) for group in groups]
        if kind == INT4:
            lows = [self.halves(group, 32) for group in groups]
        else:
            lows = [self.builder.fmul(s, self.constant(-float(INT8_BIAS))) for s in scales]
        for field in range(num_fields):
            factor = self.constant(2.0 ** (-bits * field))
            is_top = field == num_fields - 1  # its mask would reach the sign bit
            steps = scales if is_top else [self.builder.fmul(s, factor) for s in scales]
            for word in range(num_words):
                vectors = []
                for group, step, low in zip(groups, steps, lows, strict=True):
                    packed = self.load(group, start + word * LANES * 4, _WORDS)
                    q = self._field(packed, bits, field, is_top)
                    vectors.append(self.muladd(self.builder.sitofp(q, _FLOATS), step, low))
                use(field * num_words + word, vectors)

    def _field(self, packed: Any, bits: int, field: int, is_top: bool) -> Any:
        if is_top:
            return self.builder.lshr(packed, ir.Constant(_WORDS, [32 - bits] * LANES))
        mask = ((1 << bits) - 1) << (bits * field)
        return self.builder.and_(packed, ir.Constant(_WORDS, [mask] * LANES))


def make_product(kind: int, num_tokens: int, num_panels: int = 1) -> Any:
    """product(x, x_stride, w, panel_bytes, y, y_stride, num_groups), all addresses and byte counts.

    y[t, 16 p + n] = sum over k of x[t, k] * w[p, n, k] for t < `num_tokens`, p < `num_panels`.
    """

    @intrinsic
    def product(typing, x, x_stride, w, panel_bytes, y, y_stride, num_groups):
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, x_stride, w, panel_bytes, y, y_stride, num_groups = args
            emitter = _Emitter(builder)
            token = [builder.add(x, builder.mul(x_stride, _I64(t))) for t in range(num_tokens)]
            panel = [builder.add(w, builder.mul(panel_bytes, _I64(p))) for p in range(num_panels)]
            sums = {}
            for t in range(num_tokens):
                for p in range(num_panels):
                    sums[t, p] = cgutils.alloca_once(builder, _FLOATS)
                    builder.store(emitter.constant(0.0), sums[t, p])
            with cgutils.for_range(builder, num_groups) as loop:
                inputs = builder.mul(loop.index, _I64(GROUP * 4))
                offset = builder.mul(loop.index, _I64(GROUP_BYTES[kind]))
                here = [builder.add(start, inputs) for start in token]

                def use(place: int, vectors: list[Any]) -> None:
                    for t in range(num_tokens):
                        value = emitter.splat(emitter.load(here[t], place * 4, _F32), _FLOATS)
                        for p, vector in enumerate(vectors):
                            total = builder.load(sums[t, p], typ=_FLOATS)
                            builder.store(emitter.muladd(value, vector, total), sums[t, p])

                emitter.weights(kind, [builder.add(start, offset) for start in panel], use)
            for t in range(num_tokens):
                row = builder.add(y, builder.mul(y_stride, _I64(t)))
                for p in range(num_panels):
                    total = builder.load(sums[t, p], typ=_FLOATS)
                    builder.store(total, emitter.address(row, p * LANES * 4, _FLOATS), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), emit

    return product


def make_unpack(kind: int) -> Any:
    """unpack(w, tile, num_groups): one quantised panel as a dense one, the same values."""

    @intrinsic
    def unpack(typing, w, tile, num_groups):
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            w, tile, num_groups = args
            emitter = _Emitter(builder)
            with cgutils.for_range(builder, num_groups) as loop:
                group = builder.add(w, builder.mul(loop.index, _I64(GROUP_BYTES[kind])))
                out = builder.add(tile, builder.mul(loop.index, _I64(GROUP_BYTES[DENSE])))

                def use(place: int, vectors: list[Any]) -> None:
                    where = emitter.address(out, place * LANES * 4, _FLOATS)
                    builder.store(vectors[0], where, align=4)

                emitter.weights(kind, [group], use)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), emit

    return unpack


@intrinsic
def atomic_add(typing, address, value):
    """Add to the int64 at `address`; what it held before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", place, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def atomic_load(typing, address):
    """The int64 at `address`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.load_atomic(place, "seq_cst", 8, typ=_I64)

    return types.int64(types.int64), emit


@intrinsic
def spin_pause(typing):
    """Tell the core that this thread spins (x86 only; nothing elsewhere)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            pause = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause")
            builder.call(pause, [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def yield_core(typing):
    """sched_yield(2): let another thread run on this core."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [])
        function = cgutils.get_or_insert_function(builder.module, kind, "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), emit


_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody & Waite 1980: the high part has 9 bits
_EXP_SMALLEST, _EXP_LARGEST = -87.0, 88.0  # where exponents end
# Taylor terms of e^x for |x| <= ln(2)/2, highest first: the rest is below 2^-26
_EXP_TERMS = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)


def _exp(emitter: _Emitter, x: Any) -> Any:
    """e^x for 16 lanes, to about 1 ulp; beyond -87 and 88 as there."""
    builder = emitter.builder
    smallest = emitter.constant(_EXP_SMALLEST)
    x = builder.select(builder.fcmp_ordered(">", x, smallest), x, smallest)
    largest = emitter.constant(_EXP_LARGEST)
    x = builder.select(builder.fcmp_ordered("<", x, largest), x, largest)
    rint = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), f"llvm.rint.v{LANES}f32"
    )
    power = builder.call(rint, [builder.fmul(x, emitter.constant(_LOG2_E))])
    rest = emitter.muladd(power, emitter.constant(-_LN2_HIGH), x)
    rest = emitter.muladd(power, emitter.constant(-_LN2_LOW), rest)
    value = emitter.constant(_EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        value = emitter.muladd(value, rest, emitter.constant(term))
    exponent = builder.add(builder.fptosi(power, _WORDS), ir.Constant(_WORDS, [127] * LANES))
    shifted = builder.shl(exponent, ir.Constant(_WORDS, [23] * LANES))
    return builder.fmul(value, builder.bitcast(shifted, _FLOATS))


@intrinsic
def exp_lanes(typing, address, shift):
    """Replace the 16 floats x at `address` by exp(x - shift)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emitter = _Emitter(builder)
        shift = emitter.splat(args[1], _FLOATS)
        x = builder.fsub(emitter.load(args[0], 0, _FLOATS), shift)
        builder.store(_exp(emitter, x), emitter.address(args[0], 0, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), emit


@intrinsic
def swiglu_lanes(typing, gate, up, out):
    """out = gate / (1 + exp(-gate)) * up for the 16 floats at each address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emitter = _Emitter(builder)
        gate, up = emitter.load(args[0], 0, _FLOATS), emitter.load(args[1], 0, _FLOATS)
        # Where exp stands still (gate < -88) the result is below 1e-34 instead of nothing.
        divisor = builder.fadd(emitter.constant(1.0), _exp(emitter, builder.fneg(gate)))
        value = builder.fmul(builder.fdiv(gate, divisor), up)
        builder.store(value, emitter.address(args[2], 0, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit
