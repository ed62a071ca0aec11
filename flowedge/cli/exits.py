"""Exit codes of the command line; 0 means success."""

from __future__ import annotations

EXIT_FAILURE = 1  # something failed
EXIT_USAGE = 2  # the options or the request cannot be served as given
EXIT_DIFFERENT = 3  # an output differs from the plain model's by more than rounding explains
EXIT_INTERRUPTED = 130
