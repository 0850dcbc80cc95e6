"""causal_conv1d. ``line.py`` lists the kernels in the order of choice; ``plain.py`` takes every problem."""
