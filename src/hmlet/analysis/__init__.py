"""Linear, or non-linear? What the gates of a finished run chose, and what explains their choices."""
