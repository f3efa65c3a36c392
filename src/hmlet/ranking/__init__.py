"""Factors to top-k lists, lists to metrics, metrics to verdicts."""
