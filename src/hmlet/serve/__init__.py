"""The HTTP service over finished runs, and the explorer page.

`app` answers, `guard` refuses, `observe` watches, `state` holds the run that is served, `server` owns the process.
"""

from hmlet.serve.server import serve
from hmlet.serve.settings import Limits, Settings

__all__ = ["Limits", "Settings", "serve"]
