"""A ResNet-50 pass by its plan file: recorded in one process, replayed in another, bit for bit.

Every distinct convolution of ResNet-50, three directions, float16 channels-last and float32 NCHW. ``record`` runs them with
``plan_file`` set, which writes down what ran, and the SHA-256 of every result beside it; ``replay`` runs them with
``plan_strict``, so that only what the file says may run, and compares. Without a word it does both, each in a fresh process.
``python bench/resnet50_plan.py [record | replay] [--folder bench/results]``; exit status 1 where a result has other bits, 3
without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numbadnn
from numbadnn.cases import networks
from numbadnn.gpu import devices
from numbadnn.kept import machine
from numbadnn.kernels.build.cache import source_hash

NETWORK, FORMAT = "resnet50", "numbadnn-hashes-1"
SAME, OTHER_BITS, CANNOT_RUN = 0, 1, 3


def files(folder: Path) -> tuple[Path, Path]:
    """The plan file and the hashes."""
    return folder / f"{NETWORK}_nvidia_h200.plan.json", folder / f"{NETWORK}_nvidia_h200.sha256.json"


def results() -> Iterator[tuple[str, str, str]]:
    """(case, SHA-256 of its result, what ran) of the whole pass; operands follow from the case's number alone."""
    import torch

    for dtype, layout in networks.SETTINGS:
        form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        for number, layer in enumerate(networks.layers(NETWORK)):
            for direction in networks.DIRECTIONS:
                problem = networks.problem(layer, direction, dtype, layout)
                torch.manual_seed(number)
                operands = [
                    torch.randn(spec.shape, device="cuda", dtype=getattr(torch, dtype)).to(memory_format=form)
                    for spec in problem.inputs
                ]
                result = getattr(numbadnn, problem.op)(*operands, **problem.keywords)
                ran = numbadnn.last_call()
                assert ran is not None
                bits = result.contiguous().flatten().view(torch.uint8).cpu().numpy()
                name = f"{layer.name}/{direction}/{dtype}-{layout}"
                yield name, hashlib.sha256(bits.data).hexdigest(), f"{ran.impl}, {ran.decided_by}"


def record(folder: Path) -> int:
    """Run the pass with a new plan file, and keep the hashes."""
    plan, hashes = files(folder)
    plan.unlink(missing_ok=True)
    with numbadnn.using(plan_file=str(plan)):
        found = {name: bits for name, bits, _ in results()}
    facts = {
        "format": FORMAT,
        "device": machine.device_name(0),
        "versions": machine.versions(0),
        "kernels": source_hash(),
    }
    hashes.write_text(json.dumps({**facts, "sha256": found}, indent=1) + "\n")
    print(f"recorded {len(json.loads(plan.read_text())['plans'])} plans in {plan} and {len(found)} hashes in {hashes}")
    return SAME


def replay(folder: Path) -> int:
    """Run the pass by the plan file alone, and hold the hashes together."""
    plan, hashes = files(folder)
    known: dict[str, Any] = json.loads(hashes.read_text())["sha256"]
    wrong, count = [], 0
    with numbadnn.using(plan_file=str(plan), plan_strict=True):
        for name, bits, ran in results():
            count += 1
            if bits != known.get(name) or "plan file" not in ran:
                wrong.append(name)
                print(f"{name}: other bits than recorded, by {ran}")
    print(f"replayed {count} results by {plan.name}: {count - len(wrong)} have the recorded SHA-256")
    return OTHER_BITS if wrong or count != len(known) else SAME


def main() -> int:
    parser = argparse.ArgumentParser(description="A ResNet-50 pass by its plan file, recorded and replayed.")
    parser.add_argument("what", nargs="?", choices=("record", "replay"), help="default: both, in fresh processes")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if not devices.gpus():
        print("resnet50_plan.py needs an NVIDIA GPU: the CUDA driver finds none here", file=sys.stderr)
        return CANNOT_RUN
    if options.what:
        return record(options.folder) if options.what == "record" else replay(options.folder)
    for what in ("record", "replay"):
        status = subprocess.run(
            [sys.executable, __file__, what, "--folder", str(options.folder)], check=False
        ).returncode
        if status:
            return status
    return SAME


if __name__ == "__main__":
    sys.exit(main())
