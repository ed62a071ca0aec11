"""Weights over the network: what a model consists of, which device has it, and opening or fetching it.

torch is imported by `importing`, `manifest_of_model`, `checkpoint_opener` and `quantised_weights`; all other modules
belong to an idle agent, which does not import it."""
