"""The API of programs: streams, functions, sources, sinks, checkpoint settings."""
