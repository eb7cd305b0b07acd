"""`planner calibrate`: micro-benchmarks of this machine, and the efficiency profile from them.

measurement_points.py lists the measurements, worker.py (torch, started by torchrun) makes them, and
run.py starts the workers and writes the profile.  The kernels are those of the emitted training
script.
"""
