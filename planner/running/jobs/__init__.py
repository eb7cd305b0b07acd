"""Durable jobs for long work: validations, calibrations, dry runs, sweeps.

    documents.py     the request of each kind of job
    engine.py        the queue (DBOS), and the lease under which this server runs jobs
    executor.py      one run of one job under that lease
    workflows.py     the steps of each kind of job; a finished step is never repeated
    long_steps.py    the functions of steps that run in a separate process
    step_worker.py   the program of that process
    step_process.py  starts that process, reads its messages and stops it

The service imports only documents and settings until it starts an engine.
"""
