"""What tests of several packages share: processes, smaller models, and the scheduling of tests."""
