"""Limits on the number of jobs of a server, and on what each may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobSettings:
    """Bounds on jobs; times in seconds.

    max_runs: real runs of one machine at a time; 0: this server runs no jobs, it only takes them.
    max_queued_jobs: that wait, before a further one is refused.
    max_job_attempts: beginnings of one step, each cut off by the end of a server.
    job_lease_s: how long the jobs of a server that ended without a word wait for another one.
    job_retention_days: how long a job is kept after its end.
    sweep_step_questions: of one step of a sweep: what a server that ends has asked in vain.
    run_nice: how far jobs give way to what else this machine does, and leave it a core; 0: not at
    all.
    max_run_*: of one step, over what its request asks.
    """

    max_runs: int = 1
    max_queued_jobs: int = 64
    max_job_attempts: int = 3
    job_lease_s: int = 15
    job_retention_days: int = 30
    run_nice: int = 19
    max_run_s: int = 3600
    max_run_ranks: int = 64
    max_run_bytes: int = 1 << 40
    max_sweep_questions: int = 2000
    sweep_step_questions: int = 64
