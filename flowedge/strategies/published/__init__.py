"""The published ways to decode with several devices, to compare with; each module names its paper."""
