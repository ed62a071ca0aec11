"""Weights over the network: what a model consists of, which device has it, and opening or fetching it.

`importing`, `manifest_of_model`, `checkpoint_opener` and `quantised_weights` import torch. All other
modules belong to an idle agent, which does not import torch.
"""
