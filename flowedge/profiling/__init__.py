"""What devices and the links between them can do: measured, and written as profiles for the testbed."""
