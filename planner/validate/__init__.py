"""Plans checked with real torch: a short run, a dry run at full scale, and micro-benchmarks.

Nearly all code that imports torch is here, and only in modules that a worker process imports or
that are imported inside a function: `planner --help` and the service start without it.
"""
