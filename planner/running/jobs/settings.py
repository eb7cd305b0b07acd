"""Limits on a server's jobs: their number, and the resources of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobSettings:
    """Limits on jobs; times in seconds.

    max_runs: concurrent real runs on one machine; 0: this server only accepts jobs and runs none.
    max_queued_jobs: jobs in the queue; further ones are refused.
    max_job_attempts: attempts at one step that a server's end may interrupt.
    job_lease_s: how long the jobs of a crashed server wait before another one takes them over.
    job_retention_days: how long a job is kept after its end.
    sweep_step_questions: questions per step of a sweep, at most so many are lost with a server.
    run_nice: the niceness of jobs, which then also leave a core free; 0: neither.
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
