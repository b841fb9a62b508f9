"""The jobs of a driver process that REST shows."""

from __future__ import annotations

from headrace.driver.job import SparkJob
from headrace.errors import HeadraceError


class UnknownJob(HeadraceError):
    """This process has no job of that id."""

    class_code = "HR-7004"


class Jobs:
    """The jobs of this process, oldest first."""

    def __init__(self) -> None:
        self._jobs: list[SparkJob] = []

    def add(self, job: SparkJob) -> None:
        """Add a job that starts; of jobs that have ended the newest hundred are kept."""
        ended = [one for one in self._jobs if one.status.is_terminal][:-100]
        self._jobs = [one for one in self._jobs if one not in ended] + [job]

    def all(self) -> list[SparkJob]:
        """Each id once: a job that was resumed in this process keeps the id, and takes the place of the one that has ended."""
        return list({job.job_id: job for job in self._jobs}.values())

    def find(self, job_id: str) -> SparkJob:
        for job in reversed(self._jobs):
            if job.job_id == job_id:
                return job
        raise UnknownJob(f"job {job_id} is not known; GET /jobs lists the jobs of this driver")
