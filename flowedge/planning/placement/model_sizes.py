"""The sizes of a model that a plan is made for: shipped by name, in a profile, or from its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile import shipped
from flowedge.planning.profile.model import DTYPE_BYTES, ModelProfile
from flowedge.planning.profile.unlike_layers import UnlikeLayers

DRAFT_VOCAB = 32_000  # of published EAGLE-3 heads


def model_sizes(model: str) -> ModelProfile:
    """Return the sizes of a model.

    model: the name of a shipped profile, a .yaml file, or what transformers reads a config from: a directory,
        which needs nothing but a config.json, or an id of the hub.

    Raises:
        BadRequestError: when there is no such model, or its layers are none that a profile describes.
    """
    if model in shipped.names("models") or model.endswith((".yaml", ".yml")):
        return shipped.model(model, Path())
    from transformers import AutoConfig  # noqa: PLC0415 (a plan of shipped models needs no transformers)

    try:
        config = AutoConfig.from_pretrained(model).get_text_config()
    except (OSError, ValueError) as error:
        known = ", ".join(shipped.names("models"))
        raise BadRequestError(
            f"{model}: no config.json is found there, and it is none of the shipped models {known}"
        ) from error
    return from_config(model, config)


def from_config(name: str, config: Any) -> ModelProfile:
    """Return the sizes in a config of transformers, with EAGLE heads as the model's drafters.

    Raises:
        BadRequestError: when the model's layers are of another kind than a profile describes.
    """
    try:
        sizes = ModelProfile.sizes_in(config)
    except BadRequestError as error:
        raise BadRequestError(f"{name}: {error}") from error
    unlike = UnlikeLayers.of(config)
    beside = {} if unlike is None else {"carried": unlike.carried, "token_values": unlike.token_values}
    vocab, dtype = config.vocab_size, str(getattr(config, "dtype", None) or "float16").removeprefix("torch.")
    return ModelProfile.model_validate(
        {
            "title": Path(name).name,
            "source": f"config.json of {name}",
            "layers": config.num_hidden_layers,
            **sizes,
            **beside,
            "vocab": vocab,
            "tied_embedding": bool(getattr(config, "tie_word_embeddings", False)),
            "dtype": dtype if dtype in DTYPE_BYTES else "float16",
            "drafters": {
                "eagle": {"kind": "eagle"},
                "eagle3": {"kind": "eagle3", "draft_vocab": min(DRAFT_VOCAB, vocab)},
            },
        }
    )
