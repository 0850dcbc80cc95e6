"""For PyInstaller: backends, kernels and array libraries' files are imported by name, which its search does not see."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

# all of them: which are needed is known when arrays come
hiddenimports = [
    *collect_submodules("numbadnn", filter=lambda name: "__pyinstaller" not in name),
    "ml_dtypes",
    "nvtx",
    "numba.np.ufunc.omppool",
    "scipy.linalg.cython_blas",
]
datas = collect_data_files("numbadnn", includes=["*.json", "*.j2", "*.css", "*.js"])
# with the sources: what is kept of a kernel is found by them
module_collection_mode = {"numbadnn": "pyz+py"}
