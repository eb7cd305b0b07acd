"""The store: all tables over one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from planner.documents.service import OVER
from planner.running.store.call_counts import Calls
from planner.running.store.database import Database
from planner.running.store.jobs import Jobs
from planner.running.store.keys import Keys
from planner.running.store.results import Results
from planner.running.store.saved_plans import SavedPlans
from planner.running.store.servers import Servers
from planner.running.store.shared_files import SharedFiles
from planner.running.store.sites import Sites

RESULT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Store:
    """Everything that is kept, by kind."""

    database: Database
    results: Results
    saved_plans: SavedPlans
    keys: Keys
    jobs: Jobs
    servers: Servers
    shared_files: SharedFiles
    calls: Calls
    sites: Sites

    @classmethod
    def open(cls, url: str | None = None, result_bytes: int = RESULT_BYTES) -> Self:
        """The store at a database URL, migrated; None: a file in the data folder.

        result_bytes: of all results together; past it the oldest go.
        """
        database = Database.open(url)
        return cls(
            database,
            Results(database, result_bytes),
            SavedPlans(database),
            Keys(database),
            Jobs(database),
            Servers(database),
            SharedFiles(database),
            Calls(database),
            Sites(database),
        )

    def jobs_without_server(self) -> int:
        """The number of unfinished jobs that nobody will take: no server that runs jobs lives."""
        counts, _ = self.jobs.counts()
        waiting = sum(count for state, count in counts.items() if state not in OVER)
        return 0 if not waiting or self.servers.expected_alive() else waiting

    def close(self) -> None:
        """Close all connections."""
        self.database.close()
