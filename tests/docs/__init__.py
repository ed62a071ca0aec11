"""Tests of the documents: their links, and the picture of the packages."""
