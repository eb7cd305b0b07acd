"""Families of config.json files: tables of their keys, read forwards and written backwards."""
