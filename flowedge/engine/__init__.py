"""The state machines of a pipeline: events in, jobs and messages out, without I/O."""
