"""What the service keeps: results, saved plans, idempotency keys, jobs and their events.

`Store.open()` migrates the database and gives one object with a part for each.  SQLite in the data
folder, or PostgreSQL where a URL names it.  All calls block, so that a service makes them in
threads.  They raise `Unavailable` where the database does not answer or cannot write.
"""

from planner.running.store.database import Database, Unavailable
from planner.running.store.jobs import Job, JobEvent, Jobs
from planner.running.store.keys import Keys, Mismatch
from planner.running.store.results import Results
from planner.running.store.saved_plans import SavedPlan, SavedPlans
from planner.running.store.store import Store

__all__ = [
    "Database", "Job", "JobEvent", "Jobs", "Keys", "Mismatch", "Results", "SavedPlan", "SavedPlans",
    "Store", "Unavailable",
]  # fmt: skip
