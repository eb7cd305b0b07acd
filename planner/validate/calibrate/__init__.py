"""`planner calibrate`: micro-benchmarks of this machine, and the efficiency profile they make.

measurement_points.py says what to measure, worker.py (torch, started by torchrun) measures it,
run.py starts the workers and writes the profile.  The kernels are those that the emitted training
script runs.
"""
