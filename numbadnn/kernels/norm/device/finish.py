"""What a batch normalization computes once for each channel: joined parts of its reduction, statistics, gradients, coefficients.

The workspace, in the accumulator's type, each row as long as there are channels: 3 * parts rows of parts (counts, means, M2; or
three sums), the origin that means are relative to, and the four rows of coefficients of the walk that follows. Last, of training,
come parts rows of roots of M2 / count, for parts whose M2 the type does not hold. A block takes LANES channels, ``shares``
threads each.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, i32, i64, u32
from numbadnn.kernels.lang.ptx import let_next_start, wait_for_previous
from numbadnn.kernels.norm.device import parts as _norm_parts
from numbadnn.kernels.norm.device.parts import square_root
from numbadnn.kernels.norm.norm import AHEAD, LANES
from numbadnn.problem import ITEMSIZE


def statistics(acc: str, parameter: str, running: bool, shares: int) -> Callable[..., None]:
    """mean, invstd and the new running averages; coefficients k, r, a, b of y = ((x - k) - r) * a + b."""
    A, unit, size = ACCUMULATOR[acc], ITEMSIZE[acc], ITEMSIZE[parameter]
    fetch, put, read, write = load(acc, acc), store(acc, acc), load(parameter, acc), store(parameter, acc)
    both, join_parts = _norm_parts.join(acc), _norm_parts.join_parts(acc, LANES, shares)
    inverse_deviation = _norm_parts.inverse_deviation(acc)
    threads = LANES * shares

    def kernel(
        space, gamma, beta, old_mean, old_var, mean, invstd, new_mean, new_var,
        channels, parts, averaged, epsilon, kept_share, mean_share, var_share,
    ):  # fmt: skip
        counts = cuda.shared.array(threads, A)
        means = cuda.shared.array(threads, A)
        squares = cuda.shared.array(threads, A)
        more, others, arounds = cuda.local.array(AHEAD, A), cuda.local.array(AHEAD, A), cuda.local.array(AHEAD, A)
        thread = i32(cuda.threadIdx.x)
        mine = i32(u32(thread) // u32(LANES))
        channel = i32(i32(cuda.blockIdx.x) * LANES + i32(thread - mine * LANES))
        live = channel < channels
        own = channel if live else i32(channels - 1)
        row = i64(channels) * unit
        at, step = space + i64(own) * unit, i64(parts) * row
        n, centre, m2 = A(0), A(0), A(0)
        let_next_start()
        p = i64(own) * size
        scale, offset = read(gamma + p), read(beta + p)  # and all else that is needed last: none is waited for then
        if running:
            kept_mean, kept_var = A(read(old_mean + p) * kept_share), A(read(old_var + p) * kept_share)
        wait_for_previous()
        k = fetch(at + 3 * step)
        for first in range(mine, parts, AHEAD * shares):
            for i in range(AHEAD):  # all of them under way before the first is needed
                part = i32(first + i * shares)
                of_part = at + i64(part if part < parts else mine) * row
                exists = A(1) if part < parts else A(0)
                more[i] = A(fetch(of_part) * exists)
                others[i] = fetch(of_part + step)
                arounds[i] = A(fetch(of_part + 2 * step) * exists)
            for i in range(AHEAD):
                n, centre, m2 = both(n, centre, m2, more[i], others[i], arounds[i])
        counts[thread] = n
        means[thread] = centre
        squares[thread] = m2
        join_parts(counts, means, squares)
        if mine == 0 and live:
            r, var, inverse = inverse_deviation(means[thread], squares[thread], at, row, step, parts, averaged, epsilon)
            write(mean + p, A(k + r))
            write(invstd + p, inverse)
            if running:
                write(new_mean + p, A(kept_mean + A(A(k + r) * mean_share)))
                write(new_var + p, A(kept_var + A(var * var_share)))
            table = at + 3 * step + row
            put(table, k)
            put(table + row, r)
            put(table + 2 * row, A(scale * inverse))
            put(table + 3 * row, offset)

    return kernel


def gradients(acc: str, parameter: str, train: bool, shares: int) -> Callable[..., None]:
    """dgamma, dbeta, of given statistics dmean and dvar; of training coefficients m, a, b, c.

    dx = a * (dy + b * (x - m) + c): b is of the size of 1 / (x - m), which float32 holds where its square it does not.
    """
    A, unit, size = ACCUMULATOR[acc], ITEMSIZE[acc], ITEMSIZE[parameter]
    fetch, put, read, write = load(acc, acc), store(acc, acc), load(parameter, acc), store(parameter, acc)
    add_parts = _norm_parts.add_parts(acc, LANES, shares, 3)
    threads, table_size = LANES * shares, 3 * LANES * shares

    def kernel(space, gamma, mean, spread, dgamma, dbeta, dmean, dvar, channels, parts, averaged, epsilon):
        totals = cuda.shared.array(table_size, A)
        thread = i32(cuda.threadIdx.x)
        mine = i32(u32(thread) // u32(LANES))
        channel = i32(i32(cuda.blockIdx.x) * LANES + i32(thread - mine * LANES))
        live = channel < channels
        own = channel if live else i32(channels - 1)
        row = i64(channels) * unit
        at, step = space + i64(own) * unit, i64(parts) * row
        s1, s2, s3 = A(0), A(0), A(0)
        let_next_start()
        p = i64(own) * size
        inverse, scale, centre = read(spread + p), read(gamma + p), read(mean + p)
        wait_for_previous()
        for first in range(mine, parts, AHEAD * shares):
            for i in range(AHEAD):
                part = i32(first + i * shares)
                of_part = at + i64(part if part < parts else mine) * row
                share = A(1) if part < parts else A(0)
                s1 = A(s1 + fetch(of_part) * share)
                s2 = A(s2 + fetch(of_part + step) * share)
                s3 = A(s3 + fetch(of_part + 2 * step) * share)
        totals[thread] = s1
        totals[i32(thread + threads)] = s2
        totals[i32(thread + 2 * threads)] = s3
        add_parts(totals)
        if mine == 0 and live:
            s1, s2, s3 = totals[thread], totals[i32(thread + threads)], totals[i32(thread + 2 * threads)]
            if not train:
                inverse = A(A(1) / A(square_root(A(inverse + epsilon))))
            a = A(scale * inverse)
            write(dgamma + p, A(s2 * inverse))
            write(dbeta + p, s1)
            if train:
                b = A(-inverse * A(inverse * A(s2 / averaged)))
                table = at + 3 * step + row
                put(table, centre)
                put(table + row, a)
                put(table + 2 * row, b)
                put(table + 3 * row, A(-A(s1 / averaged) - b * A(s3 / averaged)))
            else:
                write(dmean + p, A(-s1 * a))
                write(dvar + p, A(A(A(-s2 * inverse) * a) * A(inverse * A(0.5))))

    return kernel
