"""Every implementation against the float64 reference: ``numbadnn validate``, and the pieces that tests and benches share.

``compare`` bounds errors by the arithmetic declared, ``data`` lays out arrays as a problem says, ``oracle`` knows what comes
out, ``execute`` runs one implementation with guarded memory, ``check`` judges it, ``run`` is the command, ``report`` shows it,
``documents`` writes it down, and ``html``, ``junit`` and ``csv`` make other forms of that.
"""
