"""Arrays of a device that is not the current one: each operation runs where its arrays are and allocates there.

One process a library, which sees all GPUs where the others of pytest-xdist see one each. Run as a script it is the test.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

ONE = "one GPU only"


@pytest.mark.gpu
@pytest.mark.slow(30)
@pytest.mark.parametrize("library", ["torch", "cupy", "numba", "jax"])
def test_arrays_of_another_device_than_the_current_one(library):
    pytest.importorskip({"numba": "numba_cuda"}.get(library, library))
    seen = {"CUDA_VISIBLE_DEVICES": os.environ["TESTS_GPUS"]} if "TESTS_GPUS" in os.environ else {}
    done = subprocess.run(
        [sys.executable, __file__, library], env=os.environ | seen, capture_output=True, text=True, timeout=300
    )
    if ONE in done.stdout:
        pytest.skip(ONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "passed", done.stdout


def main(library: str) -> None:
    root = Path(__file__).parents[2]
    sys.path[:0] = [str(root), str(root / "tests" / "support")]
    import gpu_verified

    if gpu_verified.gpu_count() < 2:
        print(ONE)
        return
    import numbadnn as nd

    put, device_of, numpy_of, current, stream_of = globals()[f"{library}_arrays"]()
    rng = np.random.default_rng(5)
    x, w, g = (rng.standard_normal(s).astype(np.float32) for s in ((4, 16, 20, 20), (8, 16, 3, 3), (1, 16, 1, 1)))
    dy, large = (rng.standard_normal(s).astype(np.float32) for s in ((4, 8, 18, 18), (512, 4096)))
    block = nd.RNNBlock("float32", 8, 2, "lstm")
    wv = (rng.standard_normal(block.get_param_size((4, 8))) * 0.2).astype(np.float32)
    steps, state = rng.standard_normal((5, 4, 8)).astype(np.float32), np.zeros((2, 4, 8), np.float32)
    operations = {
        "softmax": lambda p, b: nd.softmax(p(x), backend=b),
        "large": lambda p, b: nd.softmax(p(large), backend=b),  # its memory goes back to the driver
        "conv2d": lambda p, b: nd.conv2d(p(x), p(w), border_mode="half", backend=b),
        "strided": lambda p, b: nd.conv2d(p(x)[:, :, ::2], p(w), backend=b) if library != "jax" else p(x),
        "weights": lambda p, b: nd.conv2d_grad_wrt_weights(p(x), p(dy), w.shape, backend=b),
        "empty": lambda p, b: nd.softmax(p(x[:0]), backend=b),
        "pool": lambda p, b: nd.pool(p(x), (3, 3), (2, 2), backend=b),
        "norm": lambda p, b: nd.batch_normalization_train(p(x), p(g), p(g), "spatial", backend=b)[0],
        "dropout": lambda p, b: nd.dropout(p(x), 0.5, backend="numba")[0],
        "upsampling": lambda p, b: nd.bilinear_upsampling(p(x), 2, backend="numba"),
        "rnn": lambda p, b: block.apply(p(wv), p(steps), p(state), p(state), backend=b)[0],
    }

    def on(device: int, name: str, backend: str | None) -> bytes:
        result = operations[name](lambda a: put(a, device), backend)
        assert device_of(result) == device, f"{name} of device {device}: result on device {device_of(result)}"
        return numpy_of(result).tobytes()

    before = current()
    for name in operations:
        for backend in ("numba", "cudnn", None):
            first, *others = [on(d, name, backend) for d in (1, 0, 1, 0)]
            assert all(o == first for o in others), f"{name} ({backend}): other bits on another device"
            assert current() == before, f"{name} ({backend}) left device {current()} current"
    for device in (1, 0):
        stream, operand = stream_of(device), put(large, device)
        with_stream = nd.softmax(operand, stream=stream)
        getattr(stream, "synchronize", int)()  # PyTorch's memory is kept for a stream, but does not wait for it
        assert device_of(with_stream) == device
        assert numpy_of(with_stream).tobytes() == on(device, "large", None), (
            f"other bits on a stream of device {device}"
        )
    try:
        nd.conv2d(put(x, 0), put(w, 1))
    except ValueError as error:
        assert "device" in str(error), error
    else:
        raise AssertionError("arrays of two devices were accepted")

    bits: dict[int, set[bytes]] = {0: set(), 1: set()}
    threads = [
        threading.Thread(target=lambda d=d: [bits[d].add(on(d, "conv2d", "cudnn")) for _ in range(20)]) for d in bits
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bits[0] == bits[1] and len(bits[0]) == 1, "a thread for each device: other bits"
    print("passed")


def torch_arrays():
    import torch

    return (
        lambda a, d: torch.from_numpy(np.ascontiguousarray(a)).to(f"cuda:{d}"),
        lambda r: r.device.index,
        lambda r: r.cpu().numpy(),
        torch.cuda.current_device,
        torch.cuda.Stream,
    )


def cupy_arrays():
    import cupy

    def put(a, d):
        with cupy.cuda.Device(d):
            return cupy.asarray(a)

    def stream_of(d):
        with cupy.cuda.Device(d):
            return cupy.cuda.Stream(non_blocking=True)

    return put, lambda r: r.device.id, cupy.asnumpy, lambda: cupy.cuda.Device().id, stream_of


def numba_arrays():
    from numba import cuda

    def put(a, d):
        with cuda.gpus[d]:
            return cuda.to_device(np.ascontiguousarray(a))

    def numpy_of(r):
        with cuda.gpus[device_of(r)]:
            return r.copy_to_host()

    def device_of(r):
        return r.gpu_data.context.device.id

    def stream_of(d):
        with cuda.gpus[d]:
            return cuda.stream()

    return put, device_of, numpy_of, lambda: cuda.current_context().device.id, stream_of


def jax_arrays():
    import jax

    from numbadnn.gpu import streams

    devices = jax.devices("gpu")
    return (
        lambda a, d: jax.device_put(a, devices[d]),
        lambda r: next(iter(r.devices())).id,
        np.asarray,
        lambda: 0,  # it has no current device
        streams.own,
    )


if __name__ == "__main__":
    main(sys.argv[1])
