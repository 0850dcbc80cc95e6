"""Batch normalization over any strides, dtypes and sizes: for all that planes and columns do not take, one launch.

A channel belongs to one lane of a block; its ``parts`` threads walk its elements with steps of ``parts``, once to
reduce and once to write (the second walk mostly finds them in the L2 cache). Every operand has its own dtype and
strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32, u64
from numbadnn.kernels.lang.long_sums import compensated
from numbadnn.kernels.norm.device import parts as _norm_parts
from numbadnn.kernels.norm.device.parts import square_root
from numbadnn.kernels.norm.strided import StridedConfig
from numbadnn.problem import ITEMSIZE


def _offset(rank: int, wide: bool) -> Any:
    """``(i, extents, strides, start) -> offset`` of element ``i`` in C order, with strides[start:]."""
    ix, ux = (i64, u64) if wide else (i32, u32)

    @device
    def offset(i, extents, strides, start):
        at, rest = i64(0), ix(i)
        for axis in range(rank):
            d = rank - 1 - axis
            outer = ix(ux(rest) // ux(extents[d]))
            at = at + i64(ix(rest - outer * extents[d])) * strides[start + d]
            rest = outer
        return at

    return offset


def _parameter(dtype: str, acc: str, kept: int, number: int, offset: Any, writes: bool = False) -> Any:
    """``at(address, channel, extents, strides)``, or ``at(..., value)`` which writes: a parameter's value of a channel."""
    size, start = ITEMSIZE[dtype], number * kept
    read, write = load(dtype, acc), store(dtype, acc)

    @device
    def get(address, channel, extents, strides):
        return read(address + offset(channel, extents, strides, start) * size)

    @device
    def put(address, channel, extents, strides, value):
        write(address + offset(channel, extents, strides, start) * size, value)

    return put if writes else get


def _locate(config: StridedConfig) -> Any:
    """``locate(channels) -> (thread, part, channel, whether it exists)``; the last channel stands in for none."""
    lanes, ix = config.lanes, i64 if config.wide else i32

    @device
    def locate(channels):
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        channel = ix(i64(cuda.blockIdx.x) * lanes + i32(thread - part * lanes))
        live = channel < channels
        return thread, part, channel if live else ix(channels - 1), live

    return locate


def train(dtypes: tuple[str, ...], acc: str, running: bool, config: StridedConfig) -> Callable[..., None]:
    """y, mean, invstd and the new running averages."""
    kept, parts, threads, ix = config.kept, config.parts, config.lanes * config.parts, i64 if config.wide else i32
    A, x_size, y_size, lanes = ACCUMULATOR[acc], ITEMSIZE[dtypes[0]], ITEMSIZE[dtypes[5]], config.lanes
    read, write, locate = load(dtypes[0], acc), store(dtypes[5], acc), _locate(config)
    kept_at, at = _offset(kept, config.wide), _offset(config.reduced, config.wide)
    gamma_of, beta_of, old_mean_of, old_var_of = (_parameter(dtypes[1 + i], acc, kept, i, kept_at) for i in range(4))
    store_mean, store_invstd, store_new_mean, store_new_var = (
        _parameter(dtypes[6 + i], acc, kept, 4 + i, kept_at, True) for i in range(4)
    )
    join_parts, scale_of = _norm_parts.join_parts(acc, lanes, parts), _norm_parts.scaler(acc)

    @device
    def moments(counts, means, squares, thread, part, x_base, scale, length, reduced_n, x_reduced):
        """The channel's count, mean and M2 of deviations from its first number, times ``scale``."""
        k, n, centre, m2 = A(read(x_base) * scale), A(0), A(0), A(0)
        for j in range(ix(part), ix(length), ix(parts)):
            v = A(A(read(x_base + at(j, reduced_n, x_reduced, 0) * x_size) * scale) - k)
            n = A(n + A(1))
            delta = A(v - centre)
            centre = A(centre + delta / n)
            m2 = A(m2 + delta * A(v - centre))
        counts[thread] = n
        means[thread] = centre
        squares[thread] = m2
        join_parts(counts, means, squares)

    def kernel(
        x, gamma, beta, old_mean, old_var, y, mean, invstd, new_mean, new_var,
        averaged, epsilon, kept_share, mean_share, var_share, channels, length, kept_n, reduced_n,
        x_kept, x_reduced, y_kept, y_reduced, strides,
    ):  # fmt: skip
        counts = cuda.shared.array(threads, A)
        means = cuda.shared.array(threads, A)
        squares = cuda.shared.array(threads, A)
        thread, part, c, live = locate(channels)
        x_base = x + kept_at(c, kept_n, x_kept, 0) * x_size
        y_base = y + kept_at(c, kept_n, y_kept, 0) * y_size
        k, scale = read(x_base), A(1)
        lane = i32(thread - part * lanes)
        moments(counts, means, squares, thread, part, x_base, scale, length, reduced_n, x_reduced)
        scale = scale_of(averaged, squares[lane], epsilon)
        if cuda.syncthreads_or(i32(1) if scale != A(1) else i32(0)) != 0:
            moments(counts, means, squares, thread, part, x_base, scale, length, reduced_n, x_reduced)
        r, var = A(means[lane] / scale), A(squares[lane] / averaged)
        inverse = A(A(scale) / A(square_root(A(var + A(A(epsilon * scale) * scale)))))
        var = A(A(var / scale) / scale)
        if part == 0 and live:
            store_mean(mean, c, kept_n, strides, A(k + r))
            store_invstd(invstd, c, kept_n, strides, inverse)
            if running:
                kept_mean = A(old_mean_of(old_mean, c, kept_n, strides) * kept_share)
                kept_var = A(old_var_of(old_var, c, kept_n, strides) * kept_share)
                store_new_mean(new_mean, c, kept_n, strides, A(kept_mean + A(A(k + r) * mean_share)))
                store_new_var(new_var, c, kept_n, strides, A(kept_var + A(var * var_share)))
        a, b = A(gamma_of(gamma, c, kept_n, strides) * inverse), beta_of(beta, c, kept_n, strides)
        if live:
            for j in range(ix(part), ix(length), ix(parts)):
                v = A(A(read(x_base + at(j, reduced_n, x_reduced, 0) * x_size) - k) - r)
                write(y_base + at(j, reduced_n, y_reduced, 0) * y_size, A(v * a + b))

    return kernel


