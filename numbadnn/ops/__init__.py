"""The public functions, one module a family: they check arguments and ask ``dispatch``."""
