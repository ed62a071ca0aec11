"""Valid protobuf messages made wrong, in ways that repeat with a seed."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, 1, 2, 3, 5, 7, 63, 64, 65, 255, 4096, 65535, 65536, 2**20, 2**31 - 1, 2**31, 2**32 - 1)
HUGE = (2**32, 2**40, 2**40 + 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan)
TEXTS = (
    "",
    "\0",
    "a",
    "a b",
    "é" * 40,
    "x" * 64,
    "x" * 65,
    "x" * 5000,
    "../../etc/passwd",
    "127.0.0.1:1",
    "𝕊",
)
LENGTHS = (0, 1, 2, 3, 4, 5, 8, 12, 63, 64, 1000, 70_000)
_INT_TYPES = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
    FieldDescriptor.CPPTYPE_ENUM,
)


class Mutator:
    """A sequence of mutations from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._seen = b"\x0a\x00"  # the message before, to splice with

    def mutate(self, message: Message) -> bytes:
        """Return the bytes of a message with a random defect."""
        if self.random.random() < 0.6:
            changed = type(message)()
            changed.CopyFrom(message)
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                self._change_field(changed)
            data = changed.SerializeToString()
        else:
            data = self.spoil(message.SerializeToString())
        self._seen = data[:4096]
        return data

    def spoil(self, data: bytes) -> bytes:
        """Return bytes of any format with random defects."""
        for _ in range(self.random.choice((1, 1, 2, 4))):
            data = self._change_bytes(data)
        self._seen = data[:4096]
        return data

    def _change_bytes(self, data: bytes) -> bytes:  # noqa: PLR0911 (one for each kind)
        chance, place = self.random, self.random.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0 if data:  # a bit
                changed = bytearray(data)
                changed[place % len(data)] ^= 1 << chance.randrange(8)
                return bytes(changed)
            case 1:  # the end is missing
                return data[:place]
            case 2:  # the beginning of this, the end of another
                return data[:place] + self._seen[chance.randrange(len(self._seen) + 1) :]
            case 3:  # a varint, such as a length, that says something else
                number = chance.choice((b"\x00", b"\x7f", b"\xff\x01", b"\xff" * 9 + b"\x01", b"\xff" * 11))
                return data[:place] + number + data[place + 1 :]
            case 4:
                return data[:place] + chance.randbytes(chance.choice((1, 2, 8, 100))) + data[place:]
            case 5:  # twice
                return data + data[place:]
            case _:  # nested deeper than anyone looks
                return data[:place] + b"\x0a\x7f" * chance.choice((1, 20, 200)) + data[place:]

    def _change_field(self, message: Message) -> None:
        if not message.DESCRIPTOR.fields:
            return
        field = self.random.choice(message.DESCRIPTOR.fields)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys = field.message_type.fields_by_name["key"]
            try:
                getattr(message, field.name)[self._value(keys)] = self.random.choice(FLOATS)
            except ValueError:  # a number beyond the keys' range
                message.ClearField(field.name)
        elif field.message_type is not None:
            self._change_message(message, field)
        elif self.random.random() < 0.1:
            message.ClearField(field.name)
        elif field.is_repeated:
            self._change_list(message, field)
        else:
            try:
                setattr(message, field.name, self._value(field))
            except ValueError:  # a number beyond the field's range; the bytes are changed elsewhere
                message.ClearField(field.name)

    def _change_message(self, message: Message, field: FieldDescriptor) -> None:
        inside: Any = getattr(message, field.name)
        if not field.is_repeated:
            # Mostly what is there, so that one kind of frame stays the kind it is.
            if message.HasField(field.name) or self.random.random() < 0.2:
                self._change_field(inside)
                inside.SetInParent()
        elif not inside or self.random.random() < 0.3:
            for _ in range(self.random.choice((1, 3, 1100))):
                inside.add()
        else:
            self._change_field(self.random.choice(inside))

    def _change_list(self, message: Message, field: FieldDescriptor) -> None:
        values: Any = getattr(message, field.name)
        changed = list(values)
        match self.random.randrange(5):
            case 0:
                changed = changed[: self.random.randrange(len(changed) + 1)]
            case 1:
                changed.reverse()
            case 2:
                changed += changed
            case 3:
                changed += [self._value(field)] * self.random.choice((1, 1, 5000))
            case _ if changed:
                changed[self.random.randrange(len(changed))] = self._value(field)
        message.ClearField(field.name)
        try:
            values.extend(changed)
        except ValueError:
            message.ClearField(field.name)

    def _value(self, field: FieldDescriptor) -> Any:
        chance = self.random
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice(LENGTHS))
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return chance.choice(TEXTS)
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if field.cpp_type in _INT_TYPES:
            return chance.choice(INTEGERS if chance.random() < 0.6 else HUGE)
        return chance.choice(FLOATS)
