"""Train a variational autoencoder of handwritten digits in PyTorch: convolutions down, transposed ones up, by numbadnn.torch.

On scikit-learn's 1797 digits of 8 x 8, in some seconds on a CPU. Images that it never saw are drawn again with an error (sum of
squares an image) of less than half of what the mean image gives.

    pip install '.[torch]' scikit-learn
    python examples/torch_vae.py [--epochs 10] [--device cpu]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

import numbadnn.torch as nt

LATENT, BATCH, RATE = 8, 64, 2e-3


class Autoencoder(nn.Module):
    """Images (N, 1, 8, 8) to a mean and a log-variance of LATENT numbers each, and from such numbers to images."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nt.nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
            nt.nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 2 * 2, 2 * LATENT),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 32 * 2 * 2), nn.Unflatten(1, (32, 2, 2)), nn.ReLU(),
            nt.nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.ReLU(),
            nt.nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, 1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (log_variance / 2).exp()), mean, log_variance


def loss_of(drawn: Tensor, images: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """The negative evidence lower bound, an image: squared error, and how far the code is from a standard normal one."""
    error = (drawn - images).square().sum() * 10
    apart = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (error + apart) / len(images)


def load(device: str) -> tuple[Tensor, Tensor]:
    """Images to train with, and to test."""
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().images / 16, dtype=torch.float32, device=device)[:, None]
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    return images[:1500], images[1500:]


def train(epochs: int = 10, device: str = "cpu", report: Callable[[str], None] = print) -> float:
    """The error of images that were not trained with, as a share of the error of the mean image."""
    torch.manual_seed(0)
    images, unseen = load(device)
    model = Autoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    plain = (unseen - images.mean(0)).square().sum().item()
    share = 1.0
    for epoch in range(epochs):
        model.train()
        for batch in images[torch.randperm(len(images))].split(BATCH):
            optimizer.zero_grad()
            drawn, mean, log_variance = model(batch)
            loss_of(drawn, batch, mean, log_variance).backward()
            optimizer.step()
        with torch.no_grad():
            share = (model.eval()(unseen)[0] - unseen).square().sum().item() / plain
        report(f"epoch {epoch + 1}: error {share:.3f} of the mean image's")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    train(arguments.epochs, arguments.device)


if __name__ == "__main__":
    main()
