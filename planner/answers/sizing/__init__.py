"""Cluster sizing: days, cost and energy for each kind and number of accelerators."""
