"""What PyInstaller asks of a package: where its hooks are (the entry point ``pyinstaller40`` in pyproject.toml names this)."""

from __future__ import annotations

import os


def get_hook_dirs() -> list[str]:
    """The folder of ``hook-numbadnn.py``."""
    return [os.path.dirname(__file__)]
