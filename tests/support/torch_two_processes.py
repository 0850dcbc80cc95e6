"""One of two processes that train a network with DistributedDataParallel, each on half of the images (gloo)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_networks import Network, gradients, images


def main(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    network = Network().eval()
    both = DistributedDataParallel(network)
    both(images(4)[2 * rank : 2 * rank + 2]).square().sum().backward()
    whole = Network().eval()
    (whole(images(4)).square().sum() / 2).backward()  # the mean of both processes
    for name, found in gradients(network).items():
        torch.testing.assert_close(found, gradients(whole)[name], rtol=1e-4, atol=1e-5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
