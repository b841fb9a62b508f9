"""What a program is written with: streams, functions, sources, sinks, checkpoint settings."""
