"""The teacher-forced pass against full logits of every row by itself in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from unlearn.data.encode import Row
from unlearn.evaluation.packs import batches, pack
from unlearn.evaluation.score import CPU_CHUNK, Scored, score, statistics
from unlearn.objectives.logprobs import AnswerModel

V, D = 97, 32
SIZES: dict[str, Any] = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 4}
# Large weights, so that a token that is seen by mistake moves every number.
SIZES["initializer_range"] = 0.3


def partial_rotary(share: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}


CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, intermediate_size=64, num_key_value_heads=2),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=V, n_embd=D, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3
    ),
    "neox": lambda: transformers.GPTNeoXConfig(**SIZES, intermediate_size=64, rope_parameters=partial_rotary(0.25)),
    "phi": lambda: transformers.PhiConfig(**SIZES, intermediate_size=64, rope_parameters=partial_rotary(0.5)),
    "long window": lambda: transformers.MistralConfig(
        **SIZES, intermediate_size=64, num_key_value_heads=2, sliding_window=64
    ),
    "short window": lambda: transformers.MistralConfig(
        **SIZES, intermediate_size=64, num_key_value_heads=2, sliding_window=8
    ),
    "alibi": lambda: transformers.BloomConfig(vocab_size=V, hidden_size=D, n_layer=2, n_head=4, initializer_range=0.3),
    "local": lambda: transformers.GPTNeoConfig(
        vocab_size=V, hidden_size=D, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=12, max_position_embeddings=256, intermediate_size=64, initializer_range=0.3,
    ),
    "recurrent": lambda: transformers.MambaConfig(
        vocab_size=V, hidden_size=D, num_hidden_layers=2, state_size=4, initializer_range=0.3
    ),
}  # fmt: skip
SHARES = {"llama", "gpt2", "neox", "phi", "long window"}


def build(name: str, attention: str = "sdpa", seed: int = 0) -> Any:
    config = CONFIGS[name]()
    if name not in ("alibi", "recurrent", "local"):
        config._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def row(ids: Sequence[int], n_prompt: int) -> Row:
    return Row("id", "answer", "", "", tuple(ids), n_prompt, len(ids) - n_prompt)


def mixed() -> list[Row]:
    """Answers to one prompt, prompts behind one prefix, nested beginnings, texts without a prompt, duplicates."""
    dice = np.random.default_rng(0)

    def ids(n: int) -> list[int]:
        return [int(i) for i in dice.integers(1, V, n)]

    prefix, start = ids(12), ids(4)
    rows = []
    for n in (1, 5, 9):
        prompt = prefix + ids(n)
        rows += [row(prompt + answer, len(prompt)) for answer in (ids(3), ids(1), ids(14), start + ids(2), start)]
    text = ids(40)
    rows += [row(text, 1), row(text[:25], 1), row(text, 20), row(prefix + ids(1), 12), row([5, 7], 1), row(ids(30), 3)]
    return [*rows, rows[2], rows[15]]


def run(
    model: Any, rows: Sequence[Row], token_budget: int = 200, autocast: AbstractContextManager[None] | None = None
) -> list[Scored]:
    return score(
        AnswerModel(model),
        rows,
        token_budget=token_budget,
        pad_id=0,
        device=torch.device("cpu"),
        autocast=lambda: autocast or nullcontext(),
    )


@torch.no_grad()
def naive(model: Any, rows: Sequence[Row], dtype: torch.dtype = torch.float64) -> list[Scored]:
    """One row at a time, all logits, every statistic from its definition in float64."""
    model = copy.deepcopy(model).to(dtype)
    found = []
    for each in rows:
        logits_TV = model(input_ids=torch.tensor([each.input_ids]), use_cache=False).logits[0].double()
        logits_TV = logits_TV[each.n_prompt - 1 : -1]
        logp_TV = logits_TV - logits_TV.logsumexp(1, keepdim=True)
        p_TV = logp_TV.exp()
        mean_T = (p_TV * logp_TV).sum(1)
        std_T = (p_TV * (logp_TV - mean_T[:, None]).square()).sum(1).sqrt()
        logp_T = logp_TV[torch.arange(each.n_answer), torch.tensor(each.input_ids[each.n_prompt :])]
        found.append(Scored(*(part.numpy() for part in (logp_T, logits_TV.argmax(1), mean_T, std_T))))
    return found


def assert_close(ours: Sequence[Scored], expected: Sequence[Scored], rtol: float = 1e-4, atol: float = 2e-5) -> None:
    assert len(ours) == len(expected)
    for mine, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(mine.greedy_ids_T, other.greedy_ids_T)
        for field in ("logp_T", "vocab_mean_T", "vocab_std_T"):
            np.testing.assert_allclose(getattr(mine, field), getattr(other, field), rtol=rtol, atol=atol, err_msg=field)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_is_what_full_logits_of_each_row_give(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, rows = build(name), mixed()
    with caplog.at_level("INFO", logger="unlearn"):
        found = run(model, rows)
    assert_close(found, naive(model, rows))
    assert ("nothing is shared" in caplog.text) == (name in {"alibi", "local", "recurrent"})
    assert [len(each.logp_T) for each in found] == [each.n_answer for each in rows]
    assert {getattr(found[0], field).dtype.name for field in ("logp_T", "vocab_mean_T", "vocab_std_T")} == {"float32"}
    assert found[0].greedy_ids_T.dtype == np.int32


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_share_their_beginnings_where_the_model_allows_it(name: str) -> None:
    """Packed forwards: all of a model that passes the check, the check alone, or none where a window rules it out."""
    model, packed = build(name), []
    model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: packed.append("position_ids" in kwargs), with_kwargs=True
    )
    run(model, mixed(), token_budget=100)
    assert min(sum(packed), 2) == (2 if name in SHARES else 0 if name == "short window" else 1)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_lora_and_both_kinds_of_attention(name: str, attention: str) -> None:
    from unlearn.models.adapter import LoRA, attach

    model = attach(build(name, attention), LoRA(r=4), 0).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    expected = naive(model, mixed())
    assert_close(run(model, mixed()), expected)
    assert not np.allclose(expected[0].logp_T, naive(build(name), mixed())[0].logp_T, atol=1e-2)


@pytest.mark.parametrize("name", ["llama", "gpt2", "short window"])
def test_budget_order_and_duplicates_do_not_matter(name: str) -> None:
    model, rows = build(name), mixed()
    expected = run(model, rows)
    for token_budget in (1, 37, 64, 10_000):
        assert_close(run(model, rows, token_budget), expected)
    order = np.random.default_rng(1).permutation(len(rows))
    assert_close(run(model, [rows[k] for k in order]), [expected[k] for k in order])
    assert_close(run(model, rows + rows), expected + expected)
    assert_close([run(model, [each])[0] for each in rows], expected)
    assert run(model, []) == []


@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_bf16_models_get_fp32_statistics(way: str) -> None:
    """As from the bf16 logits of each row apart: what differs is the rounding inside the model."""
    model = build("llama")
    if way == "weights":
        model = model.to(torch.bfloat16)
        found, expected = run(model, mixed()), naive(model, mixed(), torch.bfloat16)
    else:
        found = run(model, mixed(), autocast=torch.autocast("cpu", torch.bfloat16))
        expected = naive(model, mixed())
    for mine, other in zip(found, expected, strict=True):
        assert all(np.isfinite(getattr(mine, f)).all() for f in ("logp_T", "vocab_mean_T", "vocab_std_T"))
        assert mine.logp_T.dtype == np.float32
        assert np.median(np.abs(mine.logp_T - other.logp_T)) < 0.15
        assert (mine.logp_T <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 20.0])
@pytest.mark.parametrize("offset", [0.0, 64.0])
def test_statistics_of_one_chunk(dtype: torch.dtype, scale: float, offset: float) -> None:
    """Flat and peaked rows, any constant added to all logits; the log-probs of a row sum to one within 1e-4 (M15)."""
    n, vocab = 3, 2000
    logits_CV = (torch.randn(n, vocab, generator=torch.Generator().manual_seed(0)) * scale + offset).to(dtype)
    exact_CV = logits_CV.double().log_softmax(1)
    p_CV = exact_CV.exp()
    mean_C = (p_CV * exact_CV).sum(1)
    std_C = (p_CV * (exact_CV - mean_C[:, None]).square()).sum(1).sqrt()
    argmax_C = logits_CV.float().argmax(1)
    every_M = torch.arange(n).repeat_interleave(vocab), torch.arange(vocab).repeat(n)
    logp_M, greedy_C, ours_mean_C, ours_std_C = statistics(logits_CV, *every_M)
    assert logp_M.dtype == ours_mean_C.dtype == torch.float32
    torch.testing.assert_close(logp_M.double(), exact_CV.flatten(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logp_M.view(n, vocab).double().exp().sum(1), torch.ones(n).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(ours_mean_C.double(), mean_C, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours_std_C.double(), std_C, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(greedy_C.long(), argmax_C)


def test_of_equal_logits_greedy_takes_the_first() -> None:
    """p = (1/4, 1/4, 1/4, 1/4): log p = -ln 4 everywhere, so mean -ln 4 and deviation 0."""
    logp_M, greedy_C, mean_C, std_C = statistics(torch.ones(1, 4), torch.tensor([0]), torch.tensor([3]))
    assert logp_M.item() == pytest.approx(-math.log(4))
    assert mean_C.item() == pytest.approx(-math.log(4))
    assert (greedy_C.item(), std_C.item()) == (0, 0.0)


class Largest(TorchDispatchMode):
    """The most elements that a tensor had which an operation made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_no_tensor_has_the_size_of_batch_times_time_times_vocabulary() -> None:
    """20 rows of 40 tokens behind 60 common ones, and 5000 words: 20 * 100 tokens would make 10,000,000 logits.

    A pack of width 32 is best at 60 + sqrt(60^2 + 6 * 32 * 60) = 183 tokens: 60 + 3 * 39. So there are 7 packs, each
    with one position that predicts the first answer token of all its rows.
    """
    vocab, n_rows, n_prompt, n_answer = 5000, 20, 60, 40
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SIZES, "vocab_size": vocab}, intermediate_size=64)
    ).eval()
    dice = np.random.default_rng(0)
    prompt = dice.integers(1, vocab, n_prompt).tolist()
    rows = [row(prompt + dice.integers(1, vocab, n_answer).tolist(), n_prompt) for _ in range(n_rows)]
    positions = []
    model.lm_head.register_forward_pre_hook(lambda _, args: positions.append(args[0].shape[:-1].numel()))
    with Largest() as largest:
        run(model, rows, token_budget=2000)
    assert sum(positions) == n_rows * (n_answer - 1) + 7
    assert max(positions) == CPU_CHUNK[0] == 256
    assert largest.elements <= 256 * vocab


