"""Drivers that let the state machines work with real links, a compute thread and the clock."""
