"""Every public name stands in the reference: one that does not is a warning, which ends the build."""

import importlib
from typing import Any

#: whose ``__all__`` must be documented
MODULES = tuple(f"numbadnn{part}" for part in ("", ".cupyx_cudnn", ".dask", ".jax", ".pieces", ".torch", ".torch.nn"))


def missing(documented: set[str], modules: tuple[str, ...] = MODULES) -> list[str]:
    """Public names without an entry, under their module or under the one that defines them."""
    found = []
    for module in map(importlib.import_module, modules):
        for name in module.__all__:
            places = {
                f"{module.__name__}.{name}",
                f"{getattr(getattr(module, name), '__module__', '')}.{name}",
            }
            if not places & documented:
                found.append(f"{module.__name__}.{name}")
    return found


def check(app: Any, env: Any) -> None:
    from sphinx.util import logging

    for name in missing(set(env.domaindata["py"]["objects"])):
        logging.getLogger(__name__).warning("%s is public and in no page of docs/reference", name)


def setup(app: Any) -> dict[str, bool]:
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
