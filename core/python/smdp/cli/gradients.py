"""Models, described by the sizes of their gradients, for `smdp simulate` and `smdp bench ddp`."""

from __future__ import annotations

import re

from smdp import config

# Layers in forward order; each layer is a list of its parameters' element counts.
Layers = list[list[int]]

# The number of layers that equal gradients are divided into.
_LAYERS = 10

# Limits that keep the run time of a simulation reasonable.
_MOST_GRADIENTS = 1_000_000
_MOST_HIDDEN = 1_000_000

NAMES = ("bert-base", "bert-large", "gpt2", "gpt2-xl")


def transformer(layers: int, hidden: int) -> Layers:
    """Returns transformer layers with attention, feed-forward and two norms, but no embeddings."""
    return [_block(hidden) for _ in range(layers)]


def parse(option: str, text: str) -> Layers:
    """Parses a model name, transformer-LAYERSxHIDDEN, or COUNTxBYTES (equal float32 gradients).

    Raises:
        ConfigError: The text has none of these forms.
    """
    if text in ("bert-base", "bert-large"):
        layers, hidden = (12, 768) if text == "bert-base" else (24, 1024)
        embeddings = [30522 * hidden, 512 * hidden, 2 * hidden, hidden, hidden]
        return [embeddings, *transformer(layers, hidden), [hidden * hidden, hidden]]
    if text in ("gpt2", "gpt2-xl"):
        layers, hidden = (12, 768) if text == "gpt2" else (48, 1600)
        return [[50257 * hidden, 1024 * hidden], *transformer(layers, hidden), [hidden, hidden]]
    found = re.fullmatch(r"transformer-(\d+)x(\d+)", text)
    if found is not None and int(found[1]) and int(found[2]):
        if 16 * int(found[1]) > _MOST_GRADIENTS or int(found[2]) > _MOST_HIDDEN:
            raise config.invalid(option, text, f"up to {_MOST_GRADIENTS} gradients and hidden {_MOST_HIDDEN}")
        return transformer(int(found[1]), int(found[2]))
    found = re.fullmatch(r"(\d+)x(\w+)", text)
    size = config.parse_bytes(found[2]) if found else None
    if found is None or not size or size % 4 or not int(found[1]):
        raise config.invalid(
            option, text, f"{', '.join(NAMES)}, transformer-LAYERSxHIDDEN or COUNTxBYTES, e.g. 1000x4K"
        )
    count = int(found[1])
    if count > _MOST_GRADIENTS or size > 2**50:
        raise config.invalid(option, text, f"up to {_MOST_GRADIENTS} gradients of up to 2**50 bytes")
    equal: Layers = [[] for _ in range(min(_LAYERS, count))]
    for index in range(count):
        equal[index * len(equal) // count].append(size // 4)
    return equal


def _block(hidden: int) -> list[int]:
    rows = (3 * hidden, hidden, 4 * hidden, hidden)
    columns = (hidden, hidden, hidden, 4 * hidden)
    sizes: list[int] = []
    for row, column in zip(rows, columns, strict=True):
        sizes += [row * column, row]
    return sizes + [hidden] * 4
