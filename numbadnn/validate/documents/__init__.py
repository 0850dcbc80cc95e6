"""Reports as documents: what ``--json`` writes, and what ``--html``, ``--junit`` and ``--csv`` make of it.

``document`` puts a document together and reads one, ``columns`` says what each column means, ``flat`` makes rows of any kind of
document alike, ``words`` says how it went, ``plots`` draws. The page is ``page.html.j2`` with ``page.css`` and ``page.js``.
``docs/reference/report.schema.json`` is the schema of all kinds.
"""
