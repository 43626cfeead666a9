"""The CPU pass: all layers of a decoder in one compiled function that several threads run together.

One call per pass instead of some ten operators per layer: their overhead would be a good part of a
pass that takes 13 ms. Work is cut into pieces (two panels, a head of a token) that any thread takes
by an atomic counter. A phase is over when its pieces are done, not when its threads have met: a
thread that the system keeps off its core delays only the piece it holds, and finds later that it
has nothing to do.
What is read in a phase is not written in it, so that a late thread may read stale values but never
gets a piece to use them on.

Every result of a token depends on its own sequence only, never on the batch or on who computed it:
the order of all sums is fixed.

Legend: M tokens, N wanted logits, H hidden size, D head dimension, R arena rows, L layers.
"""

# Numba's own types, not Python's.
# mypy: disable-error-code="no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu_ir import (
    atomic_add,
    atomic_load,
    exp_lanes,
    make_product,
    make_unpack,
    spin_pause,
    swiglu_lanes,
    yield_core,
)
from kernels.panels import DENSE, GROUP_BYTES, INT4, INT8, LANES

# Two shared counters per phase: pieces taken, pieces done.
PHASES_PER_LAYER = 6  # qkv, K/V rows, attention, output, gate and up, down
SPINS_BEFORE_YIELD = 2000  # some 30 us: longer than threads differ when both have a core

# Columns of the table of matrices. Rows 4 l .. 4 l + 3 are qkv, output, gate and up, down of
# layer l, row 4 L is the head.
KIND, GROUPS, PANELS, ADDRESS, BIAS = range(5)
MATRICES_PER_LAYER = 4

_DENSE_BYTES, _INT4_BYTES, _INT8_BYTES = (GROUP_BYTES[kind] for kind in (DENSE, INT4, INT8))
_FLOAT = 4  # bytes
_PANEL_FLOATS = LANES * _FLOAT

_int4_pair, _int8_pair, _dense_pair = (make_product(kind, 1, 2) for kind in (INT4, INT8, DENSE))
_int4_1, _int4_2, _int4_3, _int4_4 = (make_product(INT4, tokens) for tokens in (1, 2, 3, 4))
_int8_1, _int8_2, _int8_3, _int8_4 = (make_product(INT8, tokens) for tokens in (1, 2, 3, 4))
_dense_1, _dense_2, _dense_3, _dense_4, _dense_5, _dense_6 = (
    make_product(DENSE, tokens) for tokens in (1, 2, 3, 4, 5, 6)
)
_int4_unpack, _int8_unpack = make_unpack(INT4), make_unpack(INT8)
# Sums over a head or a hidden vector may be reordered, the same way for every token.
_SUMS = {"contract", "reassoc", "nsz"}


@njit(nogil=True, cache=True)
def _int4_product(x, stride, w, size, y, y_stride, groups, tokens):
    if tokens == 1:
        _int4_1(x, stride, w, size, y, y_stride, groups)
    elif tokens == 2:
        _int4_2(x, stride, w, size, y, y_stride, groups)
    elif tokens == 3:
        _int4_3(x, stride, w, size, y, y_stride, groups)
    else:
        _int4_4(x, stride, w, size, y, y_stride, groups)


@njit(nogil=True, cache=True)
def _int8_product(x, stride, w, size, y, y_stride, groups, tokens):
    if tokens == 1:
        _int8_1(x, stride, w, size, y, y_stride, groups)
    elif tokens == 2:
        _int8_2(x, stride, w, size, y, y_stride, groups)
    elif tokens == 3:
        _int8_3(x, stride, w, size, y, y_stride, groups)
    else:
        _int8_4(x, stride, w, size, y, y_stride, groups)


@njit(nogil=True, cache=True)
def _dense_product(x, stride, w, size, y, y_stride, groups, tokens):
    done = 0
    while done + 6 <= tokens:
        _dense_6(x + done * stride, stride, w, size, y + done * y_stride, y_stride, groups)
        done += 6
    x, y, rest = x + done * stride, y + done * y_stride, tokens - done
    if rest == 1:
        _dense_1(x, stride, w, size, y, y_stride, groups)
    elif rest == 2:
        _dense_2(x, stride, w, size, y, y_stride, groups)
    elif rest == 3:
        _dense_3(x, stride, w, size, y, y_stride, groups)
    elif rest == 4:
        _dense_4(x, stride, w, size, y, y_stride, groups)
    elif rest == 5:
        _dense_5(x, stride, w, size, y, y_stride, groups)


