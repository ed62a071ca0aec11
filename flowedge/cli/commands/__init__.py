"""The subcommands of `flowedge`, one module each; a module is imported when its command is run."""
