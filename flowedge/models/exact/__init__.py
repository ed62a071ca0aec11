"""Rows whose bits depend on their own paths alone: self-tests of devices, and fixed numbers of rows."""
