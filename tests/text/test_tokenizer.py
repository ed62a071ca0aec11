"""Tokenizers trained on the spot: byte-level, and the sentencepiece kind that LLaMA uses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from flowedge.core.errors import BadRequestError
from flowedge.text.tokenizer import StreamDecoder, encode_chat, encode_messages

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    " two  leading and double spaces",
    "naïve café, 東京 and 🙂👩‍🚀 in one line\n\n\tand a tab",
    "🙂",
    "",
]
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"


def byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES[:2], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def sentencepiece_kind() -> Any:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    specials = ["<unk>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<unk>", "</s>"])
    tokenizer.train_from_iterator(SENTENCES[:2], trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    for name in specials:
        vocab.setdefault(name, len(vocab))
    rebuilt = Tokenizer.from_str(json.dumps(state))
    rebuilt.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=rebuilt, eos_token="</s>", unk_token="<unk>")


@pytest.fixture(params=[byte_level, sentencepiece_kind], ids=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_pieces_join_to_the_text(tokenizer: Any) -> None:
    for text in SENTENCES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoder = StreamDecoder(tokenizer)
        pieces = [decoder.push(token) for token in ids]
        assert "\ufffd" not in "".join(pieces)
        joined = "".join(pieces) + decoder.flush()
        assert joined == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert joined.strip() == text.strip()


def test_a_character_is_not_emitted_before_it_is_whole(tokenizer: Any) -> None:
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert len(ids) > 1
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(token) for token in ids]
    assert "".join(pieces[:-1]).strip() == "" and pieces[-1] == "🙂"
    assert decoder.flush() == ""


def test_flush_gives_what_never_became_whole(tokenizer: Any) -> None:
    ids = tokenizer.encode("a🙂", add_special_tokens=False)[:-1]
    decoder = StreamDecoder(tokenizer)
    pieces = "".join(decoder.push(token) for token in ids)
    assert pieces == "a"
    assert set(decoder.flush()) == {"\ufffd"}
    assert decoder.flush() == ""


def test_random_tokens_join_to_their_decoding(tokenizer: Any) -> None:
    rng = np.random.default_rng(0)
    # A run of byte tokens that turns out invalid is decoded anew as a whole: no stream can know.
    tokens = [i for i in range(len(tokenizer)) if not tokenizer.convert_ids_to_tokens(i).startswith("<0x")]
    for _ in range(100):
        ids = rng.choice(tokens, 30).tolist()
        decoder = StreamDecoder(tokenizer)
        joined = "".join([*(decoder.push(token) for token in ids), decoder.flush()])
        expected = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert joined == expected


def test_special_tokens_are_not_text(tokenizer: Any) -> None:
    decoder = StreamDecoder(tokenizer)
    assert decoder.push(tokenizer.eos_token_id) == "" and decoder.flush() == ""


def test_chat_template() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    assert tokenizer.decode(encode_chat(tokenizer, "hello")) == "<user>hello<assistant>"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert tokenizer.decode(encode_messages(tokenizer, messages)) == ("<system>be brief<user>hi<assistant>")
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(BadRequestError, match="no system role"):
        encode_messages(tokenizer, messages)


def test_without_a_template_the_text_is_taken_as_it_is() -> None:
    tokenizer = byte_level()
    assert tokenizer.decode(encode_chat(tokenizer, "hello")) == "hello"
    with pytest.raises(BadRequestError, match="no tokens"):
        encode_chat(tokenizer, "")
