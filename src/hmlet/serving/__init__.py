"""The HTTP service over finished runs, and the explorer page.

`routes` answers, `guard` refuses, `observe` watches, `loaded_run` is what is served, `server` owns the process.
Nothing is imported here, so that settings can be checked before the heavy libraries are loaded.
"""
