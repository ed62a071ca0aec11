"""Generated from protos/flowedge/v1 by protos/generate.py; not to be edited."""
