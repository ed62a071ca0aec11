"""The figures of a report: by name, along sweeps, by device, and how far each may be off by chance."""
