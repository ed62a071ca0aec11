"""The pipelines that a gateway stands in front of: which are ready, and the choice of one for a request."""
