"""HTTP below the endpoints: limits of connections and requests, request ids, the log and the metrics."""
