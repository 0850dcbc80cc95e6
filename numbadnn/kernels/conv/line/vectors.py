"""``numba.line_octets``: which 16-bit lines go to tensor cores in vectors of 8 channels; device code: ``device/vectors.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.conv.line import f16 as line_f16
from numbadnn.kernels.conv.line.channels import facts_of
from numbadnn.kernels.conv.line.f16 import LANES, RUN, SHARED_BYTES, halo_of
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

WARPS = 8
THREADS = LANES * WARPS
#: rows of 16 bytes that 8 times take in shared memory
PITCH = 10


@dataclass(frozen=True, slots=True)
class VectorsConfig:
    """A block has 8 * ``octets`` channels and 16 * ``tiles`` filters, a warp of it ``runs`` of 32 times; ``taps`` are frozen."""

    octets: int
    tiles: int
    runs: int
    taps: int
    resident: int

    @property
    def filters(self) -> int:
        return 16 * self.tiles

    @property
    def pitch(self) -> int:
        """Rows of a vector of the filters in shared memory: one more than there are, so that neighbours meet all banks."""
        return self.filters + 1

    @property
    def span(self) -> int:
        """Times of a block."""
        return WARPS * self.runs * RUN


MOST_TAPS = 4


def plane_of(problem: ConvProblem, config: VectorsConfig) -> int:
    """Bytes of a vector in shared memory: one row more than a multiple of 8, so that neighbours meet all banks."""
    rows = (config.span // 8 + halo_of(problem)) * PITCH
    return 16 * (rows + (1 - rows) % 8)


def shared_bytes(problem: ConvProblem, config: VectorsConfig) -> int:
    return config.octets * (plane_of(problem, config) + config.taps * config.pitch * 16)


def heuristic(problem: ConvProblem, policy: Policy) -> VectorsConfig | None:
    """16, 32 or 64 channels and few taps; None elsewhere. Filters must lie in memory without gaps."""
    w, (K, C), S = problem.w, problem.w.shape[:2], problem.taps[1]
    if C not in (16, 32, 64) or S > MOST_TAPS or line_f16.heuristic(problem, policy) is None:
        return None
    if not (w.aligned and w.strides[1:2] + w.strides[3:] == (S, 1) and w.strides[0] % 8 == 0):
        return None
    runs = max(1, 8 // (C // 8))
    config = VectorsConfig(C // 8, min(-(-K // (16 * problem.groups)), 4 // runs), runs, S, 2)
    return config if shared_bytes(problem, config) <= SHARED_BYTES else None


def kernel(dtype: str, config: VectorsConfig) -> Kernel:
    parameters = Arguments(
        *("ptr:3", "i32 blocks_of_filters blocks groups K Q past dilation halo plane"),
        *("i64*2 x_strides", "i64 w_stride", "i32*2 order", "i64*2 y_strides"),
    )
    made_by, arguments = "conv.line.device.vectors.forward", (dtype, config)
    return Kernel.of("line_octets", made_by, arguments, parameters, THREADS, config.resident)


def prepare(problem: ConvProblem, device: int, config: VectorsConfig, chosen: Kernel) -> Any:
    (N, _, _, Q), w, groups = problem.x.shape, problem.w, problem.groups
    K, S = w.shape[0] // groups, config.taps
    blocks_of_filters, blocks = -(-K // config.filters), -(-Q // config.span)
    scalars = chosen.values(
        facts_of(problem),
        blocks_of_filters=blocks_of_filters,
        blocks=blocks,
        halo=halo_of(problem),
        plane=plane_of(problem, config),
        w_stride=w.strides[0],
        order=(S - 1, -1) if problem.flip else (0, 1),
    )
    grid = (blocks_of_filters * blocks * groups * N, 1, 1)
    return chosen.prepare(device, grid, (THREADS, 1, 1), scalars, shared_bytes(problem, config))


def kernels() -> Iterator[Kernel]:
    yield kernel("float16", VectorsConfig(8, 4, 1, 3, 2))
    yield kernel("bfloat16", VectorsConfig(2, 1, 4, 3, 2))
