"""Greedy generation: drafts change the number of forwards and nothing else.

Exact means equal token by token in fp32. Drafts are verified several tokens at a time and prompts are padded on the
other side, so sums are rounded in another order; where two logits are equal to the last bits, that could turn a
choice. The models here, with their seeds, have no such pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch

from tests.conftest import SHARED, needs_shared
from tests.helpers import tiny_model, tiny_setup
from unlearn.evaluation import generate as module
from unlearn.evaluation.generate import Ask, Continuation, generate, plain
from unlearn.evaluation.slots import LONGEST_DRAFT, takes_slots

STORIES = SHARED / "models" / "stories260K"
VOCABULARY = 400


def run(function: Any, model: Any, asks: Sequence[Ask], end_id: int, budget: int = 6000, **options: Any) -> Any:
    tokenizer = options.pop("tokenizer", None) or tiny_setup()[2]
    options = {"device": torch.device("cpu"), "autocast": nullcontext, "pad_id": 0} | options
    return function(model, tokenizer, asks, end_id=end_id, token_budget=budget, **options)


def asked(prompt: Sequence[int], reference: Sequence[int] = (), limit: int = 40, **options: Any) -> Ask:
    return Ask(tuple(prompt), (), tuple(reference), limit, **options)


def known(model: Any, ask: Ask) -> tuple[int, ...]:
    """What one teacher-forced forward over prompt and reference tells."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*ask.prompt_ids, *ask.reference_ids]])).logits[0]
    greedy = logits_TV[len(ask.prompt_ids) - 1 : -1].argmax(-1).tolist()
    right = next((k for k, token in enumerate(ask.reference_ids) if token != greedy[k]), len(ask.reference_ids))
    return (*ask.reference_ids[:right], *greedy[right : right + 1])


