"""The HTTP service over finished runs, and the explorer page.

`app` answers, `guard` refuses, `observe` watches, `state` holds the run that is served, `server` owns the process.
Nothing is imported here, so that settings can be checked before the heavy libraries are loaded.
"""
