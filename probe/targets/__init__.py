"""Targets: what a call can be made to."""
