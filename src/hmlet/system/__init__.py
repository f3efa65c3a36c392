"""Files, locks, progress, stopping, and the processes that train together: what every package may use."""
