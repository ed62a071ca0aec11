"""Decoding methods on emulated or real devices: scenarios, runs, results and reports."""