@njit(nogil=True, cache=True)
def panel_product(kind, x, stride, tokens, groups, w, y, y_stride, tile):
    """One panel of a matrix for all tokens; `tile` is room for a dense panel."""
    if kind == DENSE:
        _dense_product(x, stride, w, 0, y, y_stride, groups, tokens)
    elif tokens > 4:
        if kind == INT4:
            _int4_unpack(w, tile, groups)
        else:
            _int8_unpack(w, tile, groups)
        _dense_product(x, stride, tile, 0, y, y_stride, groups, tokens)
    elif kind == INT4:
        _int4_product(x, stride, w, 0, y, y_stride, groups, tokens)
    else:
        _int8_product(x, stride, w, 0, y, y_stride, groups, tokens)


@njit(nogil=True, cache=True)
def pair_product(kind, x, stride, tokens, groups, w, distance, y, y_stride, tile):
    """Two panels, `distance` bytes apart, into neighbouring columns of y.

    A single token takes both at once: two more independent chains of sums hide the adders' latency.
    """
    if tokens > 1:
        panel_product(kind, x, stride, tokens, groups, w, y, y_stride, tile)
        second = y + _PANEL_FLOATS
        panel_product(kind, x, stride, tokens, groups, w + distance, second, y_stride, tile)
    elif kind == INT4:
        _int4_pair(x, stride, w, distance, y, y_stride, groups)
    elif kind == INT8:
        _int8_pair(x, stride, w, distance, y, y_stride, groups)
    else:
        _dense_pair(x, stride, w, distance, y, y_stride, groups)


@njit(nogil=True, cache=True)
def _group_bytes(kind):
    if kind == DENSE:
        return _DENSE_BYTES
    return _INT4_BYTES if kind == INT4 else _INT8_BYTES


@njit(nogil=True, cache=True)
def _is_open(sync, phase, total):
    """Whether a phase of `total` pieces still waits for some."""
    return atomic_load(sync.ctypes.data + 8 * (2 * phase + 1)) < total


@njit(nogil=True, cache=True)
def _take(sync, phase, num_pieces):
    """The next pieces of a phase that nobody has taken yet: where they begin."""
    return atomic_add(sync.ctypes.data + 8 * 2 * phase, num_pieces)


@njit(nogil=True, cache=True)
def _give(sync, phase, num_pieces):
    """Say that pieces are done."""
    atomic_add(sync.ctypes.data + 8 * (2 * phase + 1), num_pieces)


@njit(nogil=True, cache=True)
def _wait(sync, phase, total):
    """Until all pieces of a phase are done."""
    spins = 0
    while _is_open(sync, phase, total):
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_core()
        else:
            spin_pause()


@njit(nogil=True, cache=True)
def _add_bias(y, tokens, biases, offset, first, last):
    for t in range(tokens):
        for n in range(first, last):
            y[t, n] += biases[offset + n]


@njit(nogil=True, cache=True)
def _multiply(sync, phase, entry, biases, x, tokens, y, total, tile):
    """y[M, 16 P] = x[M, K] times a matrix, as far as pieces are left; added to total[M, H] as well.

    `total` without rows: y alone.
    """
    kind, groups, panels, address = entry[KIND], entry[GROUPS], entry[PANELS], entry[ADDRESS]
    size = groups * _group_bytes(kind)
    stride, y_stride = x.shape[1] * _FLOAT, y.shape[1] * _FLOAT
    source, target, room = x.ctypes.data, y.ctypes.data, tile.ctypes.data
    step = max(2, panels // 64 * 2)
    while True:
        first = _take(sync, phase, step)
        if first >= panels:
            return
        last = min(first + step, panels)
        for p in range(first, last, 2):
            w, out = address + p * size, target + p * _PANEL_FLOATS
            if p + 1 < last:
                pair_product(kind, source, stride, tokens, groups, w, size, out, y_stride, room)
            else:
                panel_product(kind, source, stride, tokens, groups, w, out, y_stride, room)
        if entry[BIAS] >= 0:
            _add_bias(y, tokens, biases, entry[BIAS], first * LANES, last * LANES)
        if total.shape[0] > 0:
            for t in range(tokens):
                for n in range(first * LANES, min(last * LANES, total.shape[1])):
                    total[t, n] += y[t, n]
        _give(sync, phase, last - first)


@njit(nogil=True, cache=True)
def _gate(sync, phase, entry, biases, x, tokens, y, both, tile):
    """y[M, I] = swiglu of x times gate and up, as far as pieces are left."""
    kind, groups, address = entry[KIND], entry[GROUPS], entry[ADDRESS]
    half = entry[PANELS] // 2
    size = groups * _group_bytes(kind)
    stride, wide = x.shape[1] * _FLOAT, both.shape[1] * _FLOAT
    while True:
        p = _take(sync, phase, 1)
        if p >= half:
            return
        pair_product(
            kind, x.ctypes.data, stride, tokens, groups, address + p * size, half * size,
            both.ctypes.data, wide, tile.ctypes.data,
        )  # fmt: skip
        if entry[BIAS] >= 0:
            own = entry[BIAS] + p * LANES
            for t in range(tokens):
                for n in range(LANES):
                    both[t, n] += biases[own + n]
                    both[t, LANES + n] += biases[own + half * LANES + n]
        for t in range(tokens):
            here = both.ctypes.data + t * wide
            out = y.ctypes.data + (t * y.shape[1] + p * LANES) * _FLOAT
            swiglu_lanes(here, here + _PANEL_FLOATS, out)
        _give(sync, phase, 1)


@njit(nogil=True, cache=True, fastmath=_SUMS)
def _norm(x, weight, eps, out):
    """out = x / sqrt(mean(x^2) + eps) * weight"""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(x.shape[0]) + eps)
    for i in range(x.shape[0]):
        out[i] = x[i] * factor * weight[i]