def with_known(model: Any, asks: Sequence[Ask]) -> list[Ask]:
    """Of three asks one knows nothing, one a part and one everything that a teacher-forced pass tells."""
    told = [known(model, ask) if place % 3 else () for place, ask in enumerate(asks)]
    kept = [ids[: len(ids) // 2] if place % 3 == 1 else ids for place, ids in enumerate(told)]
    return [replace(ask, known_ids=ids) for ask, ids in zip(asks, kept, strict=True)]


@contextmanager
def forwards(model: Any) -> Iterator[list[int]]:
    """Positions of each forward through the decoder."""
    seen: list[int] = []
    note = lambda module, args, options: seen.append(options["input_ids"].numel())  # noqa: E731
    hook = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def random_asks(n: int, seed: int = 0, **options: Any) -> list[Ask]:
    """Prompts of 1 to 24 random tokens, references that share runs with them, limits of 1 to 40."""
    random = torch.Generator().manual_seed(seed)
    asks = []
    for place in range(n):
        prompt = torch.randint(3, VOCABULARY, (1 + place % 24,), generator=random).tolist()
        reference = [*prompt[-5:], *torch.randint(3, VOCABULARY, (6,), generator=random).tolist()]
        asks.append(asked(prompt, reference, 1 + (7 * place) % 40, **options))
    return asks


def same(model: Any, asks: Sequence[Ask], end_id: int, **options: Any) -> list[Continuation]:
    """Drafted and plain decoding side by side; the drafted ids may lack what follows a stop string."""
    drafted = run(generate, model, asks, end_id, **options)
    yardstick = run(plain, model, asks, end_id, **options)
    for ask, ours, theirs in zip(asks, drafted, yardstick, strict=True):
        assert (ours.text, ours.hit_limit) == (theirs.text, theirs.hit_limit)
        assert ours.ids == (theirs.ids[: len(ours.ids)] if ask.stop else theirs.ids)
    return drafted  # type: ignore[no-any-return]


def frequent(continuations: Sequence[Continuation]) -> int:
    """The token that most continuations contain behind their first: an end marker that random models do pick."""
    held = [token for c in continuations for token in set(c.ids[1:])]
    return max(sorted(set(held)), key=held.count)


# ---- models


def architectures() -> dict[str, Any]:
    from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig, PhiConfig

    common: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {
        # Exactly as many positions as the longest prompt and its continuation need.
        "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **common),
        "gpt_neox": GPTNeoXConfig(rotary_pct=0.25, **shape, **common),
        "phi": PhiConfig(partial_rotary_factor=0.5, **shape, **common),
        "grouped keys": LlamaConfig(num_key_value_heads=2, **shape, **common),
        "wide window": MistralConfig(num_key_value_heads=2, sliding_window=64, **shape, **common),
        "narrow window": MistralConfig(num_key_value_heads=2, sliding_window=16, **shape, **common),
    }


def random_model(name: str, attention: str = "sdpa") -> Any:
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Larger weights than usual: the choices of a model are to depend on what it has read.
        model = AutoModelForCausalLM.from_config(architectures()[name], attn_implementation=attention)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data.normal_(std=0.3)
    return model.eval()


# ---- equal to plain greedy decoding


def test_random_model_500_prompts_with_end_marker_stop_strings_and_limits() -> None:
    model = random_model("grouped keys")
    asks = random_asks(500)
    free = run(plain, model, asks, end_id=2)
    end_id = frequent(free)
    ended = same(model, with_known(model, asks), end_id)
    assert 50 < sum(c.ids[-1] == end_id for c in ended) < 450
    text = "".join(c.text for c in free)
    marks = tuple(sorted({text[k : k + 2] for k in range(0, len(text) - 2, len(text) // 6)}))
    stopped = same(model, with_known(model, random_asks(250, stop=marks)), end_id)
    cut = sum(not c.hit_limit and c.ids[-1] != end_id for c in stopped)
    assert cut > 25


@cache
def memorised() -> Any:
    """stories260K, briefly trained on real questions: some answers it knows whole, some in part."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not STORIES.is_dir():
        pytest.skip(f"the small published model is not at {STORIES}")
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    lines = (SHARED / "tofu" / "forget10.json").read_text().splitlines()
    asks = []
    for place, line in enumerate(lines):
        pair = json.loads(line)
        prompt = [1, *tokenizer(f"Question: {pair['question']}\n", add_special_tokens=False).input_ids]
        answer = tokenizer(f"Answer: {pair['answer']}", add_special_tokens=False).input_ids
        asks.append(asked(prompt, [*answer, 2], 1 + place % 40, lead="Answer:"))
    # The shortest come first and are learned.
    asks.sort(key=lambda ask: len(ask.prompt_ids) + len(ask.reference_ids))
    del asks[120:]
    asks[:6] = [replace(ask, max_new_tokens=100) for ask in asks[:6]]
    model = AutoModelForCausalLM.from_pretrained(STORIES)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    rows = [torch.tensor([*ask.prompt_ids, *ask.reference_ids]) for ask in asks[:6]]
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    for _ in range(50):
        loss = model(input_ids=ids_BT, attention_mask=(labels_BT >= 0).long(), labels=labels_BT).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), tokenizer, asks


@needs_shared
def test_partly_memorised_answers_to_real_questions() -> None:
    model, tokenizer, asks = memorised()
    told = [known(model, ask) for ask in asks]
    assert sum(ids == ask.reference_ids for ids, ask in zip(told, asks, strict=True)) >= 4
    assert sum(1 < len(ids) < len(ask.reference_ids) for ids, ask in zip(told, asks, strict=True)) > 60
    same(model, with_known(model, asks), end_id=2, tokenizer=tokenizer)
    stops = [replace(ask, max_new_tokens=40, stop=(". ", "\n", " is")) for ask in asks[::3]]
    same(model, with_known(model, stops), end_id=2, tokenizer=tokenizer)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi", "grouped keys", "wide window"])
def test_every_kind_of_position(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(name, attention)
    asks = with_known(model, random_asks(48))
    yardstick = run(plain, model, asks, end_id=2)
    monkeypatch.setattr(module, "plain", None)
    assert run(generate, model, asks, end_id=2, budget=500) == yardstick


def test_a_cache_that_forgets_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("narrow window")
    used: list[str] = []

    def noted(*args: Any, **options: Any) -> list[Continuation]:
        used.append("plain")
        return plain(*args, **options)

    monkeypatch.setattr(module, "plain", noted)
    asks = random_asks(12)
    assert run(generate, model, asks, end_id=2) == run(plain, model, asks, end_id=2)
    assert used == ["plain"]


def test_models_that_take_no_slots_are_told() -> None:
    from transformers import (
        AutoModelForCausalLM,
        BloomConfig,
        FalconConfig,
        MambaConfig,
        T5Config,
        T5ForConditionalGeneration,
    )

    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    for config in (
        BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=2),
        FalconConfig(**small, alibi=True),
        MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2),
    ):
        assert not takes_slots(AutoModelForCausalLM.from_config(config), 8), type(config)
    whole = T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    assert not takes_slots(whole, 8)
    assert takes_slots(random_model("gpt2"), 8)


def test_an_adapter_stays_in_and_the_generation_config_is_left_as_it_was() -> None:
    from unlearn.models.adapter import LoRA, attach, merged

    model = tiny_model()
    asks = random_asks(24)
    bare = run(plain, model, asks, end_id=2)
    model.generation_config.repetition_penalty = 5.0
    adapted = attach(model, LoRA(), 0)
    assert run(generate, adapted, asks, end_id=2) == bare  # B = 0 at the start
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    assert same(adapted, asks, end_id=2) != bare
    assert merged(adapted).generation_config.repetition_penalty == 5.0


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_bf16_may_differ_in_few(weights: torch.dtype) -> None:
    model = random_model("grouped keys").to(weights)
    asks = random_asks(120)
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16) if weights == torch.float32 else nullcontext
    drafted = run(generate, model, asks, end_id=2, autocast=autocast)
    yardstick = run(plain, model, asks, end_id=2, autocast=autocast)
    differ = sum(ours.ids != theirs.ids for ours, theirs in zip(drafted, yardstick, strict=True))
    assert differ <= 40, f"{differ} of {len(asks)} continuations differ in bf16"


# ---- what it costs and what it leaves alone


def test_the_batch_does_not_matter() -> None:
    model = random_model("grouped keys")
    asks = with_known(model, random_asks(60))
    together = run(generate, model, asks, end_id=2, budget=100_000)
    assert run(generate, model, asks[::2], end_id=2, budget=1) == together[::2]
    assert run(generate, model, asks, end_id=2, budget=500) == together
    assert run(generate, model, asks[::-1], end_id=2)[::-1] == together


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    model = random_model("grouped keys")
    model.get_input_embeddings().weight.data[VOCABULARY - 1] = torch.inf
    # The longest come first: the others take over their slots.
    asks = [asked([VOCABULARY - 1] * 40, limit=20) for _ in range(8)]
    asks += [asked([5 + k] * (1 + k), limit=35) for k in range(20)]
    alone = [run(generate, model, [ask], end_id=2)[0] for ask in asks]
    assert run(generate, model, asks, end_id=2, budget=6 * 60) == alone
    assert len({c.ids for c in alone}) > 10


def test_what_is_known_to_the_end_needs_no_forward() -> None:
    model, (_, _, tokenizer, _) = tiny_model(), tiny_setup()
    answer = tokenizer("Hina Ameen.\n\nQuestion", add_special_tokens=False).input_ids
    asks = [
        Ask((1, 5), (*answer, 2), (*answer, 2), 100),
        Ask((1, 5), (*answer, 2, 7), answer, 100),
        Ask((1, 5), answer, answer, len(answer)),
        Ask((1, 5), answer, answer, 2),
        Ask((1, 5), answer, answer, 100, stop=("\n\n",)),
    ]
    with forwards(model) as seen:
        found = run(generate, model, asks, end_id=2)
    assert seen == []
    assert [c.text for c in found] == [*["Hina Ameen.\n\nQuestion"] * 3, tokenizer.decode(answer[:2]), "Hina Ameen."]
    assert [c.hit_limit for c in found] == [False, False, True, True, False]
    assert found[1].ids == (*answer, 2)


@needs_shared
def test_a_memorised_answer_needs_no_forward_and_a_known_draft_one() -> None:
    model, tokenizer, asks = memorised()
    ask = next(ask for ask in asks if known(model, ask) == ask.reference_ids)
    whole = replace(ask, known_ids=ask.reference_ids)
    with forwards(model) as seen:
        (found,) = run(generate, model, [whole], end_id=2, tokenizer=tokenizer)
        assert seen == []
        assert found.ids == tuple(ask.reference_ids)
        run(generate, model, [ask], end_id=2, tokenizer=tokenizer)
    assert len(seen) <= len(ask.reference_ids) / 3


def test_finished_rows_leave_and_a_loop_is_one_long_draft() -> None:
    model = tiny_model()  # falls into a loop after a few tokens, as small random models do
    with forwards(model) as alone:
        run(generate, model, [asked([5, 6, 7], limit=400)], end_id=2)
    assert len(alone) < 400 / 8
    asks = [asked([5 + k] * 60, limit=1 if k % 10 else 50) for k in range(20)]
    with forwards(model) as seen:
        run(generate, model, asks, end_id=2, budget=20 * 110)
    assert seen[0] == 20 * 60
    assert max(seen[1:]) <= 2 * (1 + LONGEST_DRAFT)


def test_random_state_and_tokenizer_are_left_alone() -> None:
    _, _, tokenizer, _ = tiny_setup()
    before = torch.get_rng_state(), tokenizer.padding_side, dict(tokenizer.special_tokens_map)
    run(generate, tiny_model(), random_asks(8), end_id=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (tokenizer.padding_side, dict(tokenizer.special_tokens_map)) == before[1:]


def test_defaults_that_came_with_the_weights_are_hidden_and_put_back() -> None:
    asks = random_asks(8)
    bare = run(plain, tiny_model(), asks, end_id=2)
    model = tiny_model()
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.no_repeat_ngram_size = 1
    assert run(plain, model, asks, end_id=2) == run(generate, model, asks, end_id=2) == bare
    assert model.generation_config.repetition_penalty == 5.0


# ---- where an answer ends


@pytest.mark.parametrize(
    ("answer", "options", "text", "hit_limit"),
    [
        ("Hina Ameen.</s>", {}, "Hina Ameen.", False),
        ("Hina Ameen and", {}, "Hina Ameen and", True),
        ("Hina Ameen\n\nQuestion: Where?", {"stop": ("\n\n",)}, "Hina Ameen", False),
        ("Answer: Hina Ameen", {"lead": "Answer: "}, "Hina Ameen", True),
        ("\nHina Ameen\nNext", {"stop": ("\n",)}, "Hina Ameen", False),
    ],
)
def test_where_an_answer_ends(answer: str, options: dict[str, Any], text: str, hit_limit: bool) -> None:
    tokenizer = tiny_setup()[2]
    new = tokenizer(answer, add_special_tokens=False).input_ids
    found = module._continuation(tokenizer, new, 2, asked([1], limit=len(new), **options))
    assert found == Continuation(text, hit_limit, tuple(new))


@pytest.mark.parametrize(
    ("text", "stop", "lead", "stopped"),
    [
        ("Hina", ("\n",), "", False),
        ("Hina\n", ("\n",), "", True),
        ("\n\nHina", ("\n",), "", False),  # blanks before the answer are no stop
        ("Hina.", (".", "a. Next"), "", False),  # the longer one may yet begin before the shorter
        ("Hina. Then,", (".", "a. Next"), "", True),
        ("The ans", ("s",), "The answer:", False),  # the lead may yet become whole, and be removed
        ("The answer: yes", ("s",), "The answer:", True),
        ("Zoë", ("ë",), "", True),
        ("Zoë", ("é",), "", False),
    ],
)
def test_a_row_ends_where_no_later_token_can_move_the_cut(
    text: str, stop: tuple[str, ...], lead: str, stopped: bool
) -> None:
    tokenizer = tiny_setup()[2]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    row = module._Row(asked([1], limit=100, stop=stop, lead=lead), 2, module._Stops(tokenizer))
    found = []
    for token in ids:
        row.extend([token])
        found.append(row.ended)
    assert found[-1] == stopped
    assert not any(found[:-1])
