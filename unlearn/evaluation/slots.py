"""Verification of drafts: one forward over tokens that each row is to continue with, on a cache of slots.

Keys and values stand in slots, one a row, allocated once. A row's n-th token is in place n of its slot; the places of
a refused draft are written over by the next forward. A row that is done gives its slot up for another one.

Shapes: B rows of one forward, K columns (tokens not in the cache yet, then the draft), T places, N verified positions,
C of one chunk, H heads, D their size, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from unlearn.evaluation.drafts import Decoding

CHUNK_ELEMENTS = 2**25
"""Logits held at once: 128 MiB in fp32, whatever the vocabulary."""

LONGEST_DRAFT = 24

FORWARD_TOKENS = {"cpu": 32}
"""What a forward costs apart from its tokens, in tokens (measured: 50 for 5M parameters, less for larger models); on
other devices 256, which compute that many side by side. Not timed: what is drafted must not depend on a clock.
"""

Autocast = Callable[[], AbstractContextManager[None]]


def takes_slots(model: Any, need: int) -> bool:
    """Whether the model's cache is keys and values of all tokens, in rows of at most `need`, and nothing else, and its
    decoder takes them in any place: by position ids and a mask per row.
    """
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder or getattr(config, "alibi", False):
        return False
    parameters = inspect.signature(type(model.get_decoder()).forward).parameters
    return (
        config._attn_implementation in ("sdpa", "eager")
        and "position_ids" in parameters
        and _cache_parameter(model) in parameters
        and all(
            type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and need <= layer.sliding_window)
            for layer in DynamicCache(config=config).layers
        )
    )


def _cache_parameter(model: Any) -> str:
    """Renamed in the course of transformers 5."""
    return "cache" if "cache" in inspect.signature(type(model.get_decoder()).forward).parameters else "past_key_values"


class _Window:
    """Which slots and places the forward under way writes and reads, for the cache of every layer."""

    def __init__(self, n_slots: int, n_places: int) -> None:
        self.n_slots = n_slots
        self.n_places = n_places
        self.slots = slice(n_slots)
        self.n_read = 0
        self.place_BK = torch.empty(0, dtype=torch.long)


class _SlotLayer(DynamicLayer):
    """Keys and values of one layer: [slots, heads, places, size], the last place for what nobody will read."""

    keys: Any
    values: Any

    def __init__(self, window: _Window) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window = window

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        window = self.window
        if self.keys is None:
            self.keys, self.values = (
                states.new_zeros(window.n_slots, states.shape[1], window.n_places + 1, states.shape[3])
                for states in (key_states, value_states)
            )
        place_BK = window.place_BK.to(key_states.device)
        row_B1 = torch.arange(len(place_BK), device=key_states.device)[:, None]
        keys_BHTD, values_BHTD = self.keys[window.slots], self.values[window.slots]
        keys_BHTD[row_B1, :, place_BK] = key_states.transpose(1, 2)
        values_BHTD[row_B1, :, place_BK] = value_states.transpose(1, 2)
        return keys_BHTD[:, :, : window.n_read], values_BHTD[:, :, : window.n_read]

    def clear(self, slots: slice) -> None:
        """A masked place is multiplied by 0, which makes no number of what is none: infinities of another row."""
        if self.keys is not None:
            self.keys[slots] = 0
            self.values[slots] = 0

    def get_seq_length(self) -> int:
        return self.window.n_read


class Slots:
    """The rows being computed, each with a slot of the cache: the first of them for `rows`, in this order."""

    def __init__(
        self, model: Any, n_slots: int, n_places: int, pad_id: int, device: torch.device, autocast: Autocast
    ) -> None:
        self.model = model
        self.pad_id = pad_id
        self.device = device
        self.autocast = autocast
        self.n_slots = n_slots
        self.rows: list[Decoding] = []
        self.window = _Window(n_slots, n_places)
        config = model.config.get_text_config(decoder=True)
        self.cache = DynamicCache(config=config)
        self.layers = [_SlotLayer(self.window) for _ in self.cache.layers]
        self.cache.layers = list(self.layers)
        self.cache_name = _cache_parameter(model)
        self.eager = config._attn_implementation == "eager"
        self.forward_tokens = FORWARD_TOKENS.get(device.type, 256)

    @property
    def n_free(self) -> int:
        return self.n_slots - len(self.rows)

    def take(self, rows: Sequence[Decoding]) -> None:
        """Rows into free slots, and their prompts through the model."""
        start = len(self.rows)
        self.rows += rows
        for layer in self.layers:
            layer.clear(slice(start, len(self.rows)))
        self._verify(start, [[] for _ in rows], 0)

    def step(self) -> None:
        """One forward over all rows: at least one token more of each."""
        guesses = [row.guess(LONGEST_DRAFT) for row in self.rows]
        self._verify(0, guesses, self._draft_length(guesses))

    def free(self) -> int:
        """Let the rows go that have ended, their number; the last row moves into the gap."""
        ended = [row for row in self.rows if row.ended]
        for row in ended:
            gap, last = self.rows.index(row), len(self.rows) - 1
            self.rows[gap] = self.rows[last]
            self.rows.pop()
            if gap < last:
                for layer in self.layers:
                    layer.keys[gap], layer.values[gap] = layer.keys[last], layer.values[last]
        return len(ended)

    def _draft_length(self, guesses: Sequence[Sequence[int]]) -> int:
        """Length for which most tokens can be expected in a given time: every column is computed for all rows."""
        k_K = np.arange(1, LONGEST_DRAFT + 1)
        rate_B1 = np.array([row.rate for row in self.rows])[:, None]
        length_B1 = np.array([len(guess) for guess in guesses])[:, None]
        expected_K = (rate_B1**k_K * (k_K <= length_B1)).sum(0).cumsum()
        n = len(self.rows)
        value_K = (n + np.append(0, expected_K)) / (self.forward_tokens + n * np.append(1, 1 + k_K))
        return int(value_K.argmax())

    def _verify(self, start: int, guesses: Sequence[list[int]], length: int) -> None:
        """A forward over what the rows from `start` on have pending, and a draft of at most `length` to each."""
        rows, drafts = self.rows[start:], [guess[:length] for guess in guesses]
        feeds = [row.pending + draft for row, draft in zip(rows, drafts, strict=True)]
        end_B1 = np.array([len(feed) for feed in feeds])[:, None]
        ids_BK = np.full((len(rows), end_B1.max()), self.pad_id)
        for index, feed in enumerate(feeds):
            ids_BK[index, : len(feed)] = feed
        column_K = np.arange(end_B1.max())
        first_B1 = np.array([row.n_cached for row in rows])[:, None]
        real_BK = column_K < end_B1
        # A position behind the row's last may be none that the model has.
        position_BK = first_B1 + np.minimum(column_K, end_B1 - 1)
        self.window.slots = slice(start, start + len(rows))
        self.window.place_BK = torch.from_numpy(np.where(real_BK, position_BK, self.window.n_places)).to(self.device)
        self.window.n_read = int((first_B1 + end_B1).max())
        n_verified = [len(draft) + 1 for draft in drafts]
        picked_BK = real_BK & (column_K >= end_B1 - np.array(n_verified)[:, None])
        greedy = iter(self._greedy(*map(torch.from_numpy, (ids_BK, position_BK, picked_BK))))
        for row, guess, n in zip(rows, guesses, n_verified, strict=True):
            row.verified(guess, n - 1, [next(greedy) for _ in range(n)])

    def _greedy(self, ids_BK: Tensor, position_BK: Tensor, picked_BK: Tensor) -> list[int]:
        """The tokens that greedy decoding picks after the picked columns, row by row."""
        position_BK = position_BK.to(self.device)
        seen_B1KT = torch.arange(self.window.n_read, device=self.device) <= position_BK[:, None, :, None]
        if self.eager:
            dtype = self.model.dtype
            seen_B1KT = torch.zeros_like(seen_B1KT, dtype=dtype).masked_fill(~seen_B1KT, torch.finfo(dtype).min)
        with self.autocast():
            decoded = self.model.get_decoder()(
                input_ids=ids_BK.to(self.device),
                attention_mask=seen_B1KT,
                position_ids=position_BK,
                use_cache=True,
                **{self.cache_name: self.cache},
            )
            output = self.model.get_output_embeddings()
            hidden_ND = decoded.last_hidden_state[picked_BK.to(decoded.last_hidden_state.device)]
            chunks = hidden_ND.split(max(1, CHUNK_ELEMENTS // output.weight.shape[0]))
            return torch.cat([output(hidden_CD).argmax(-1) for hidden_CD in chunks]).tolist()
