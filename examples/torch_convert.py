"""Let numbadnn compute a PyTorch model that exists: convert it, see what computes each layer, check each against float64.

Then the same model, unchanged, under ``batch_invariant``: a sample gives the same bits alone and in a batch.

    pip install '.[torch]'
    python examples/torch_convert.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

import numbadnn.torch as nt


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2),
        nn.ConvTranspose2d(32, 8, 2, stride=2), nn.Flatten(), nn.Linear(8 * 8 * 8, 10), nn.LogSoftmax(1),
    ).eval()  # fmt: skip


def run(report: Callable[[str], None] = print) -> tuple[float, bool, bool]:
    """The largest difference of a converted model, whether each layer is within its bound, and whether bits are the same."""
    theirs, images = model(), torch.rand(5, 3, 16, 16)
    ours = copy.deepcopy(theirs)

    conversion = nt.convert(ours)
    report(f"swapped: {', '.join(conversion.swapped)}")
    with torch.no_grad():
        difference = (ours(images) - theirs(images)).abs().max().item()
    report(f"largest difference of the results: {difference:.1e}")

    for name, explanation in nt.explain(theirs, images).items():
        report(f"layer {name}: {explanation.chosen}")
    found = nt.check(theirs, images, backends="cpu")
    report(found.table())

    with torch.no_grad(), nt.batch_invariant() as counts:
        features = theirs[:8]
        same = torch.equal(features(images)[:1], features(images[:1]))
    report(f"the same bits alone and in a batch: {same}; convolutions: {counts}")
    return difference, found.ok, same


if __name__ == "__main__":
    run()
