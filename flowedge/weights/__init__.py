"""Weights over the network: what a model consists of, which device has it, and fetching what a device needs.

torch is imported by `importing`, `manifest.describing` and `open` (except its `model_opener` and
`model_request`); all other modules belong to an idle agent, which does not import it.
"""
