"""The pipeline that serves a command: what is asked for, which agents serve it, and setting it up."""
