"""causal_conv1d: ``line.py`` lists the kernels in the order in which they are tried; ``plain.py`` takes all lines."""
