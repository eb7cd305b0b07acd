"""Predicted against published: reads measured runs, predicts each, and scores the difference.

Data flows one way: runs (the file) -> cases (specs and a plan, with every assumption) ->
predictions -> scores -> screen, page or JSON.
"""
