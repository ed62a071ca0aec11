"""The files of a model made wrong, in ways that repeat with a seed."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

DEEP = "@deep@"  # stands for arrays in each other, which json does not write
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    4095,
    65_537,
    300_000_000,
    2**31,
    2**63,
    2**70,
    10**400,
    0.5,
    -0.5,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "3",
    "../../etc/passwd",
    "\x1b[2J",
    "x" * 70_000,
    [],
    [1],
    [None],
    [[1, 2], [3]],
    {},
    {"rope_type": "yarn"},
    {"a": {"b": None}},
    [0] * 5000,
    DEEP,
)
# Fields that a mutation adds, of other models and of libraries.
FIELDS = (
    "num_hidden_layers",
    "head_dim",
    "sliding_window",
    "layer_types",
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "use_bidirectional_attention",
    "final_logit_softcapping",
    "quantization_config",
    "compression_config",
    "num_experts",
    "num_local_experts",
    "mlp_only_layers",
    "no_rope_layers",
    "pretraining_tp",
    "hidden_act",
    "dtype",
    "torch_dtype",
    "auto_map",
    "tokenizer_class",
    "chat_template",
    "text_config",
    "attn_implementation",
    "base_model_tp_plan",
    "partial_rotary_factor",
    "problem_type",
    "id2label",
    "num_labels",
    "transformers_version",
    "eos_token_id",
    "pad_token_id",
    "draft_vocab_size",
    "gguf_architecture",
)


class FileMutator:
    """A sequence of mutations from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def mutate(self, path: Path) -> None:
        """Write a defect into a file: a wrong value in JSON, or wrong bytes in its first 64 KiB."""
        data = path.read_bytes()
        if path.suffix == ".json" and self.random.random() < 0.85:
            path.write_bytes(self.changed_json(data))
        elif path.suffix == ".safetensors" and self.random.random() < 0.75:
            length = int.from_bytes(data[:8], "little")
            header = self.changed_json(data[8 : 8 + length])
            path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
        else:
            path.write_bytes(self.changed_bytes(data))

    def changed_json(self, data: bytes) -> bytes:
        content = json.loads(data)
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            content = self._changed(content)
        text = json.dumps(content)
        depth = self.random.choice((40, 1000, 100_000))
        return text.replace(f'"{DEEP}"', "[" * depth + "]" * depth).encode()

    def changed_bytes(self, data: bytes) -> bytes:
        chance, place = self.random, self.random.randrange(min(len(data), 1 << 16) + 1)
        match chance.randrange(5):
            case 0 if data:
                changed = bytearray(data)
                changed[place % len(data)] ^= 1 << chance.randrange(8)
                return bytes(changed)
            case 1:
                return data[:place]
            case 2:
                number = chance.choice((b"\0" * 8, b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\xff" * 4))
                return data[:place] + number + data[place + len(number) :]
            case 3:
                return data[:place] + chance.randbytes(chance.choice((1, 4, 8, 300))) + data[place:]
            case _:
                return data[:place] + data[place + chance.choice((1, 4, 8, 300)) :]

    def _changed(self, content: Any) -> Any:
        """The content with one value changed, removed, added or doubled."""
        holders = [holder for holder in _holders(content) if holder]
        if not holders or self.random.random() < 0.02:
            return self._value(content)
        holder = self.random.choice(holders[:200])
        key = self.random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        match self.random.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[self.random.choice(FIELDS)] = self._value(None)
            case 2 if isinstance(holder, dict):
                holder[key] = copy.deepcopy(holder[self.random.choice(list(holder))])
            case _:
                holder[key] = self._value(holder[key])
        return content

    def _value(self, old: Any) -> Any:
        if isinstance(old, int | float) and abs(old) < 1 << 60 and self.random.random() < 0.3:
            near = (old + 1, old - 1, -old, old * 2, old // 2, old * 1000, float(old), [old])
            return self.random.choice(near)
        return copy.deepcopy(self.random.choice(VALUES))


def _holders(content: Any) -> list[Any]:
    """All objects and arrays in a JSON value."""
    found, level = [], [content]
    while level:
        found += [each for each in level if isinstance(each, dict | list)]
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return found
