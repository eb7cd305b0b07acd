"""Durable jobs for long work: validations, calibrations, dry runs, sweeps.

    documents.py   what may be asked of each kind
    kinds.py       the steps of each kind; a finished step is never repeated
    work.py        what a step does, in a process of its own (runner.py), watched by process.py
    engine.py      DBOS, the lease of this server, and the jobs that it runs

The service imports documents and settings only, until it starts an engine.
"""
