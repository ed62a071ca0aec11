"""How a model lies on devices: splits, what fits, what it takes, and a pipeline on a virtual clock."""
