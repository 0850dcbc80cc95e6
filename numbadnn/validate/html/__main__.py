"""``python -m numbadnn.validate.html REPORT.json PAGE.html``."""

import sys

from numbadnn.validate.documents.document import read
from numbadnn.validate.html import write

if len(sys.argv) != 3:
    sys.exit("usage: python -m numbadnn.validate.html REPORT.json PAGE.html")
try:
    write(sys.argv[2], read(sys.argv[1]))
except (ValueError, OSError, ImportError) as error:
    sys.exit(f"numbadnn.validate.html: {error}")
