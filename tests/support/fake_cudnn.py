"""A recording stand-in for libcudnn and the CUDA driver: C callbacks at real addresses, strict about the API's rules.

The binding calls it through ctypes and through its compiled shims exactly as it calls the real one. Every attribute is
checked against the type that cudnn_graph.h documents, finalising checks that the required ones are there, and "GPU
memory" is host memory: executing a plan computes the convolution with NumPy, so a wrong attribute, stride or pointer
gives wrong numbers. ``engines`` says what heuristics offer; ``calls`` records everything.
"""

from __future__ import annotations

import ctypes
import itertools
import types
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from numbadnn.cudnn._enums import Attr, ConvolutionMode, DataType, DescriptorType, HeurMode, Type
from numbadnn.cudnn._prototypes import PROTOTYPES
from numbadnn.cudnn.lib import Library

BAD_PARAM, NOT_SUPPORTED, INTERNAL, EXECUTION_FAILED = 2000, 3000, 4000, 5000
CONTEXT = 0x7E57
K, T, A = DescriptorType, Type, Attr

NUMPY = {DataType.HALF: np.float16, DataType.BFLOAT16: ml_dtypes.bfloat16, DataType.FLOAT: np.float32,
         DataType.DOUBLE: np.float64}  # fmt: skip
C_OF = {
    T.HANDLE: ctypes.c_void_p, T.DATA_TYPE: ctypes.c_int, T.INT64: ctypes.c_int64, T.FLOAT: ctypes.c_float,
    T.DOUBLE: ctypes.c_double, T.VOID_PTR: ctypes.c_void_p, T.CONVOLUTION_MODE: ctypes.c_int,
    T.HEUR_MODE: ctypes.c_int, T.KNOB_TYPE: ctypes.c_int, T.NUMERICAL_NOTE: ctypes.c_int,
    T.BACKEND_DESCRIPTOR: ctypes.c_void_p, T.BEHAVIOR_NOTE: ctypes.c_int,
}  # fmt: skip

#: operation kind -> (prefix of its attributes, how x, w and y are called there)
OPERATIONS = {
    K.OPERATION_CONVOLUTION_FORWARD: ("OPERATION_CONVOLUTION_FORWARD_", "X", "W", "Y"),
    K.OPERATION_CONVOLUTION_BACKWARD_DATA: ("OPERATION_CONVOLUTION_BWD_DATA_", "DX", "W", "DY"),
    K.OPERATION_CONVOLUTION_BACKWARD_FILTER: ("OPERATION_CONVOLUTION_BWD_FILTER_", "X", "DW", "DY"),
}