def infer(dtypes: tuple[str, ...], acc: str, running: bool, config: StridedConfig) -> Callable[..., None]:
    """y = (x - mean) * gamma / sqrt(var + epsilon) + beta."""
    kept, parts, ix = config.kept, config.parts, i64 if config.wide else i32
    A, x_size, y_size = ACCUMULATOR[acc], ITEMSIZE[dtypes[0]], ITEMSIZE[dtypes[5]]
    read, write, locate = load(dtypes[0], acc), store(dtypes[5], acc), _locate(config)
    kept_at, at = _offset(kept, config.wide), _offset(config.reduced, config.wide)
    gamma_of, beta_of, mean_of, var_of = (_parameter(dtypes[1 + i], acc, kept, i, kept_at) for i in range(4))

    def kernel(
        x, gamma, beta, mean, var, y, epsilon, channels, length, kept_n, reduced_n,
        x_kept, x_reduced, y_kept, y_reduced, strides,
    ):  # fmt: skip
        _, part, c, live = locate(channels)
        x_base = x + kept_at(c, kept_n, x_kept, 0) * x_size
        y_base = y + kept_at(c, kept_n, y_kept, 0) * y_size
        root = A(square_root(A(var_of(var, c, kept_n, strides) + epsilon)))
        a, b = A(gamma_of(gamma, c, kept_n, strides) / root), beta_of(beta, c, kept_n, strides)
        k = mean_of(mean, c, kept_n, strides)
        if live:
            for j in range(ix(part), ix(length), ix(parts)):
                v = A(read(x_base + at(j, reduced_n, x_reduced, 0) * x_size) - k)
                write(y_base + at(j, reduced_n, y_reduced, 0) * y_size, A(v * a + b))

    return kernel


