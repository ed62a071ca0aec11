"""The `flowedge` command: each subcommand in commands/, what people see on a terminal in screens/."""
