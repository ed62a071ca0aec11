"""What an emulated pipeline takes, in seconds of virtual time."""
