"""Validation of plans with real torch: short runs, dry runs at full scale, micro-benchmarks.

Nearly all code that imports torch is here, in modules that only worker processes or function bodies
import, so `planner --help` and the service start without torch.
"""