@njit(nogil=True, cache=True)
def _rotate(x, cos, sin, out):
    half = x.shape[0] // 2
    for i in range(half):
        first, second = x[i], x[i + half]
        out[i] = first * cos[i] - second * sin[i]
        out[i + half] = second * cos[i] + first * sin[i]


@njit(nogil=True, cache=True, fastmath=_SUMS)
def _dot(a, b):
    total = np.float32(0.0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_four(out, values, row, head, weights, n):
    """out += four rows of `values` times their weights."""
    w0, w1, w2, w3 = weights[n], weights[n + 1], weights[n + 2], weights[n + 3]
    v0, v1 = values[row, head], values[row + 1, head]
    v2, v3 = values[row + 2, head], values[row + 3, head]
    for i in range(out.shape[0]):
        out[i] = out[i] + w0 * v0[i] + w1 * v1[i] + w2 * v2[i] + w3 * v3[i]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _attend(q, keys, values, head, extents, first, last, position, window, scale, scores, out):
    """One head of one token over the rows of extents[first:last]; out[D]."""
    lowest = position - window + 1 if window > 0 else -1
    count = 0
    for e in range(first, last):
        row, rows, start = extents[e, 0], extents[e, 1], extents[e, 2]
        for i in range(max(0, lowest - start), min(rows, position - start + 1)):
            scores[count] = _dot(q, keys[row + i, head]) * scale
            count += 1
    out[:] = np.float32(0.0)
    if count == 0:
        return
    largest = scores[0]
    for n in range(1, count):
        largest = max(largest, scores[n])
    for n in range(0, count, LANES):
        exp_lanes(scores.ctypes.data + n * _FLOAT, largest)
    total = np.float32(0.0)
    n = 0
    for e in range(first, last):
        row, rows, start = extents[e, 0], extents[e, 1], extents[e, 2]
        i, end = max(0, lowest - start), min(rows, position - start + 1)
        while i + 4 <= end:
            _add_four(out, values, row + i, head, scores, n)
            total += (scores[n] + scores[n + 1]) + (scores[n + 2] + scores[n + 3])
            i += 4
            n += 4
        while i < end:
            value = values[row + i, head]
            for d in range(out.shape[0]):
                out[d] += scores[n] * value[d]
            total += scores[n]
            i += 1
            n += 1
    factor = np.float32(1.0) / total
    for d in range(out.shape[0]):
        out[d] *= factor


@njit(nogil=True, cache=True)
def _write_rows(sync, phase, qkv, tokens, q_size, norms, cos, sin, eps, rows, keys, values, head):
    """Rotate keys and write K/V rows, a token at a time."""
    num_heads, head_dim = keys.shape[1], keys.shape[2]
    while True:
        t = _take(sync, phase, 1)
        if t >= tokens:
            return
        for h in range(num_heads):
            start = q_size + h * head_dim
            key = qkv[t, start : start + head_dim]
            if norms.shape[0] > 0:
                _norm(key, norms[1], eps, head)
                key = head
            _rotate(key, cos[t], sin[t], keys[rows[t], h])
            start += num_heads * head_dim
            values[rows[t], h, :] = qkv[t, start : start + head_dim]
        _give(sync, phase, 1)


@njit(nogil=True, cache=True)
def _attend_heads(
    sync, phase, qkv, tokens, num_heads, norms, cos, sin, eps, scale, keys, values, sequence,
    extent_start, extents, positions, window, scores, head, out,
):  # fmt: skip
    """Attention of every token, a head at a time."""
    head_dim = keys.shape[2]
    group = num_heads // keys.shape[1]
    while True:
        piece = _take(sync, phase, 1)
        if piece >= tokens * num_heads:
            return
        t, h = piece // num_heads, piece % num_heads
        query = qkv[t, h * head_dim : (h + 1) * head_dim]
        if norms.shape[0] > 0:
            _norm(query, norms[0], eps, head[0])
            query = head[0]
        _rotate(query, cos[t], sin[t], head[1])
        first, last = extent_start[sequence[t]], extent_start[sequence[t] + 1]
        _attend(
            head[1], keys, values, h // group, extents, first, last, positions[t], window, scale,
            scores, out[t, h * head_dim : (h + 1) * head_dim],
        )  # fmt: skip
        _give(sync, phase, 1)


@njit(nogil=True, cache=True)
def run_pass(
    thread, first_layer, end_layer, sync, num_heads, eps, scale, table, norms, head_norms, biases,
    windows,
    cos, sin, rows, positions, sequence, extent_start, extents, keys, values, wanted,
    all_normed, all_both, all_tile, all_scores, all_head,
    residual, qkv, attended, projected, gated, logits,
):  # fmt: skip
    """One thread's part of a pass, of the layers first_layer .. end_layer - 1; the last of them
    brings the head along. `all_...` have one slice per thread, the rest is shared.

    residual[M, H] holds the embeddings at the start; logits[N, 16 P] is the result.
    """
    tokens = residual.shape[0]
    normed, tile, both = all_normed[thread], all_tile[thread], all_both[thread]
    scores, head = all_scores[thread], all_head[thread]
    num_layers, head_dim = keys.shape[0], keys.shape[3]
    nothing = residual[:0]
    for layer in range(first_layer, end_layer):
        phase, matrix = layer * PHASES_PER_LAYER, layer * MATRICES_PER_LAYER
        panels = table[matrix, PANELS]
        if _is_open(sync, phase, panels):
            for t in range(tokens):
                _norm(residual[t], norms[2 * layer], eps, normed[t])
            _multiply(sync, phase, table[matrix], biases, normed, tokens, qkv, nothing, tile)
            _wait(sync, phase, panels)
        phase += 1
        if _is_open(sync, phase, tokens):
            _write_rows(
                sync, phase, qkv, tokens, num_heads * head_dim, head_norms[layer], cos, sin, eps,
                rows, keys[layer], values[layer], head[0],
            )  # fmt: skip
            _wait(sync, phase, tokens)
        phase += 1
        if _is_open(sync, phase, tokens * num_heads):
            _attend_heads(
                sync, phase, qkv, tokens, num_heads, head_norms[layer], cos, sin, eps, scale,
                keys[layer], values[layer], sequence, extent_start, extents, positions,
                windows[layer], scores, head, attended,
            )  # fmt: skip
            _wait(sync, phase, tokens * num_heads)
        phase += 1
        panels = table[matrix + 1, PANELS]
        if _is_open(sync, phase, panels):
            entry = table[matrix + 1]
            _multiply(sync, phase, entry, biases, attended, tokens, projected, residual, tile)
            _wait(sync, phase, panels)
        phase += 1
        panels = table[matrix + 2, PANELS] // 2
        if _is_open(sync, phase, panels):
            for t in range(tokens):
                _norm(residual[t], norms[2 * layer + 1], eps, normed[t])
            _gate(sync, phase, table[matrix + 2], biases, normed, tokens, gated, both, tile)
            _wait(sync, phase, panels)
        phase += 1
        panels = table[matrix + 3, PANELS]
        if _is_open(sync, phase, panels):
            entry = table[matrix + 3]
            _multiply(sync, phase, entry, biases, gated, tokens, projected, residual, tile)
            _wait(sync, phase, panels)
    phase, entry = num_layers * PHASES_PER_LAYER, table[num_layers * MATRICES_PER_LAYER]
    count = wanted.shape[0] if end_layer == num_layers else 0
    if count > 0 and _is_open(sync, phase, entry[PANELS]):
        for n in range(count):
            _norm(residual[wanted[n]], norms[2 * num_layers], eps, normed[n])
        _multiply(sync, phase, entry, biases, normed, count, logits, nothing, tile)
        _wait(sync, phase, entry[PANELS])