#: descriptor -> attribute -> the types it may have, as cudnn_graph.h documents them; all are required to finalise
RULES: dict[DescriptorType, dict[Attr, tuple[Type, ...]]] = {
    K.TENSOR: {
        A.TENSOR_DATA_TYPE: (T.DATA_TYPE,), A.TENSOR_DIMENSIONS: (T.INT64,), A.TENSOR_STRIDES: (T.INT64,),
        A.TENSOR_UNIQUE_ID: (T.INT64,), A.TENSOR_BYTE_ALIGNMENT: (T.INT64,),
    },
    K.CONVOLUTION: {
        A.CONVOLUTION_COMP_TYPE: (T.DATA_TYPE,), A.CONVOLUTION_CONV_MODE: (T.CONVOLUTION_MODE,),
        A.CONVOLUTION_DILATIONS: (T.INT64,), A.CONVOLUTION_FILTER_STRIDES: (T.INT64,),
        A.CONVOLUTION_PRE_PADDINGS: (T.INT64,), A.CONVOLUTION_POST_PADDINGS: (T.INT64,),
        A.CONVOLUTION_SPATIAL_DIMS: (T.INT64,),
    },
    K.OPERATIONGRAPH: {A.OPERATIONGRAPH_HANDLE: (T.HANDLE,), A.OPERATIONGRAPH_OPS: (T.BACKEND_DESCRIPTOR,)},
    K.ENGINEHEUR: {A.ENGINEHEUR_OPERATION_GRAPH: (T.BACKEND_DESCRIPTOR,), A.ENGINEHEUR_MODE: (T.HEUR_MODE,)},
    K.ENGINE: {A.ENGINE_OPERATION_GRAPH: (T.BACKEND_DESCRIPTOR,), A.ENGINE_GLOBAL_INDEX: (T.INT64,)},
    K.KNOB_CHOICE: {A.KNOB_CHOICE_KNOB_TYPE: (T.KNOB_TYPE,), A.KNOB_CHOICE_KNOB_VALUE: (T.INT64,)},
    K.ENGINECFG: {A.ENGINECFG_ENGINE: (T.BACKEND_DESCRIPTOR,)},
    K.EXECUTION_PLAN: {
        A.EXECUTION_PLAN_HANDLE: (T.HANDLE,), A.EXECUTION_PLAN_ENGINE_CONFIG: (T.BACKEND_DESCRIPTOR,),
    },
    K.VARIANT_PACK: {
        A.VARIANT_PACK_UNIQUE_IDS: (T.INT64,), A.VARIANT_PACK_DATA_POINTERS: (T.VOID_PTR,),
        A.VARIANT_PACK_WORKSPACE: (T.VOID_PTR,),
    },
    **{
        kind: {
            **{A[prefix + end]: (T.BACKEND_DESCRIPTOR,) for end in ("CONV_DESC", *ends)},
            **{A[prefix + end]: (T.FLOAT, T.DOUBLE) for end in ("ALPHA", "BETA")},
        }
        for kind, (prefix, *ends) in OPERATIONS.items()
    },
}  # fmt: skip
OPTIONAL = {A.ENGINECFG_KNOB_CHOICES: (T.BACKEND_DESCRIPTOR,)}


class Item:
    """One descriptor: its kind, its attributes as {Attr: (Type, values)}, finalised or not."""

    def __init__(self, kind: DescriptorType) -> None:
        self.kind, self.attributes, self.final = kind, {}, False

    def get(self, name: Attr) -> list[Any]:
        return self.attributes[name][1]


def engine(index=0, notes=(), behavior=(), knobs=None, workspace=0, **extra):
    """An engine that heuristics may offer. ``modes``: where; ``builds``: whether its plan can be finalised;
    ``correlation_only``: refuses true convolution."""
    return {"index": index, "notes": notes, "behavior": behavior, "knobs": knobs or {}, "workspace": workspace,
            "modes": (HeurMode.A,), "builds": True, "correlation_only": False, **extra}  # fmt: skip


