"""Random problems on every implementation against the reference, several times for their bits; and random garbage.

    python -m numbadnn.validate.fuzz --backend numba|cudnn|cpu|auto [--seconds N] [--count N] [--seed S] [--jobs N] [--json FILE]
    python -m numbadnn.validate.fuzz --backend numba --case 'LINE' --seed S     one problem again, as a finding shows it
    python -m numbadnn.validate.fuzz [--seconds N] [--seed S]                   garbage, and small problems, by Hypothesis

``draws`` makes a call of any function, by ``picks``: seeds or Hypothesis. ``trials`` runs its problem on each implementation in
one of the ``places``, where runs differ in what must not matter: addresses, streams, threads, what a workspace holds. ``rounds``
does many of them in several processes and counts. ``garbage`` spoils arguments.
"""
