"""From a recipe and a data set to a finished run."""
