"""Limits on the number of jobs of a server, and on what each may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobSettings:
    """Limits on jobs; times in seconds.

    max_runs: concurrent real runs on one machine; 0: this server runs no jobs, it only accepts
    them.
    max_queued_jobs: jobs in the queue; a further one is refused.
    max_job_attempts: attempts at one step, each cut off because its server ended.
    job_lease_s: how long the jobs of a crashed server wait before another one takes them.
    job_retention_days: how long a job is kept after its end.
    sweep_step_questions: questions in one step of a sweep; a server that ends loses at most these.
    run_nice: the niceness of jobs, which also leave a core free; 0: neither.
    max_run_*: limits on one step, whatever its request asks.
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
