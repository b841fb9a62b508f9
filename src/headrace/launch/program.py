"""The program that an environment has built, and the plan of the job that runs it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import copy
from pathlib import Path

from headrace import config
from headrace.config import Configuration
from headrace.driver.shipping import add_archive, add_file, install_requirements
from headrace.graph.job_graph import JobGraph, Pipeline, build_job_graph
from headrace.graph.levels import Layout, lay_out
from headrace.graph.plan import JobPlan, Settings, ShippedArchive, make_plan
from headrace.launch.checks import check_sinks, check_unaligned, is_batch

_REQUIREMENTS = "python-requirements"  # the directory that they are unpacked into


class Shipment:
    """The files that the jobs of an environment bring along."""

    def __init__(self) -> None:
        self.python_files: list[str] = []
        self.archives: list[ShippedArchive] = []
        self._added: set[tuple[str, str]] = set()  # options, whose files are added once

    def copy(self) -> Shipment:
        """The same files, to which others can be added."""
        other = Shipment()
        other.python_files, other.archives = list(self.python_files), list(self.archives)
        other._added = set(self._added)
        return other

    def add_file(self, path: str) -> None:
        """Copy a module, an archive of modules or a directory of them."""
        self.python_files.append(add_file(path))

    def add_archive(self, path: str, directory: str | None) -> None:
        """Copy an archive of any files, which workers unpack."""
        file = add_archive(path, f"add_python_archive({path!r})")
        self.archives.append(ShippedArchive(file, directory or Path(path).name))

    def add_requirements(self, file_path: str, packages: str | None) -> None:
        """Install packages, in place of those that were added before."""
        with tempfile.TemporaryDirectory(prefix="headrace-") as place:
            install_requirements(file_path, packages, place)
            file = add_archive(place, "set_python_requirements()")
        self.archives = [one for one in self.archives if one.directory != _REQUIREMENTS]
        self.archives.append(ShippedArchive(file, _REQUIREMENTS, importable=True))

    def add_configured(self, configuration: Configuration) -> None:
        """Add the files that options name, once."""
        for path in self._new(configuration, config.PYTHON_FILES):
            self.add_file(path)
        for path in self._new(configuration, config.PYTHON_ARCHIVES):
            archive, _, directory = path.partition("#")
            self.add_archive(archive, directory or None)
        for path in self._new(configuration, config.PYTHON_REQUIREMENTS):
            file, _, packages = path.partition("#")
            self.add_requirements(file, packages or None)

    def _new(self, configuration: Configuration, option: config.Option[str | None]) -> list[str]:
        found = configuration.get(option) or ""
        if (option.key, found) in self._added:
            return []
        self._added.add((option.key, found))
        return [part.strip() for part in found.split(",") if part.strip()]


class Program:
    """Operators, options and files; making a plan of them changes nothing but the files that options name."""

    def __init__(self, configuration: Configuration, *, local: bool) -> None:
        self.configuration = configuration
        self.pipeline = Pipeline()
        self.shipment = Shipment()
        self.local = local  # whether it runs in the local runtime

    def copy(self) -> Program:
        """The program as it is now."""
        other = copy(self)
        other.configuration = Configuration(self.configuration)
        other.pipeline, other.shipment = self.pipeline.copy(), self.shipment.copy()
        return other

    def graph(self, job_name: str | None) -> tuple[JobGraph, Layout]:
        """The operators of the next job, chained, and their division into levels."""
        conf = self.configuration
        limit = conf.get(config.MAX_PARALLELISM)
        graph = build_job_graph(
            self.pipeline,
            job_name or conf.get(config.JOB_NAME) or "Headrace job",
            conf.get(config.PARALLELISM),
            limit if limit > 0 else None,
            conf.get(config.CHAINING),
            conf.get(config.AUTO_GENERATE_UIDS),
        )
        return graph, lay_out(graph)

    def plan(self, job_name: str | None = None) -> JobPlan:
        """The plan that a runtime runs."""
        conf = self.configuration
        self.shipment.add_configured(conf)
        graph, layout = self.graph(job_name)
        final_checkpoint = self._waits_for_final_checkpoint()
        check_sinks(graph, conf, final_checkpoint=final_checkpoint)
        check_unaligned(graph, conf)
        settings = Settings.of(conf, final_checkpoint, is_batch(graph, conf))
        return make_plan(graph, layout, settings, tuple(self.shipment.python_files), tuple(self.shipment.archives))

    def replanner(self, job_name: str | None) -> Callable[[int], JobPlan]:
        """A function that plans the program as it is now with another parallelism."""
        now = self.copy()

        def replan(parallelism: int) -> JobPlan:
            now.configuration.set(config.PARALLELISM, parallelism)
            return now.plan(job_name)

        return replan

    def _waits_for_final_checkpoint(self) -> bool:
        conf = self.configuration
        periodic = conf.get(config.CHECKPOINT_INTERVAL) is not None and not self.local
        return periodic and bool(conf.get(config.CHECKPOINT_AFTER_FINISH))
