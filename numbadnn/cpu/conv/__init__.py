"""Convolutions on the CPU: ``conv.py`` registers.

Where several take a problem, their estimates in microseconds (``rank``) decide:

    cpu.im2col  Numba kernels that never write the matrix (``gather.py``, ``filters.py``, ``last/``, ``thin/``, ``unshared/``)
    cpu.corrmm  a matrix, and a product by BLAS
    cpu.fft     large filters, by SciPy's Fourier transforms

Plans are integers alone and import no Numba; the modules of kernels do.
"""
