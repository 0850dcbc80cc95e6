"""Convolutions by cuDNN's graph API: the forms that a problem is asked in, the plan of each, what it takes and how long."""
