"""What runs on machines: plans, tunings, sweeps, jobs, and what is kept of them."""
