"""At least 200 layers of real models for bench_torch.py: what a batch-invariant convolution is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

DTYPES = ("float32", "float16", "bfloat16")


class Layer(NamedTuple):
    """One convolution of a model; ``sample`` is an input without the batch, ``weight`` as torch.nn has it."""

    model: str
    transposed: bool
    sample: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int
    padding: int
    groups: int = 1
    output_padding: int = 0

    def __str__(self) -> str:
        kind = f"conv{'_transpose' if self.transposed else ''}{len(self.sample) - 1}d"
        sizes = f"{'x'.join(map(str, self.sample))} {'x'.join(map(str, self.weight))}"
        more = f" groups={self.groups}" if self.groups > 1 else ""
        return f"{self.model}: {kind} {sizes} stride={self.stride} padding={self.padding}{more}"


def _plain(model: str, sample: tuple[int, ...], filters: int, kernel: int, stride: int = 1, groups: int = 1) -> Layer:
    weight = (filters, sample[0] // groups, *(kernel,) * (len(sample) - 1))
    return Layer(model, False, sample, weight, stride, 0 if stride == kernel else kernel // 2, groups)


def _up(model: str, sample: tuple[int, ...], filters: int, kernel: int = 4, stride: int = 2) -> Layer:
    weight = (sample[0], filters, *(kernel,) * (len(sample) - 1))
    return Layer(model, True, sample, weight, stride, (kernel - stride) // 2)


def speech_and_text() -> Iterator[Layer]:
    """1-D: Whisper's and wav2vec's stems, Conformer's pointwise and depthwise, GPT-2's 1x1, HiFi-GAN."""
    for width, mels in ((384, 80), (512, 80), (768, 80), (1024, 80), (1280, 128)):
        yield _plain("Whisper", (mels, 1500), width, 3)
        yield _plain("Whisper", (width, 1500), width, 3, 2)
    for kernel, stride in ((3, 2), (2, 2)):
        yield Layer("wav2vec 2", False, (512, 800), (512, 512, kernel), stride, 0)
    for width in (144, 256, 512):
        for length in (100, 400):
            yield _plain("Conformer", (width, length), 2 * width, 1)
            yield _plain("Conformer", (width, length), width, 31, 1, width)
            yield _plain("Conformer", (width, length), 4 * width, 1)
    for width in (768, 1024, 1280, 1600):
        for length in (64, 256):
            yield _plain("1x1 of text", (width, length), width, 1)
            yield _plain("1x1 of text", (width, length), 4 * width, 1)
            yield _plain("1x1 of text", (4 * width, length), width, 1)
    for channels, length, kernel, stride in ((512, 64, 16, 8), (256, 512, 16, 8), (128, 2048, 4, 2), (64, 4096, 4, 2)):
        yield _up("HiFi-GAN", (channels, length), channels // 2, kernel, stride)
        for taps in (3, 7, 11):
            yield _plain("HiFi-GAN", (channels // 2, length * stride), channels // 2, taps)


def images() -> Iterator[Layer]:
    """2-D: patch embeddings, ResNet-50, ConvNeXt, U-Nets, VAEs."""
    for width in (192, 384, 768, 1024, 1280):
        for patch in (14, 16, 32):
            yield _plain("ViT patches", (3, 224 // patch * patch, 224 // patch * patch), width, patch, patch)
    yield _plain("ResNet-50", (3, 224, 224), 64, 7, 2)
    for inner, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield _plain("ResNet-50", (4 * inner, size, size), inner, 1)
        yield _plain("ResNet-50", (inner, size, size), inner, 3)
        yield _plain("ResNet-50", (inner, size, size), 4 * inner, 1)
        if size > 7:
            yield _plain("ResNet-50", (2 * inner, size, size), 2 * inner, 3, 2)
            yield _plain("ResNet-50", (4 * inner, size, size), 8 * inner, 1, 2)
    for widths in ((96, 192, 384, 768), (128, 256, 512, 1024)):
        yield _plain("ConvNeXt", (3, 224, 224), widths[0], 4, 4)
        for width, size in zip(widths, (56, 28, 14, 7), strict=True):
            yield _plain("ConvNeXt", (width, size, size), width, 7, 1, width)
            if size > 7:
                yield _plain("ConvNeXt", (width, size, size), 2 * width, 2, 2)
    for base in (32, 64):
        for level in range(5):
            width, size = base << level, 128 >> level
            yield _plain("U-Net", (width, size, size), width, 3)
            yield _plain("U-Net", (2 * width, size, size), width, 3)
            yield _up("U-Net", (2 * width, size // 2, size // 2), width, 2)
    for width, size in ((128, 256), (128, 128), (256, 64), (512, 32)):
        yield _plain("VAE encoder", (width, size, size), width, 3)
        yield _plain("VAE encoder", (width, size, size), width, 3, 2)
        yield _plain("VAE encoder", (width, size, size), 2 * width, 1)
        yield _up("VAE decoder", (width, size // 2, size // 2), width // 2)
        yield _plain("VAE decoder", (width, size, size), width // 2, 3)
    yield _plain("VAE decoder", (4, 32, 32), 512, 3)
    yield _plain("VAE decoder", (128, 256, 256), 3, 3)


def volumes() -> Iterator[Layer]:
    """3-D: VAEs of video, U-Nets of scans."""
    for width, size in ((32, 32), (64, 16), (128, 8), (256, 8)):
        for kernel, stride in ((3, 1), (3, 2), (1, 1)):
            yield _plain("VAE of video", (width, 8, size, size), width, kernel, stride)
        yield _up("VAE of video", (width, 4, size // 2, size // 2), width // 2)
    for level in range(4):
        width, size = 16 << level, 48 >> level
        yield _plain("3-D U-Net", (width, size, size, size), width, 3)
        yield _plain("3-D U-Net", (2 * width, size, size, size), width, 3)
        yield _up("3-D U-Net", (2 * width, size // 2, size // 2, size // 2), width, 2)


def layers() -> list[Layer]:
    return [*speech_and_text(), *images(), *volumes()]
