"""How figures of the examples look; sphinx-gallery calls ``reset`` before and after each."""

from typing import Any

import matplotlib as mpl


def reset(gallery_conf: dict[str, Any], fname: str) -> None:
    mpl.rcParams.update(
        {
            "figure.figsize": (8, 3.4),
            "figure.dpi": 110,
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "image.cmap": "gray",
        }
    )
