"""What every own kernel needs of the machine: an NVIDIA GPU of compute capability 8.0 or later, and numba-cuda."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from typing import Any

from numbadnn.errors import BackendUnavailableError, is_passing
from numbadnn.host import files, kept_images, private
from numbadnn.host.undisturbed import load_numba
from numbadnn.kernels.build import simulate
from numbadnn.problem import Policy

LIMIT32 = 2**31 - 2048  # below it, an index of 32 bits plus a block of threads does not wrap
#: terms that a thread adds one after the other; longer sums keep account of what each addition rounds off (lang/long_sums.py)
LEAF = 256
#: the same of a product's tiles, on threads and on tensor cores, which have no registers to spare: longer ones are shared out to
#: more blocks, whose partial sums cost less than a hundredth of the products
LONGEST, LONGEST_MMA = 1 << 15, 1 << 17


def device_reason(policy: Policy) -> str:
    """Why own kernels cannot run under this policy, "" where they can. Loads the driver only for a CUDA device."""
    if policy.device < 0:
        return "needs arrays on a CUDA device"
    if simulate.active():
        return ""
    if importlib.util.find_spec("numba_cuda") is None:
        return "needs numba-cuda, which is not installed (pip install numbadnn[cu12] or numbadnn[cu13])"
    from numbadnn.gpu import driver as _driver

    try:
        capability = _driver.compute_capability(policy.device)
    except BackendUnavailableError as error:
        return str(error)
    if capability < (8, 0):
        return "needs compute capability 8.0 or later, device {} has {}.{}".format(policy.device, *capability)
    return ""


_IMPORTED = "numbadnn-imported-1"
_importable = False


def compiler_reason() -> str:
    """Why kernels cannot be compiled, "" where they can: numba-cuda is imported for this, once on this machine.

    A file says which versions of all that it consists of could be imported together; later processes believe it.
    """
    global _importable
    if _importable:
        return ""
    key = _versions()
    path = files.builds_folder() / f"{key}.imported"
    if not key or not private.read(path, _IMPORTED, key):
        try:
            load_numba(cuda=True)
        except Exception as error:  # an import can fail in many ways; each is a reason
            if is_passing(error):
                raise
            return f"numba-cuda cannot be imported: {error}"
        if key:
            private.write(path, _IMPORTED, key, b"")
    _importable = True
    return ""


def _versions() -> str:
    """Of what is imported with numba-cuda, as a key; "" where no file says them, and for the simulator, which is Numba's."""
    found = [kept_images.installed(name) for name in ("numba", "numba_cuda", "llvmlite", "numpy")]
    if simulate.active() or not all(found):
        return ""
    return hashlib.sha256("\0".join([sys.version, *found]).encode()).hexdigest()[:40]


def precision_reason(dtype: str, acc: str, policy: Policy) -> str:
    """Why a kernel that computes ``dtype`` in ``acc`` is not what the policy asks for, "" if it is."""
    if policy.precision in ("float16", "float32", "float64") and policy.precision != acc:
        return f"computes {dtype} in {acc}, not in {policy.precision}"
    return ""


def float32_reason(policy: Policy) -> str:
    """Why a kernel that sums in float32, in the one way it has, is not what the policy asks for; "" if it is."""
    if policy.precision in ("float16", "float64"):
        return f"accumulates in float32, not in {policy.precision}"
    if policy.algo not in ("auto", "none", "deterministic"):
        return f"has no algorithm {policy.algo!r}"
    return ""


def reach_reason(problem: Any) -> str:
    """Why a kernel that finds the pixel of a tap in 32 bits cannot compute a convolution, "" where it can."""
    axes = zip(problem.x.shape[2:], problem.taps, problem.y.shape[2:], problem.padding, strict=True)
    steps = zip(problem.stride, problem.dilation, strict=True)
    farthest = max(
        n + sum(pad) + taps * dilation + out * stride
        for (n, taps, out, pad), (stride, dilation) in zip(axes, steps, strict=True)
    )
    return "needs a padded image of fewer than 2**31 rows and columns" if farthest >= LIMIT32 else ""


def accumulator_of(dtype: str, policy: Policy) -> str:
    """The type a sum is kept in: float64 for float64 data or where the policy says float64, else float32."""
    return "float64" if dtype == "float64" or policy.precision == "float64" else "float32"
