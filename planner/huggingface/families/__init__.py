"""Readers of config.json files: a function per family, with the defaults of its own class."""
