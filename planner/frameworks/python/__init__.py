"""Python read without running it: what expressions and functions of a configuration stand for."""
