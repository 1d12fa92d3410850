"""Text as it grows: whole characters only, nothing of a stop string, nothing told twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.runner.detokenize import OutputText, Texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ALPHABET = pre_tokenizers.ByteLevel.alphabet()
VOCAB = {char: index for index, char in enumerate(sorted(ALPHABET))}


def byte_table() -> Tokenizer:
    """One token per byte, so that characters and stop strings straddle tokens."""
    table = Tokenizer(models.BPE(VOCAB, []))
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    table.decoder = decoders.ByteLevel()
    return table


TABLE = byte_table()


@given(
    st.text(max_size=30).filter(lambda text: "\ufffd" not in text), st.lists(st.text("ab", min_size=1, max_size=3))
)
def test_pieces_join_to_the_text_before_the_first_stop(text: str, stop: list[str]) -> None:
    output = OutputText(TABLE, tuple(stop))
    pieces = []
    for token_id in TABLE.encode(text).ids:
        pieces.append(output.push(token_id))
        if output.stopped:
            break
    reported = "".join(pieces)
    ends = [text.find(s) for s in stop if s in text]
    if not ends:
        assert reported + output.flush() == text
        assert not output.stopped
    else:
        assert output.stopped
        assert reported == text[: len(reported)]
        assert not any(s in reported for s in stop)


def test_a_stop_string_ends_the_request(lab: Any) -> None:
    free = lab.serve("llama", texts=Texts(TABLE))
    free.add([5, 6, 7], 30)
    free.run()
    text = free.texts[0]
    stop = text[8:11]
    served = lab.serve("llama", texts=Texts(TABLE))
    request = served.add([5, 6, 7], 30, SamplingParams(stop=(stop,)))
    served.run()
    assert served.texts.get(0, "") == text[: text.find(stop)]
    assert served.reasons[request.number] == "stop"
    assert len(request.output_token_ids) < 30


@pytest.mark.parametrize("speculation", [0, 4])
def test_text_is_told_once_across_preemptions(lab: Any, speculation: int) -> None:
    calm, pressed = (
        lab.serve("llama", texts=Texts(TABLE), num_blocks=blocks, num_speculative_tokens=speculation)
        for blocks in (256, 20)
    )
    for served in (calm, pressed):
        for prompt in lab.prompts(6, seed=3, low=10, high=40):
            served.add(prompt, 40)
        served.run()
    assert pressed.preemptions and not calm.preemptions
    assert pressed.texts == calm.texts