class FakeCudnn:
    """``library`` is what ``lib.load()`` gives, ``driver`` what ``_driver.library()`` gives."""

    def __init__(self, engines: list[dict] | None = None) -> None:
        self.engines = [engine()] if engines is None else engines
        self.calls: list[tuple] = []
        self.tensors: list[tuple] = []
        self.items: dict[int, Item] = {}
        self.failing: dict[str, int] = {}  # C function -> the status it returns
        self.problems: list[Exception] = []
        self.context = CONTEXT
        self._next = itertools.count(0x1000, 16)
        self.functions = types.SimpleNamespace()
        for name, (_, arguments) in PROTOTYPES.items():
            method = getattr(self, name, None)
            if method is not None:
                setattr(self.functions, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._guard(name, method)))
        self.functions.cudnnGetErrorString = lambda status: f"CUDNN_STATUS_{status}".encode()
        self.functions.cudnnGetLastErrorString = lambda buffer, n: setattr(buffer, "value", b"the fake said so")
        self.library = Library(self.functions, "/fake/libcudnn.so.9", 91900)
        current = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._current)
        self.capturing = 0
        capturing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32))(self._capturing)
        self.driver = types.SimpleNamespace(
            cuCtxGetCurrent=current, cuStreamIsCapturing=capturing, cuCtxSynchronize=lambda: 0
        )

    def _capturing(self, stream, out):
        out[0] = self.capturing
        return 0

    def install(self, monkeypatch) -> FakeCudnn:
        """Put this in the place of libcudnn, the driver and the device's context."""
        from numbadnn.cudnn import conv, lib
        from numbadnn.gpu import context as _context
        from numbadnn.gpu import driver as _driver

        monkeypatch.setattr(lib, "_LOADED", self.library)
        monkeypatch.setattr(lib, "_POOL", {})
        monkeypatch.setattr(lib, "_LOCAL", lib._Local())
        monkeypatch.setattr(lib, "check_single_folder", lambda: None)
        monkeypatch.setattr(conv, "_LAST", conv._Last())
        monkeypatch.setattr(_driver, "library", lambda: self.driver)
        monkeypatch.setattr(_context, "primary_context", lambda device: CONTEXT)
        monkeypatch.setattr(_context, "ensure_context", self.ensure_context)
        return self

    @contextmanager
    def ensure_context(self, device: int):
        before, self.context = self.context, CONTEXT
        yield CONTEXT
        self.context = before

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def alive(self, kind: DescriptorType) -> int:
        return sum(item.kind == kind for item in self.items.values())

    def _guard(self, name, method):
        def call(*args):
            self.calls.append((name, *args))
            if name in self.failing:
                return self.failing[name]
            try:
                return method(*args) or 0
            except Exception as error:  # an exception cannot leave a callback: keep it for the test
                self.problems.append(error)
                return INTERNAL

        return call

    def _current(self, out):
        ctypes.c_uint64.from_address(out).value = self.context
        return 0

    # ---- the C functions -------------------------------------------------------------------------------------------

    def cudnnCreate(self, out):
        ctypes.c_uint64.from_address(out).value = next(self._next)

    def cudnnSetStream(self, handle, stream):
        pass

    def cudnnBackendCreateDescriptor(self, kind, out):
        pointer = next(self._next)
        self.items[pointer] = Item(DescriptorType(kind))
        ctypes.c_uint64.from_address(out).value = pointer

    def cudnnBackendDestroyDescriptor(self, pointer):
        del self.items[pointer]

    def cudnnBackendSetAttribute(self, pointer, name, element_type, count, array):
        item = self.items[pointer]
        name, element_type = Attr(name), Type(element_type)
        if item.final or element_type not in {**RULES[item.kind], **OPTIONAL}.get(name, ()):
            return BAD_PARAM
        values = list((C_OF[element_type] * count).from_address(array))
        if element_type == T.BACKEND_DESCRIPTOR and not all(self.items[v].final for v in values):
            return BAD_PARAM
        item.attributes[name] = (element_type, values)

    def cudnnBackendFinalize(self, pointer):
        item = self.items[pointer]
        missing = [a for a in RULES[item.kind] if a not in item.attributes]
        if missing or item.final:
            return BAD_PARAM
        status = getattr(self, f"_finalise_{item.kind.name}", lambda item: 0)(item)
        if not status:
            item.final = True
        return status

    def _finalise_TENSOR(self, item):
        dims, strides = item.get(A.TENSOR_DIMENSIONS), item.get(A.TENSOR_STRIDES)
        size = np.dtype(NUMPY[DataType(item.get(A.TENSOR_DATA_TYPE)[0])]).itemsize
        alignment = item.get(A.TENSOR_BYTE_ALIGNMENT)[0]
        good = len(dims) == len(strides) in (4, 5) and all(n > 0 for n in dims) and alignment % size == 0
        return 0 if good else BAD_PARAM

    def _finalise_CONVOLUTION(self, item):
        n = item.get(A.CONVOLUTION_SPATIAL_DIMS)[0]
        lengths = [len(item.get(a)) for a in (A.CONVOLUTION_DILATIONS, A.CONVOLUTION_FILTER_STRIDES,
                                              A.CONVOLUTION_PRE_PADDINGS, A.CONVOLUTION_POST_PADDINGS)]  # fmt: skip
        return 0 if lengths == [n] * 4 else BAD_PARAM

    def _finalise_OPERATIONGRAPH(self, item):
        """No engine of this fake pads unevenly or takes strides that are not packed NCHW or NHWC."""
        conv, x, w, y, *_ = self.operation(item)
        if conv.get(A.CONVOLUTION_PRE_PADDINGS) != conv.get(A.CONVOLUTION_POST_PADDINGS):
            return NOT_SUPPORTED
        for tensor in (x, w, y):
            dims, strides = tensor.get(A.TENSOR_DIMENSIONS), tensor.get(A.TENSOR_STRIDES)
            order = sorted(range(len(dims)), key=lambda i: -strides[i])
            steps = list(itertools.accumulate([dims[i] for i in order[::-1]], lambda a, b: a * b, initial=1))
            if any(dims[i] > 1 and strides[i] != steps[k] for k, i in enumerate(order[::-1])):
                return NOT_SUPPORTED
        return 0

    def _finalise_EXECUTION_PLAN(self, item):
        return 0 if self.engine_of(item)["builds"] else NOT_SUPPORTED

    def _finalise_ENGINE(self, item):
        item.engine = next((e for e in self.engines if e["index"] == item.get(A.ENGINE_GLOBAL_INDEX)[0]), None)
        return 0 if item.engine else NOT_SUPPORTED

    def _finalise_ENGINECFG(self, item):
        item.engine = self.items[item.get(A.ENGINECFG_ENGINE)[0]].engine
        choices = [self.items[p] for p in item.attributes.get(A.ENGINECFG_KNOB_CHOICES, (None, []))[1]]
        knobs = {c.get(A.KNOB_CHOICE_KNOB_TYPE)[0]: c.get(A.KNOB_CHOICE_KNOB_VALUE)[0] for c in choices}
        item.engine = {**item.engine, "knobs": knobs}
        item.graph = self.items[self.items[item.get(A.ENGINECFG_ENGINE)[0]].get(A.ENGINE_OPERATION_GRAPH)[0]]

    def engine_of(self, plan):
        return self.items[plan.get(A.EXECUTION_PLAN_ENGINE_CONFIG)[0]].engine

    def cudnnBackendGetAttribute(self, pointer, name, element_type, most, count, array):
        item, name = self.items[pointer], Attr(name)
        if not item.final:
            return BAD_PARAM
        values = self._answer(item, name)
        ctypes.c_int64.from_address(count).value = len(values)
        if element_type == T.BACKEND_DESCRIPTOR:
            for i, made in enumerate(values[:most]):
                target = ctypes.c_uint64.from_address(array + 8 * i).value
                assert self.items[target].kind == made.kind and not self.items[target].final
                self.items[target] = made
        else:
            out = (C_OF[Type(element_type)] * most).from_address(array)
            out[: len(values)] = values[:most]

    def _answer(self, item, name):
        if name == A.ENGINEHEUR_RESULTS:
            graph = self.items[item.get(A.ENGINEHEUR_OPERATION_GRAPH)[0]]
            mode = self.operation(graph)[0].get(A.CONVOLUTION_CONV_MODE)[0]
            offered = [e for e in self.engines if item.get(A.ENGINEHEUR_MODE)[0] in e["modes"]
                       and not (e["correlation_only"] and mode == ConvolutionMode.CONVOLUTION)]  # fmt: skip
            return [made(K.ENGINECFG, engine=e, graph=graph) for e in offered]
        if name == A.ENGINECFG_ENGINE:
            return [made(K.ENGINE, engine=item.engine)]
        if name == A.ENGINECFG_KNOB_CHOICES:
            return [made(K.KNOB_CHOICE, knob=k, value=v) for k, v in item.engine["knobs"].items()]
        if name == A.EXECUTION_PLAN_WORKSPACE_SIZE:
            return [self.engine_of(item)["workspace"]]
        return {
            A.ENGINE_GLOBAL_INDEX: lambda: [item.engine["index"]],
            A.ENGINE_NUMERICAL_NOTE: lambda: list(item.engine["notes"]),
            A.ENGINE_BEHAVIOR_NOTE: lambda: list(item.engine["behavior"]),
            A.KNOB_CHOICE_KNOB_TYPE: lambda: [item.knob],
            A.KNOB_CHOICE_KNOB_VALUE: lambda: [item.value],
        }[name]()

    def operation(self, graph):
        """(convolution, x, w, y, alpha, beta, kind) of a graph of one operation."""
        op = self.items[graph.get(A.OPERATIONGRAPH_OPS)[0]]
        prefix, *ends = OPERATIONS[op.kind]
        parts = [self.items[op.get(A[prefix + end])[0]] for end in ("CONV_DESC", *ends)]
        return (*parts, op.attributes[A[prefix + "ALPHA"]], op.attributes[A[prefix + "BETA"]], op.kind)

    def cudnnBackendExecute(self, handle, plan, pack):
        plan, pack = self.items[plan], self.items[pack]
        if not plan.final or not pack.final or plan.get(A.EXECUTION_PLAN_HANDLE)[0] != handle:
            return BAD_PARAM
        uids, pointers = pack.get(A.VARIANT_PACK_UNIQUE_IDS), pack.get(A.VARIANT_PACK_DATA_POINTERS)
        at = dict(zip(uids, pointers, strict=True))
        workspace = pack.get(A.VARIANT_PACK_WORKSPACE)[0]
        needed = self.engine_of(plan)["workspace"]
        if needed:  # an engine owns its workspace: whatever lies there is lost
            ctypes.memset(workspace, 0x55, needed)
        conv, x, w, y, (_, alpha), (_, beta), kind = self.operation(
            self.items[plan.get(A.EXECUTION_PLAN_ENGINE_CONFIG)[0]].graph
        )
        arrays = [memory(t, at[t.get(A.TENSOR_UNIQUE_ID)[0]]) for t in (x, w, y)]
        convolve(kind, conv, *arrays, alpha[0], beta[0])

    # ---- softmax -------------------------------------------------------------------------------------------------

    def cudnnCreateTensorDescriptor(self, out):
        return self.cudnnBackendCreateDescriptor(K.TENSOR, out)

    def cudnnDestroyTensorDescriptor(self, pointer):
        return self.cudnnBackendDestroyDescriptor(pointer)

    def cudnnSetTensorNdDescriptor(self, pointer, dtype, rank, shape, strides):
        shape, strides = ((ctypes.c_int * rank).from_address(a)[:] for a in (shape, strides))
        self.items[pointer].four = (NUMPY[DataType(dtype)], shape, strides)
        self.tensors.append((dtype, shape, strides))

    def cudnnSoftmaxForward(self, handle, algo, mode, alpha, x_desc, x, beta, y_desc, y):
        x, y = self._four(x_desc, x), self._four(y_desc, y)
        axes = (1, 2, 3) if mode == 0 else (1,)
        shifted = x.astype(np.float64) - (x.max(axes, keepdims=True) if algo else 0)
        total = np.exp(shifted).sum(axes, keepdims=True)
        result = shifted - np.log(total) if algo == 2 else np.exp(shifted) / total
        self._scale(y, result, alpha, beta)

    def cudnnSoftmaxBackward(self, handle, algo, mode, alpha, y_desc, y, dy_desc, dy, beta, dx_desc, dx):
        y, dy, dx = self._four(y_desc, y), self._four(dy_desc, dy), self._four(dx_desc, dx)
        axes = (1, 2, 3) if mode == 0 else (1,)
        y64, dy64 = y.astype(np.float64), dy.astype(np.float64)
        if algo == 2:
            result = dy64 - np.exp(y64) * dy64.sum(axes, keepdims=True)
        else:
            result = y64 * (dy64 - (dy64 * y64).sum(axes, keepdims=True))
        self._scale(dx, result, alpha, beta)

    def _four(self, descriptor, address):
        return view(address, *self.items[descriptor].four)

    def _scale(self, out, result, alpha, beta):
        scalar = ctypes.c_double if out.dtype == np.float64 else ctypes.c_float
        alpha, beta = scalar.from_address(alpha).value, scalar.from_address(beta).value
        out[...] = alpha * result + (beta * out if beta else 0)


