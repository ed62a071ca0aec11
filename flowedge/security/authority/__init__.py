"""The CA of a cluster, which only one machine has."""
