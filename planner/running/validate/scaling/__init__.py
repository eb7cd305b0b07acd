"""Scales a plan down to this machine and keeps its structure."""
