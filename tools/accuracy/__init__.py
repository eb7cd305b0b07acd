"""Fits what published runs teach, and judges the planner's advice; needs torch for one fit."""
