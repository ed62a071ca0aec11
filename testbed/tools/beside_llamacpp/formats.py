"""The weight formats that are compared, as each side names them."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError
from flowedge.models.quant.quantize import QUANTISATIONS

STORED = "as stored"  # a GGUF file, which both sides read


@dataclass(frozen=True)
class Format:
    """A format of FlowEdge, and the GGUF type that it is compared with.

    Attributes:
        quant, dtype: as --quant and --dtype name them; dtype is that of everything that is not quantised.
    """

    quant: str
    dtype: str
    gguf: str

    @property
    def ours(self) -> str:
        if self.gguf == STORED:
            return f"FlowEdge {STORED}"
        return f"FlowEdge {self.dtype if self.quant == 'none' else self.quant}"

    @property
    def theirs(self) -> str:
        return f"llama.cpp {self.gguf}"


FORMATS = {
    "float32": Format("none", "float32", "F32"),
    "bf16": Format("none", "bfloat16", "BF16"),
    "int8": Format("int8", "bfloat16", "Q8_0"),
    "int4": Format("int4", "bfloat16", "Q4_0"),
    STORED: Format("none", "bfloat16", STORED),
}
DEFAULT_FORMATS = ("bf16", "int8", "int4")


def format_of(name: str) -> Format:
    """Return the format of a name: a key of FORMATS, or any quantisation of FlowEdge.

    Raises:
        BadRequestError: when FlowEdge has no such format.
    """
    if name in FORMATS:
        return FORMATS[name]
    if name not in QUANTISATIONS:
        known = sorted({*FORMATS, *QUANTISATIONS} - {"none"})
        raise BadRequestError(f"there is no format {name!r}; the formats are {', '.join(known)}")
    return Format(name, "bfloat16", "Q8_0" if "8" in name else "Q4_0")
