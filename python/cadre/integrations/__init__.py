"""Callbacks with which trainers of other libraries become groups of a run."""
