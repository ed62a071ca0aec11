"""True paths: computed once by a target, stored on disk, or kept in a file that stands for the target."""
