"""Where Numba keeps compiled code between runs: the user's cache folder, one folder per version.

Numba looks at the file that holds a function, not at those it calls into; the folder's name is a
hash of all files that are compiled, so that none is ever stale. `NUMBA_CACHE_DIR` takes precedence.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

import numba

_COMPILED = ("cpu_ir.py", "cpu_kernels.py", "panels.py", "linear.py")


def cache_folder() -> Path:
    """The folder for this version of the kernels; made if need be, in the system's temporary
    folder where the user's own cannot be written."""
    digest = sha256()
    for name in _COMPILED:
        digest.update((Path(__file__).parent / name).read_bytes())
    user_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = user_folder / "forespeak" / "numba" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"forespeak-numba-{os.getuid()}" / folder.name
        folder.mkdir(parents=True, exist_ok=True)
    return folder


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba.config.CACHE_DIR = str(cache_folder())  # type: ignore[attr-defined]
