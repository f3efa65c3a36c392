"""Files, locks, progress, stopping, and the processes that train together: what every room may stand on."""