def test_packs_hold_what_rows_have_in_common_once() -> None:
    """[1 2 3 | 4 5], [1 2 3 | 4 6 7] and [1 2 8 | 9]: the tree is 1 2 3 4 6 8, without the last tokens of the rows."""
    rows = [row([1, 2, 3, 4, 5], 3), row([1, 2, 3, 4, 6, 7], 3), row([1, 2, 8, 9], 3)]
    (found,) = pack(rows, width=32, limit=100)
    assert found.ids == [1, 2, 3, 4, 6, 8]
    assert found.depth == [0, 1, 2, 3, 4, 2]
    assert found.places == [0, 1, 2]
    assert found.paths == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 5]]
    seen = [sorted(np.flatnonzero(line).tolist()) for line in found.visible()]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 5]]
    assert [each.paths for each in pack(rows, width=0, limit=100)] == [[[0, 1, 2, 3, 4]], [[0, 1, 2, 3]], [[0, 1, 2]]]
    assert max(map(len, pack(rows, width=32, limit=4))) == 5


def test_every_row_is_in_one_batch_of_at_most_the_budget() -> None:
    rows = list({(each.input_ids, each.n_prompt): each for each in mixed()}.values())
    for width in (0, D):
        made = list(batches(pack(rows, width, 100), rows, 100, 0))
        assert sorted(place for batch in made for place in batch.places) == list(range(len(rows)))
        assert all(batch.ids_BT.numel() <= 100 for batch in made)


def test_scoring_leaves_the_random_states_alone() -> None:
    model = build("llama")
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    run(model, mixed())
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numbers).all()  # type: ignore[index]
