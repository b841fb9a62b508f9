"""REST on the driver: jobs, checkpoints and savepoints with Flink's paths and field names (SPEC R10.1)."""
