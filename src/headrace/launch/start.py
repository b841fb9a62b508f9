"""Starts the job of a program, on Spark or in the local runtime."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from headrace import config
from headrace.api.checkpoint_config import CheckpointConfig
from headrace.config import Configuration
from headrace.connectors.spark.dataframe import DataFrameSource
from headrace.connectors.spark.epochs import forget as forget_staged
from headrace.driver.epochs import epoch_sinks
from headrace.driver.job import SparkJob
from headrace.driver.log_output import start_log_output
from headrace.driver.replan import dry_run, with_key_groups
from headrace.driver.restore_plan import saved_operators
from headrace.driver.resume import named_manifest
from headrace.graph.job_graph import JobGraph
from headrace.ids import JobId, new_job_id
from headrace.job.restart import from_configuration
from headrace.job_client import Job
from headrace.launch.output import OnOutput
from headrace.launch.program import Program
from headrace.local import LocalJob
from headrace.rest.server import register
from headrace.storage.storage_settings import StorageSettings

_LOG = logging.getLogger(__name__)


def start(
    program: Program,
    job_name: str | None,
    on_output: OnOutput,
    session: Callable[[], SparkSession],
    local: dict[str, Any] | None,
) -> Job:
    """Start a job; with options of the local runtime it runs there, and has ended when this returns."""
    conf = program.configuration
    start_log_output(conf)
    for warning in conf.check():
        _LOG.warning(warning)
    job_id = new_job_id()
    frames = _place_frames(conf, job_id, program.graph(job_name)[0])
    plan = program.plan(job_name)
    replan = program.replanner(job_name)
    program.pipeline.job_started()
    if local is not None:
        return LocalJob(plan, on_output, **local)
    manifest = named_manifest(conf)
    if manifest is not None:
        plan = with_key_groups(plan, saved_operators(manifest.operators))
        if conf.get(config.DRY_RUN):
            raise SystemExit(dry_run(plan, manifest, conf))
    checkpointing = CheckpointConfig(conf).is_checkpointing_enabled()
    restart = from_configuration(conf, checkpointing=checkpointing)
    job = SparkJob(plan, job_id, session(), conf, restart, on_output, replan)
    _stage(conf, frames, job, resumed=manifest is not None)
    address = register(job, conf)  # first, since it may refuse: then nothing runs
    job.start()
    if address is not None:
        _LOG.info("job '%s' (%s) starts; dashboard: %s", plan.name, job_id[:8], address)
    return job


def _place_frames(configuration: Configuration, job_id: JobId, graph: JobGraph) -> list[DataFrameSource]:
    """The DataFrames that are sources of a job; each gets the directory for its rows."""
    functions = (operator.spec.function for v in graph.vertices for operator in v.operators)
    frames = [function for function in functions if isinstance(function, DataFrameSource)]
    layout = StorageSettings.of(configuration).layout(job_id) if frames else None
    for frame in frames:
        frame.place(layout.task_owned if layout is not None else tempfile.gettempdir())
    return frames


def _stage(configuration: Configuration, frames: list[DataFrameSource], job: SparkJob, *, resumed: bool) -> None:
    """Write the rows of DataFrames before the dataflow takes the slots; a snapshot refers to rows that are there.

    The staged rows of sources and sinks are deleted when the job has finished.
    """
    for frame in frames:
        if not resumed and not configuration.get(config.RESUME):
            frame.stage()
        job.when_finished.append(frame.forget)
    settings = StorageSettings.of(configuration)
    for _, operator in epoch_sinks(job.plan.graph):
        if operator.spec.function.needs_staging:
            job.when_finished.append(partial(_forget_staged, settings, job, operator.id))


def _forget_staged(settings: StorageSettings, job: SparkJob, operator_id: str) -> None:
    layout = settings.layout(job.job_id)  # a resumed job has the id of the one that it goes on with
    if layout is not None:
        forget_staged(layout.task_owned, operator_id)