def made(kind, **fields):
    """A descriptor that cuDNN itself fills, already finalised."""
    item = Item(kind)
    item.final = True
    item.__dict__.update(fields)
    return item


def view(address, dtype, shape, strides):
    """The array of host memory at ``address``, strides in elements and positive."""
    size = np.dtype(dtype).itemsize
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    flat = np.frombuffer((ctypes.c_char * (extent * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * size for s in strides], writeable=True)


def memory(tensor, address):
    assert address % tensor.get(A.TENSOR_BYTE_ALIGNMENT)[0] == 0, "an address less aligned than promised"
    dtype = NUMPY[DataType(tensor.get(A.TENSOR_DATA_TYPE)[0])]
    return view(address, dtype, tensor.get(A.TENSOR_DIMENSIONS), tensor.get(A.TENSOR_STRIDES))


def convolve(kind, conv, x, w, y, alpha, beta):
    """The three directions, tap by tap in float64, groups read off the channels."""
    pads, strides = conv.get(A.CONVOLUTION_PRE_PADDINGS), conv.get(A.CONVOLUTION_FILTER_STRIDES)
    dilations = conv.get(A.CONVOLUTION_DILATIONS)
    turned = conv.get(A.CONVOLUTION_CONV_MODE)[0] == ConvolutionMode.CONVOLUTION
    groups, taps, outs = x.shape[1] // w.shape[1], w.shape[2:], y.shape[2:]
    assert w.shape[0] == y.shape[1] and x.shape[0] == y.shape[0]
    wide = np.zeros((*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], pads, strict=True))))
    inside = (slice(None), slice(None), *(slice(p, p + n) for n, p in zip(x.shape[2:], pads, strict=True)))
    forward, data = kind == K.OPERATION_CONVOLUTION_FORWARD, kind == K.OPERATION_CONVOLUTION_BACKWARD_DATA
    if not data:
        wide[inside] = x
    result = np.zeros(y.shape if forward else wide.shape if data else w.shape)
    c, k = w.shape[1], w.shape[0] // groups
    for tap in np.ndindex(*taps):
        cells = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in zip(tap, dilations, strides, outs, strict=True)
        )
        weight = tuple(n - 1 - t for n, t in zip(taps, tap, strict=True)) if turned else tap
        for g in range(groups):
            xs = (slice(None), slice(g * c, (g + 1) * c), *cells)
            ks = slice(g * k, (g + 1) * k)
            if forward:
                result[:, ks] += np.einsum("nc...,kc->nk...", wide[xs], w[(ks, slice(None), *weight)].astype(float))
            elif data:
                result[xs] += np.einsum("nk...,kc->nc...", y[:, ks].astype(float), w[(ks, slice(None), *weight)])
            else:
                flat = (y.shape[0], -1, int(np.prod(outs)))
                result[(ks, slice(None), *weight)] += np.einsum(
                    "nkp,ncp->kc", y[:, ks].astype(float).reshape(flat), wide[xs].reshape(flat)
                )
    out = y if forward else x if data else w
    result = result[inside] if data else result
    out[...] = alpha * result + (beta * out if beta else 0)
