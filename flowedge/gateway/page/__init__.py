"""The page of a gateway: its files, and what it shows of the cluster."""
