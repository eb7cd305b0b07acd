"""Durable jobs for long work: validations, calibrations, dry runs, sweeps.

    documents.py     the request of each kind of job
    engine.py        the queue (DBOS), and the lease under which this server runs jobs
    executor.py      one run of one job under that lease
    workflows.py     the steps of each kind of job; a finished step is never repeated
    long_steps.py    the functions of the steps that run in a process of their own
    step_worker.py   the program of such a process
    step_process.py  starts such a process, reads its messages and stops it

The service imports documents and settings only, until it starts an engine.
"""
