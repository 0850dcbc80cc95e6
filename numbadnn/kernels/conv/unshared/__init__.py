"""Unshared convolutions have a filter for each output position. ``unshared.py`` lists the kernels.

The first of a direction that takes a problem is the fastest known for it:

    forward   numba.unshared_places_stream   16-bit images, many positions, on tensor cores (sm_90)
              numba.unshared_halves          16-bit images, one position a block, on tensor cores
              numba.unshared_twofold         9 to 32 float32 images, as two float16 (sm_90)
              numba.unshared_box             few images
    weights   numba.unshared_weights_many    many images
              numba.unshared_weights_halves  16-bit images, on tensor cores
              numba.unshared_box             few images
    inputs    numba.unshared_inputs_twofold  many float32 images, as two float16 (sm_90)
              numba.unshared_inputs_rows     small filters (sm_90)
    all       numba.unshared                 whatever is left: ``plain.py``, of inputs ``inputs/boxes.py``

``parts`` is what the directions share.
"""
