"""The version of the product; every answer carries it."""

__version__ = "0.2.0"
