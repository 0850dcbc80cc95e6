"""A ring of stages in shared memory, which the copy engine fills while wgmma multiplies: what its kernels share.

Each stage has a barrier that is full, once its bytes are there, and one that is empty, once both groups of threads that
multiply have read it. ``full`` and ``empty`` are the addresses of the first; a phase turns with each round.
"""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.cuda import device, u32, u64


def ring_of(stages: int, readers: int = 2) -> tuple[Any, Any]:
    """``begin(full, empty)``: thread 0 initialises the barriers; ``following(stage, phase) -> (stage, phase)``."""
    init = hopper.barrier_init

    @device
    def begin(full, empty):
        for i in range(stages):
            init(u32(full + u32(8 * i)), u32(1))
            init(u32(empty + u32(8 * i)), u32(readers))

    @device
    def following(stage, phase):
        stage = u32(stage + u32(1))
        if stage == u32(stages):
            stage = u32(0)
            phase = u32(phase ^ u32(1))
        return stage, phase

    return begin, following


def consumer(
    multiply: Any, stages: int, size: int, halves: tuple[int, int], b_at: int, steps: tuple[int, int, int],
    unit: int, again: int = 0, kept: tuple[int, int] | None = None,
) -> Any:  # fmt: skip
    """``consume(sums, others, ring, mine, full, empty, stage, phase, begin, end, thread) -> (stage, phase)``.

    A group of 128 threads adds the products of steps ``begin`` to ``end`` to ``sums``, and gives back each stage that is read.
    A stage has ``size`` bytes: A from ``mine`` times ``unit`` on, B from ``b_at``. ``halves``: the constant halves of their
    matrix descriptors. ``steps``: how many instructions a stage, and from one to the next in A and in B, in units of 16 bytes.
    ``again``: how far behind A's rows lie those of ``others``, 0: there are none. ``kept``: where in the ring B lies that
    stays there for all tiles, and its bytes a step.
    """
    arrive, wait = hopper.barrier_arrive, hopper.barrier_wait
    open_group, close_group, wait_one, wait_all = (
        hopper.wgmma_fence, hopper.wgmma_commit, hopper.wgmma_wait(1), hopper.wgmma_wait(0),
    )  # fmt: skip
    (a_half, b_half), (count, a_step, b_step), (_, following) = halves, steps, ring_of(stages)
    stays, (kept_at, kept_size) = kept is not None, kept or (0, 0)

    @device
    def consume(sums, others, ring, mine, full, empty, stage, phase, begin, end, thread):
        previous = u32(0)
        for step in range(begin, end):
            wait(u32(full + stage * u32(8)), phase)
            at = u32(ring + stage * u32(size))
            a = u64(u64(a_half) | u64(u32(at + u32(mine * unit)) >> u32(4)))
            b_from = u32(ring + u32(kept_at + step * kept_size)) if stays else u32(at + u32(b_at))
            b = u64(u64(b_half) | u64(b_from >> u32(4)))
            open_group()
            for k in range(count):
                multiply(sums, u64(a + u64(k * a_step)), u64(b + u64(k * b_step)))
                if again:
                    multiply(others, u64(a + u64(again + k * a_step)), u64(b + u64(k * b_step)))
            close_group()
            wait_one()
            if step > begin and (thread & 127) == 0:
                arrive(u32(empty + previous * u32(8)))
            previous = stage
            stage, phase = following(stage, phase)
        wait_all()
        if end > begin and (thread & 127) == 0:
            arrive(u32(empty + previous * u32(8)))
        return stage, phase

    return consume