def _gradient(dtypes: tuple[str, ...], acc: str, train_pass: bool, config: StridedConfig) -> Callable[..., None]:
    """dx and the parameters' gradients, of a training pass or of given statistics."""
    kept, parts, lanes, ix = config.kept, config.parts, config.lanes, i64 if config.wide else i32
    A, threads, wide = ACCUMULATOR[acc], config.lanes * config.parts, config.wide
    x_size, dy_size, dx_size = ITEMSIZE[dtypes[0]], ITEMSIZE[dtypes[1]], ITEMSIZE[dtypes[5]]
    read, read_dy, write, locate = load(dtypes[0], acc), load(dtypes[1], acc), store(dtypes[5], acc), _locate(config)
    kept_at, at, table_size = _offset(kept, wide), _offset(config.reduced, wide), 3 * threads
    gamma_of, mean_of, spread_of = (_parameter(dtypes[2 + i], acc, kept, i, kept_at) for i in range(3))
    outputs = [_parameter(d, acc, kept, 3 + i, kept_at, True) for i, d in enumerate(dtypes[6:])]
    put_dgamma, put_dbeta, put_dmean, put_dvar = (outputs * 2)[:4]
    add_parts, long, (add, close) = _norm_parts.add_parts(acc, lanes, parts, 3), config.long, compensated(acc)

    @device
    def body(
        x, dy, gamma, mean, spread, dx, dgamma, dbeta, dmean, dvar, averaged, epsilon, channels, length, kept_n, reduced_n,
        x_kept, x_reduced, dy_kept, dy_reduced, dx_kept, dx_reduced, strides,
    ):  # fmt: skip
        totals = cuda.shared.array(table_size, A)
        thread, part, c, live = locate(channels)
        x_base = x + kept_at(c, kept_n, x_kept, 0) * x_size
        dy_base = dy + kept_at(c, kept_n, dy_kept, 0) * dy_size
        dx_base = dx + kept_at(c, kept_n, dx_kept, 0) * dx_size
        k, inverse = mean_of(mean, c, kept_n, strides), spread_of(spread, c, kept_n, strides)
        if not train_pass:
            inverse = A(A(1) / A(square_root(A(inverse + epsilon))))
        s1, s2, s3 = A(0), A(0), A(0)
        lost1, lost2, lost3 = A(0), A(0), A(0)
        for j in range(ix(part), ix(length), ix(parts)):
            d = A(read(x_base + at(j, reduced_n, x_reduced, 0) * x_size) - k)
            g = read_dy(dy_base + at(j, reduced_n, dy_reduced, 0) * dy_size)
            if long:
                s1, lost1 = add(s1, lost1, g)
                s2, lost2 = add(s2, lost2, A(g * d))
                s3, lost3 = add(s3, lost3, d)
            else:
                s1, s2, s3 = A(s1 + g), A(s2 + g * d), A(s3 + d)
        if long:
            s1, s2, s3 = close(s1, lost1), close(s2, lost2), close(s3, lost3)
        totals[thread] = s1
        totals[i32(thread + threads)] = s2
        totals[i32(thread + 2 * threads)] = s3
        add_parts(totals)
        lane = i32(thread - part * lanes)
        s1, s2, s3 = totals[lane], totals[i32(lane + threads)], totals[i32(lane + 2 * threads)]
        a, b, shift = A(gamma_of(gamma, c, kept_n, strides) * inverse), A(0), A(0)
        if train_pass:
            b = A(-inverse * A(inverse * A(s2 / averaged)))
            shift = A(-A(s1 / averaged) - b * A(s3 / averaged))
        if part == 0 and live:
            put_dgamma(dgamma, c, kept_n, strides, A(s2 * inverse))
            put_dbeta(dbeta, c, kept_n, strides, s1)
            if not train_pass:
                put_dmean(dmean, c, kept_n, strides, A(-s1 * a))
                put_dvar(dvar, c, kept_n, strides, A(A(A(-s2 * inverse) * a) * A(inverse * A(0.5))))
        if live:
            for j in range(ix(part), ix(length), ix(parts)):
                result = read_dy(dy_base + at(j, reduced_n, dy_reduced, 0) * dy_size)
                if train_pass:
                    d = A(read(x_base + at(j, reduced_n, x_reduced, 0) * x_size) - k)
                    result = A(result + A(d * b + shift))
                write(dx_base + at(j, reduced_n, dx_reduced, 0) * dx_size, A(result * a))

    return body


def train_grad(dtypes: tuple[str, ...], acc: str, running: bool, config: StridedConfig) -> Callable[..., None]:
    """dx, dgamma, dbeta."""
    body = _gradient(dtypes, acc, True, config)

    def kernel(
        x, dy, gamma, mean, invstd, dx, dgamma, dbeta, averaged, epsilon, channels, length, kept_n, reduced_n,
        x_kept, x_reduced, dy_kept, dy_reduced, dx_kept, dx_reduced, strides,
    ):  # fmt: skip
        body(
            x, dy, gamma, mean, invstd, dx, dgamma, dbeta, dgamma, dbeta, averaged, epsilon, channels, length, kept_n,
            reduced_n, x_kept, x_reduced, dy_kept, dy_reduced, dx_kept, dx_reduced, strides,
        )  # fmt: skip

    return kernel


def infer_grad(dtypes: tuple[str, ...], acc: str, running: bool, config: StridedConfig) -> Callable[..., None]:
    """dx, dgamma, dbeta, dmean, dvar."""
    body = _gradient(dtypes, acc, False, config)

    def kernel(
        x, dy, gamma, mean, var, dx, dgamma, dbeta, dmean, dvar, averaged, epsilon, channels, length, kept_n, reduced_n,
        x_kept, x_reduced, dy_kept, dy_reduced, dx_kept, dx_reduced, strides,
    ):  # fmt: skip
        body(
            x, dy, gamma, mean, var, dx, dgamma, dbeta, dmean, dvar, averaged, epsilon, channels, length, kept_n,
            reduced_n, x_kept, x_reduced, dy_kept, dy_reduced, dx_kept, dx_reduced, strides,
        )  # fmt: skip

    return kernel
