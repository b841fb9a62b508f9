"""The simulated job answers as REST does: each document is what the model of REST says."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter
from simulated_job import SimulatedJob

from headrace.rest import models

JOB = SimulatedJob(operators=9, parallelism=3, checkpoints=14)
COMPLETED, FAILED = JOB.find_checkpoint(12), JOB.find_checkpoint(13)
DOCUMENTS = [
    (models.JobsOverview, {"jobs": [JOB.overview()]}),
    (models.JobDetails, JOB.details()),
    (models.JobConfigAnswer, JOB.config()),
    (models.VertexDetails, JOB.vertex(5)),
    (models.Sample, JOB.sample(5, 20)),
    (models.FlameGraph, JOB.flamegraph(5)),
    (models.Checkpoints, JOB.checkpoint_statistics()),
    (models.CheckpointConfigAnswer, JOB.checkpoint_config()),
    (models.Checkpoint, JOB.checkpoint_details(COMPLETED)),
    (models.Checkpoint, JOB.checkpoint_details(FAILED)),
    (models.TaskCheckpointDetails, JOB.checkpoint_subtasks(COMPLETED, 7)),
    (models.TaskCheckpointDetails, JOB.checkpoint_subtasks(FAILED, 7)),
    (models.Timeline, JOB.timeline(COMPLETED)),
    (models.Timeline, JOB.timeline(FAILED)),
    (models.StateFiles, JOB.state_files()),
    (models.KeyGroups, JOB.key_groups()),
    (models.States, JOB.states()),
    (models.StatePage, JOB.entries("total", None, 50, 0)),
    (models.StatePage, JOB.entries("total", "customer-1", 50, 0)),
    (models.ExceptionsAnswer, JOB.exceptions()),
    (models.StoryAnswer, JOB.story()),
]


@pytest.mark.parametrize(("model", "document"), DOCUMENTS, ids=lambda one: getattr(one, "__name__", ""))
def test_document(model, document):
    TypeAdapter(model).validate_python(document, by_alias=True, by_name=False)
