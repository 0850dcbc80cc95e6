"""numbadnn.dask on two worker processes: the same bits, filters sent once, and a worker that dies is survived."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
import dask  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.dask as nd  # noqa: E402

pytestmark = [
    pytest.mark.slow(15),
    # a cluster that is shut down while its threads still write, and the worker that is killed here
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    settings = {"distributed.worker.memory.terminate": False, "distributed.scheduler.allowed-failures": 5}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit="2GiB"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


X, W = normal(2, 8, 40, 36), normal(16, 8, 5, 3)
KEYWORDS: dict[str, Any] = {"border_mode": ((2, 1), (0, 2)), "subsample": (2, 1)}


def test_processes_have_the_bits_of_the_whole(client: Any) -> None:
    with numbadnn.using(determinism="batch_invariant"):
        y = numbadnn.conv2d(X, W, **KEYWORDS)
        x, dy = da.from_array(X, chunks=(1, 8, 11, 13)), da.from_array(y, chunks=(1, 16, 7, 9))
        lazy = (
            nd.conv2d(x, W, **KEYWORDS),
            nd.conv2d_grad_wrt_inputs(dy, W, X.shape, **KEYWORDS),
            nd.conv2d_grad_wrt_weights(x, dy, W.shape, **KEYWORDS),
            *nd.batch_normalization_train(
                x, np.ones((1, 8, 1, 1), "float32"), np.zeros((1, 8, 1, 1), "float32"), "spatial"
            ),
        )
        back = numbadnn.conv2d_grad_wrt_inputs(y, W, X.shape, **KEYWORDS)
    with dask.config.set(scheduler="sync"):
        alone = dask.compute(*lazy)
    spread = client.gather(client.compute(lazy))
    assert [a.tobytes() for a in alone] == [b.tobytes() for b in spread]
    assert spread[0].tobytes() == y.tobytes() and spread[1].tobytes() == back.tobytes()


def test_filters_are_sent_once_to_a_worker(client: Any) -> None:
    filters = normal(64, 8, 9, 9)
    x = da.random.default_rng(0).random((1, 8, 96, 96), chunks=(1, 8, 12, 12), dtype="float32")
    nd.conv2d(x, filters).sum().compute()

    def arrived(dask_worker: Any) -> list[str]:
        return [str(key) for sent in dask_worker.transfer_incoming_log for key in sent["keys"] if "filters" in str(key)]

    came = list(client.run(arrived).values())
    assert any(came)
    assert all(len(keys) == len(set(keys)) for keys in came)


def test_a_worker_that_dies_is_survived(client: Any, tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def dies_once(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"] == (0, 0, 2, 1) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    with numbadnn.using(determinism="batch_invariant"):
        y = nd.conv2d(da.from_array(X, chunks=(1, 8, 11, 13)).map_blocks(dies_once, dtype=X.dtype), W, **KEYWORDS)
        whole = numbadnn.conv2d(X, W, **KEYWORDS)
    assert client.compute(y).result(timeout=60).tobytes() == whole.tobytes()
    assert marker.exists()
