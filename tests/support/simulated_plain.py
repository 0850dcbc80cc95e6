"""All kernels' modules beside Numba alone: as where no CUDA package is installed.

numba-cuda, where it is installed, takes the place of Numba's own ``numba.cuda`` by a finder of modules; without it Numba's
own simulator runs the kernels, which knows fewer names.
"""

import importlib
import pkgutil
import sys


def main() -> None:
    for name in ("_numba_cuda_redirector", "numba_cuda"):
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NumbaCudaFinder"]
    for module in pkgutil.walk_packages(importlib.import_module("numbadnn.kernels").__path__, "numbadnn.kernels."):
        if not module.name.startswith("numbadnn.kernels.build.compile"):  # these make numba-cuda's compiler faster
            importlib.import_module(module.name)
            print(f"ok {module.name}")
    assert "numba_cuda" not in sys.modules["numba.cuda"].__file__, "numba-cuda has taken the place of numba.cuda"


if __name__ == "__main__":
    main()
