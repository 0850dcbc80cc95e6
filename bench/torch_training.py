"""A training step of ResNet-18 by a converted model beside PyTorch's: as it is called, and captured in a CUDA graph.

``bench_torch.py --parts resnet`` prints what is here. In a CUDA graph the host has nothing to do, so its times are the GPU's.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch_networks import resnet18

import numbadnn
import numbadnn.torch as nt


class Setting(NamedTuple):
    name: str
    autocast: bool
    precision: Literal["ieee", "tf32"]


SETTINGS = (
    Setting("float32", False, "ieee"),
    Setting("TF32", False, "tf32"),
    Setting("bfloat16 autocast", True, "ieee"),
)
BATCH, SIZE = 32, 224


def under(setting: Setting) -> None:
    """PyTorch's own options: deterministic, as numbadnn is by default."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = setting.precision == "tf32"


def step(model: Any, setting: Setting, left_out: str = "") -> Callable[[], Any]:
    """Forwards, backwards and the optimizer, for the same images each time."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, SIZE, SIZE, device="cuda")
    y = torch.randint(10, (BATCH,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def run() -> None:
        options = numbadnn.using(fp32_precision=setting.precision, exclude=left_out or None)
        with options, torch.autocast("cuda", torch.bfloat16, enabled=setting.autocast):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def models() -> dict[str, Any]:
    torch.manual_seed(0)
    theirs = resnet18().cuda()
    ours = copy.deepcopy(theirs)
    nt.convert(ours)
    return {"ours": ours, "theirs": theirs}


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


# ---- kernels are compiled by many processes at first ---------------------------------------------------------------------


class Job(NamedTuple):
    """A layer by name, with the shape of its input."""

    layer: str
    shape: tuple[int, ...]
    setting: Setting


@functools.cache
def network() -> Any:
    model = resnet18()
    nt.convert(model)
    return model


def jobs() -> list[Job]:
    """Each kind of layer on each shape, once a setting; convolutions, which take longest, first."""
    model = resnet18().to("meta")
    found: dict[Any, Job] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(layer: Any, args: Any) -> None:
            found.setdefault((repr(layer), args[0].shape), Job(name, args[0].shape, SETTINGS[0]))

        return hook

    kinds = (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.MaxPool2d)
    for name, layer in model.named_modules():
        if isinstance(layer, kinds):
            layer.register_forward_pre_hook(keep(name))
    model(torch.empty(BATCH, 3, SIZE, SIZE, device="meta"))
    convolutions_first = sorted(
        found.values(), key=lambda job: not isinstance(network().get_submodule(job.layer), kinds[0])
    )
    return [job._replace(setting=setting) for job in convolutions_first for setting in SETTINGS]


def compile_one(job: Job) -> None:
    """In a process of its own: the layer forwards and backwards, so that its kernels are kept on disk."""
    layer, first = copy.deepcopy(network().get_submodule(job.layer)).cuda(), job.shape[1] == 3
    lower = job.setting.autocast and not first
    x = torch.randn(job.shape, device="cuda", dtype=torch.bfloat16 if lower else torch.float32)
    x.requires_grad_(not first)
    with numbadnn.using(fp32_precision=job.setting.precision):
        with torch.autocast("cuda", torch.bfloat16, enabled=job.setting.autocast):
            y = layer(x)
        y.sum().backward()
    torch.cuda.synchronize()


def compile_all(run: Callable[[Callable[[Job], None], list[Job]], Iterable[Any]]) -> None:
    """``run``: the ``map`` of a pool of processes."""
    for _ in run(compile_one, jobs()):
        pass
