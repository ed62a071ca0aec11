"""FlowSpec, its ablations and Naive PP, after flowspec.txt; FlowSpec also without turns."""
