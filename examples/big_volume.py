"""Filter a volume that need not fit into memory: a Gaussian, and a bank of filters that is learned, with numbadnn.dask.

A synthetic scan of balls in noise is written to zarr slab by slab. Two 5x5x5 filters are fitted to a corner of it, whose truth is
known: one gives the balls without noise, the other their edges along the depth. Both results are written slab by slab, never
held as a whole; the error of the learned filter is below that of the Gaussian. A progress bar is Dask's own.

    pip install '.[dask]'
    python examples/big_volume.py [--side 256] [--memory 512MiB] [--device cuda] [--folder FOLDER] [--plot big_volume.png]
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from dask.diagnostics import ProgressBar

import numbadnn.dask as nd

NOISE, SIGMA, SLAB, STEPS = 0.6, 1.0, 8, 12


def truth(start: int, stop: int, side: int) -> np.ndarray:
    """Slices start ... stop-1 without noise, (1, 1, slices, side, side): balls on a lattice."""
    z, y, x = np.ogrid[start:stop, :side, :side]
    balls = np.cos(z / 4) + np.cos(y / 5) + np.cos(x / 6) > 1
    return balls[None, None].astype(np.float32)


def scan(path: Path, side: int) -> Any:
    """The noisy volume in zarr, a slab at a time."""
    z = empty(path, 1, side)
    for start in range(0, side, SLAB):
        clean = truth(start, min(start + SLAB, side), side)
        noise = np.random.default_rng(start).standard_normal(clean.shape, dtype=np.float32)
        z[:, :, start : start + SLAB] = clean + NOISE * noise
    return z


def empty(path: Path, channels: int, side: int) -> Any:
    shape, chunks = (1, channels, side, side, side), (1, channels, SLAB, side, side)
    return zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="float32", overwrite=True)


def gaussian(x: da.Array, **where: Any) -> da.Array:
    """Three passes, one along each axis."""
    reach = round(3 * SIGMA)
    line = np.exp(-0.5 * (np.arange(-reach, reach + 1) / SIGMA) ** 2)
    for axis in range(3):
        shape = [1] * 5
        shape[2 + axis] = len(line)
        x = nd.conv3d(x, (line / line.sum()).astype(np.float32).reshape(shape), border_mode="half", **where)
    return x


def learn(x: da.Array, wanted: da.Array, **where: Any) -> np.ndarray:
    """Filters whose outputs are nearest to ``wanted`` in the mean square: conjugate gradients, with numbadnn's own gradient."""
    shape = (wanted.shape[1], x.shape[1], 5, 5, 5)

    def forward(w: np.ndarray) -> da.Array:
        return nd.conv3d(x, w, border_mode="half", **where)

    def backward(r: da.Array) -> np.ndarray:
        return nd.conv3d_grad_wrt_weights(x, r, shape, border_mode="half", **where).compute()

    w, left = np.zeros(shape, np.float32), wanted
    step = slope = backward(left)
    size = float((slope**2).sum())
    for _ in range(STEPS):
        along = forward(step)
        along, length = dask.persist(along, (along**2).sum())
        far = np.float32(size / float(length))
        w = w + far * step
        (left,) = dask.persist(left - far * along)
        slope = backward(left)
        before, size = size, float((slope**2).sum())
        step = slope + np.float32(size / before) * step
    return w


def run(folder: Path, side: int, memory: str, device: str | None, report: Callable[[str], Any]) -> dict[str, Any]:
    """The volumes in zarr, the filters, and the errors of the noisy volume, the Gaussian and the learned filter."""
    where = {"device": device} if device else {}
    source = scan(folder / "scan", side)
    corner = min(side, 48)
    clean = truth(0, corner + 1, side)[..., :corner, :corner]
    wanted = np.concatenate([clean[:, :, :-1], np.diff(clean, axis=2)], axis=1)
    part = da.from_array(source[:, :, :corner, :corner, :corner], chunks=(1, 1, 24, 48, 48))
    w = learn(part, da.from_array(wanted, chunks=(1, 2, 24, 48, 48)), **where)

    chunks = nd.suggest_chunks(nd.conv3d, source, w, memory=memory, border_mode="half")
    report(f"{source.nbytes / 2**20:.0f} MiB in chunks of {chunks[2]} slices")
    x = da.from_zarr(source, chunks=chunks)
    results = {"gaussian": gaussian(x, **where), "learned": nd.conv3d(x, w, border_mode="half", **where)}
    stored = {name: empty(folder / name, result.shape[1], side) for name, result in results.items()}
    da.store(list(results.values()), list(stored.values()), lock=False)

    errors = {name: np.sqrt(squares(z, side) / side**3) for name, z in (("scan", source), *stored.items())}
    for name, error in errors.items():
        report(f"{name}: root mean square error {error:.3f}")
    return {"errors": errors, "filters": w, "scan": source, **stored}


def squares(z: Any, side: int) -> float:
    """The sum of squared errors of the first channel, a slab at a time."""
    total = 0.0
    for start in range(0, side, SLAB):
        stop = min(start + SLAB, side)
        total += float(((z[:, :1, start:stop] - truth(start, stop, side)) ** 2).sum(dtype=np.float64))
    return total


def plot(found: dict[str, Any], path: Path) -> None:
    """One slice of each volume."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    at = found["scan"].shape[2] // 2
    pictures = [("scan", 0), ("gaussian", 0), ("learned", 0), ("learned", 1)]
    figure, axes = plt.subplots(1, len(pictures), figsize=(4 * len(pictures), 4.4), layout="constrained")
    for axis, (name, channel) in zip(axes, pictures, strict=True):
        axis.imshow(found[name][0, channel, at], cmap="gray")
        error = f", error {found['errors'][name]:.2f}" if not channel else ", edges along the depth"
        axis.set(title=f"{name}{error}", xticks=[], yticks=[])
    figure.savefig(path, dpi=90)
    plt.close(figure)


@contextlib.contextmanager
def place(folder: str | None) -> Iterator[Path]:
    """The folder given, or one for the time being."""
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--memory", default="512MiB", help="for the arrays of all workers")
    parser.add_argument("--device", help="cuda: chunks go through the GPU")
    parser.add_argument("--folder", help="where the volumes are written (a temporary one)")
    parser.add_argument("--plot", default="big_volume.png")
    options = parser.parse_args()
    with place(options.folder) as folder, ProgressBar(minimum=1):
        found = run(folder, options.side, options.memory, options.device, print)
        plot(found, Path(options.plot))
    print("written to", options.plot)


if __name__ == "__main__":
    main()
