"""The generation pass: what the model answers of its own accord, greedily.

Greedy decoding needs one forward per token only as long as nobody guesses what comes. Here somebody does: the
teacher-forced pass has shown how the continuation begins, and from there on drafts are copied from what stood there
before. One forward verifies a whole draft: the longest beginning that greedy decoding would have picked is kept, and
the token that it picks after it (speculative decoding, 2211.17192, with a lookup in place of the second model). So the
tokens are those of plain greedy decoding, up to rounding where two logits are equal to the last bits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from unlearn.console import progress
from unlearn.evaluation.drafts import Decoding, until
from unlearn.evaluation.slots import Autocast, Slots, takes_slots


@dataclass(frozen=True)
class Ask:
    """One prompt to be continued greedily.

    prompt_ids      tokens of the prompt, BOS included
    known_ids       how greedy decoding is known to begin, from a teacher-forced pass over the reference answer: its
                    tokens up to the first that greedy decoding would not pick, and there the one that it would; may
                    hold the end marker, may be longer than max_new_tokens, may be empty
    reference_ids   the reference answer, a source of drafts
    max_new_tokens  length limit
    stop            the text is cut at the first of these strings
    lead            what introduces an answer ("Answer:") and is removed from its start
    """

    prompt_ids: Sequence[int]
    known_ids: Sequence[int]
    reference_ids: Sequence[int]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    lead: str = ""


@dataclass(frozen=True)
class Continuation:
    """What a prompt was continued with.

    text       cut at the end marker and at the first stop string, blanks around it and the lead removed
    hit_limit  whether the length limit ended it
    ids        the generated tokens, the end marker included where it came; what follows a stop string may be missing
    """

    text: str
    hit_limit: bool
    ids: tuple[int, ...]


@torch.no_grad()
def generate(
    model: Any,
    tokenizer: Any,
    asks: Sequence[Ask],
    *,
    end_id: int,
    pad_id: int,
    token_budget: int,
    device: torch.device,
    autocast: Autocast,
    title: str = "generating",
) -> list[Continuation]:
    """Greedy continuations by verified drafts; the model must be in eval mode.

    At most `token_budget` tokens are in the cache, prompts and what may be generated together, or one row. A model
    whose cache is more than keys and values of all tokens is asked by `plain`.
    """
    model = _without_adapter_wrapper(model)
    stops = _Stops(tokenizer)
    rows = [_Row(ask, end_id, stops) for ask in asks]
    open_rows = [row for row in rows if not row.ended]
    if not takes_slots(model, max((row.need for row in open_rows), default=0)):
        return plain(
            model,
            tokenizer,
            asks,
            end_id=end_id,
            pad_id=pad_id,
            token_budget=token_budget,
            device=device,
            autocast=autocast,
            title=title,
        )
    with progress() as bars:
        bar = bars.add_task(title, total=len(rows), completed=len(rows) - len(open_rows), note="")
        for group in _groups(open_rows):
            n_slots = min(len(group), max(1, token_budget // group[0].need))
            slots = Slots(model, n_slots, group[0].need, pad_id, device, autocast)
            waiting = deque(group)
            while waiting or slots.rows:
                # A few at a time: a forward over one prompt costs nearly as much as one over several.
                if waiting and slots.n_free >= min(len(waiting), math.ceil(n_slots / 4)):
                    slots.take([waiting.popleft() for _ in range(min(slots.n_free, len(waiting)))])
                else:
                    slots.step()
                bars.update(bar, advance=slots.free())
    return [_continuation(tokenizer, row.new, end_id, row.ask) for row in rows]


@torch.no_grad()
def plain(
    model: Any,
    tokenizer: Any,
    asks: Sequence[Ask],
    *,
    end_id: int,
    pad_id: int,
    token_budget: int,
    device: torch.device,
    autocast: Autocast,
    title: str = "generating",
) -> list[Continuation]:
    """The same through the library's own greedy decoding: a token a forward, prompts padded on the left."""
    model = _without_adapter_wrapper(model)
    found: list[Continuation] = [Continuation("", False, ())] * len(asks)
    order = deque(sorted(range(len(asks)), key=lambda i: (-asks[i].max_new_tokens, -len(asks[i].prompt_ids))))
    with progress() as bars, _without_defaults(model):
        bar = bars.add_task(title, total=len(asks), note="")
        while order:
            limit, width = asks[order[0]].max_new_tokens, 0
            places: list[int] = []
            while order:
                wider = max(width, len(asks[order[0]].prompt_ids))
                if places and (len(places) + 1) * (wider + limit) > token_budget:
                    break
                width = wider
                places.append(order.popleft())
            prompts = [list(asks[place].prompt_ids) for place in places]
            ids_BT = torch.tensor([[pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
            mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            settings = GenerationConfig(
                do_sample=False, max_new_tokens=limit, eos_token_id=end_id, pad_token_id=pad_id, use_cache=True
            )
            with autocast():
                out_BT = model.generate(
                    input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device), generation_config=settings
                )
            for place, new in zip(places, out_BT[:, width:].tolist(), strict=True):
                found[place] = _continuation(
                    tokenizer, until(end_id, new, asks[place].max_new_tokens), end_id, asks[place]
                )
            bars.update(bar, advance=len(places))
    return found


def _without_adapter_wrapper(model: Any) -> Any:
    """The model itself, its adapters still in its layers.

    peft's own `generate` copies the wrapper's generation config, hidden below, over the model's for good.
    """
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _without_defaults(model: Any) -> Iterator[None]:
    """Hide the generation config that came with the weights: the library fills what ours leaves open from it."""
    published, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = published


def _continuation(tokenizer: Any, new: Sequence[int], end_id: int, ask: Ask) -> Continuation:
    """Cut at the end marker, then at the first stop string, so that nothing around the answer is scored."""
    ended = end_id in new
    text = _decode(tokenizer, new[: new.index(end_id)] if ended else new)
    text = text.lstrip().removeprefix(ask.lead.strip()).lstrip()
    cuts = [place for mark in ask.stop if (place := text.find(mark)) >= 0]
    hit_limit = not ended and not cuts and len(new) >= ask.max_new_tokens
    return Continuation((text[: min(cuts)] if cuts else text).rstrip(), hit_limit, tuple(new))


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)  # type: ignore[no-any-return]


def _groups(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Rows whose slots may be of one size, the longest first: none leaves more than half of its slot empty."""
    ordered = deque(sorted(rows, key=lambda row: (-row.need, -len(row.pending))))
    while ordered:
        need = ordered[0].need
        yield [ordered.popleft() for _ in range(sum(2 * row.need > need for row in ordered))]


class _Row(Decoding):
    """An ask on its way. It also ends at a stop string, as soon as no later token can move the cut."""

    def __init__(self, ask: Ask, end_id: int, stops: _Stops) -> None:
        self.ask = ask
        self.stops = stops
        self.stopped = False
        super().__init__(ask.prompt_ids, ask.known_ids, ask.reference_ids, ask.max_new_tokens, end_id)

    @property
    def ended(self) -> bool:
        return self.stopped or super().ended

    def extend(self, tokens: Sequence[int]) -> None:
        before = len(self.new)
        super().extend(tokens)
        self.stopped = self.stops.found(self.ask, self.new, before)


class _Stops:
    """Looks for stop strings in what comes token by token."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.texts: dict[int, str] = {}

    def found(self, ask: Ask, new: Sequence[int], before: int) -> bool:
        """Whether the text of `new` is cut for good, of which only the tokens from `before` on are new.

        It looks at the whole text only where a token came with which a stop string may end, and for as many tokens
        after it as may settle it. One that is overlooked costs time; the text is cut all the same.
        """
        if not ask.stop:
            return False
        unsettled = max(map(len, ask.stop)) + len(ask.lead)
        return any(self._may_end(token, ask.stop) for token in new[max(0, before - unsettled) :]) and self._in(ask, new)

    def _may_end(self, token: int, stop: tuple[str, ...]) -> bool:
        text = self.texts.get(token)
        if text is None:
            text = self.texts[token] = _decode(self.tokenizer, [token])
        # A part of a letter of several tokens decodes to the replacement character.
        return "\ufffd" in text or any(mark[-1] in text for mark in stop)

    def _in(self, ask: Ask, new: Sequence[int]) -> bool:
        text, lead = _decode(self.tokenizer, new).rstrip("\ufffd").lstrip(), ask.lead.strip()
        if lead.startswith(text):
            return False
        text = text.removeprefix(lead).lstrip()
        cuts = [place for mark in ask.stop if (place := text.find(mark)) >= 0]
        # A longer stop string that is not complete yet may begin before a shorter one.
        return bool(cuts) and min(cuts) + max(map(len, ask.stop)) <= len(text)
