"""Drafts of a continuation, copied from where its last few tokens stood before: in the reference answer, in the prompt
or in the continuation itself (prompt lookup).
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_RUN = 3
"""Tokens that must have stood together before for a draft to be copied from there; where none have, fewer."""

BREAK = -1
"""Stands between the reference and the prompt: no draft goes across."""


def until(end_id: int, tokens: Sequence[int], limit: int) -> list[int]:
    """The first `limit` tokens, or those up to the end marker and with it."""
    kept = list(tokens[:limit])
    return kept[: kept.index(end_id) + 1] if end_id in kept else kept


class Decoding:
    """A prompt on its way: what was generated, how much of it is in the cache, and where drafts come from.

    need   tokens that the prompt and the longest continuation take
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        known_ids: Sequence[int],
        reference_ids: Sequence[int],
        max_new_tokens: int,
        end_id: int,
    ) -> None:
        self.max_new_tokens = max_new_tokens
        self.end_id = end_id
        self.need = len(prompt_ids) + max_new_tokens
        self.n_cached = 0
        self.new: list[int] = []
        self._right, self._judged = 0.5, 1.0
        self._n_before = len(reference_ids) + 1
        self._told: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._tell([*reference_ids, BREAK, *prompt_ids])
        self.extend(known_ids)

    @property
    def ended(self) -> bool:
        return len(self.new) >= self.max_new_tokens or self.new[-1:] == [self.end_id]

    @property
    def n_left(self) -> int:
        return self.max_new_tokens - len(self.new)

    @property
    def pending(self) -> list[int]:
        """Tokens that the cache does not have yet, at least the last one."""
        return self._told[self._n_before + self.n_cached :]

    @property
    def rate(self) -> float:
        """Share of the drafted tokens that were right, the last drafts weighing most."""
        return self._right / self._judged

    def extend(self, tokens: Sequence[int]) -> None:
        """Take tokens in, as far as the length limit and the end marker let it."""
        kept = until(self.end_id, tokens, self.n_left)
        self.new += kept
        self._tell(kept)

    def guess(self, limit: int) -> list[int]:
        """What followed the last few tokens where they stood before. A loop goes on as a loop."""
        limit = min(limit, self.n_left - 1)
        for n in range(LONGEST_RUN, 0, -1):
            start = self._after.get(tuple(self._told[-n:]))
            if start is not None:
                run = self._told[start : start + limit]
                if BREAK in run:
                    return run[: run.index(BREAK)]
                return (run * limit)[:limit]
        return []

    def verified(self, guess: Sequence[int], n_draft: int, greedy: Sequence[int]) -> None:
        """Keep the longest beginning of the draft, the first `n_draft` tokens of the guess, that greedy decoding picks,
        and the token that it picks then. What was guessed beyond the draft is judged as far as it can be.
        """
        n_right = next((k for k in range(n_draft) if guess[k] != greedy[k]), n_draft)
        self.n_cached += len(self.pending) + n_right
        self.extend(greedy[: n_right + 1])
        if guess:
            judged = list(zip(guess, greedy[: n_right + 1], strict=False))
            wrong = judged[-1][0] != judged[-1][1]
            self._right = 0.75 * self._right + len(judged) - wrong
            self._judged = 0.75 * self._judged + len(judged)

    def _tell(self, tokens: Sequence[int]) -> None:
        told = self._told
        for token in tokens:
            end = len(told)
            for n in range(1, min(end, LONGEST_RUN) + 1):
                self._after[tuple(told[end - n :])] = end
            told.append(token)
