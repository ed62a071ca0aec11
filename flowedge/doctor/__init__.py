"""Finds what keeps devices from working together; docs/discovery.md lists the findings.

Each module has one subject: facts, functions that gather them, and pure functions `judge_*` that judge them.
"""
