"""Does a statement say anything new? Overlap of 3-shingles with its author's earlier text. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Scripts written without spaces: a word count says nothing there, characters do.
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")
WORD = re.compile(r"\w+")
SAME_PCT = 80


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Return the set of three neighbouring words, or characters where the text is CJK."""
    folded = text.casefold()
    tokens = WORD.findall(folded)
    if len(CJK.findall(folded)) * 2 > len("".join(tokens)):
        tokens = list("".join(tokens))
    if len(tokens) < 3:
        return frozenset({tuple(tokens)} if tokens else ())
    return frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False))


def overlap_pct(text: str, earlier: Sequence[str]) -> int:
    """Return how many percent of the shingles of `text` its author has used before.

    Nothing said counts as nothing new (100); without earlier text everything is new (0).
    """
    said: set[tuple[str, ...]] = set()
    for one in earlier:
        said |= shingles(one)
    new = shingles(text)
    if not said:
        return 0
    return 100 * len(new & said) // len(new) if new else 100


def repeats(text: str, earlier: Sequence[str]) -> bool:
    """Say whether a statement adds nothing to what its author said before."""
    return overlap_pct(text, earlier) >= SAME_PCT
