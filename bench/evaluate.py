"""How much the evaluation pass saves, against doing the same in the plain way, on real TOFU.

    python bench/evaluate.py ../shared/data/tofu --vocab 4096 32000

Both sides score the whole TOFU suite of forget10 (utility, truth ratios, ROUGE, memorisation, the four attacks,
paraphrased questions) with the same small Llama. The plain side makes one pass over the data for each metric, 32 rows
at a time in the order of the file, takes the logits of all positions, and generates with transformers. Each side runs
in a process of its own, one after the other, so that peak memory can be told apart. Printed are seconds, peak memory
and the largest difference of a metric; ratios are what counts, the seconds are this machine's.

`--epochs` trains the model on the rows first, as a target knows them: with 0 it is random, and its answers run on to
the length limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unlearn.config import DataConfig, FinetuneConfig, FormatConfig, LimitConfig, SuiteConfig, TinyConfig
from unlearn.data import tofu
from unlearn.data.benchmark import Benchmark
from unlearn.data.encode import Encoder, Row
from unlearn.evaluation import formulas, scores
from unlearn.evaluation.metrics import evaluate
from unlearn.models import load

FORMAT = FormatConfig(prompt="Question: {question}\nAnswer:", separator=" ", stop=["\n"])
SHAPE = {"hidden_size": 256, "layers": 4, "heads": 4}
WINDOW = 512
BATCH = 32  # rows of a batch of the plain side, as open-unlearning has them
Passes = dict[str, float]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    if args.side:
        _one_side(args)
        return
    for vocab in args.vocab:
        with tempfile.TemporaryDirectory() as folder:
            _make_model(args, vocab, Path(folder))
            found = {side: _in_a_process(side, vocab, folder) for side in ("plain", "fast")}
        _report(vocab, found["plain"], found["fast"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder with TOFU's files")
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 32000])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, help="shorten every set to so many rows")
    parser.add_argument("--side", choices=("plain", "fast"), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


def _benchmark(args: argparse.Namespace) -> Benchmark:
    names = ("forget", "retain", "holdout", "real_authors", "world_facts")
    limit = LimitConfig(**dict.fromkeys(names, args.rows))
    return tofu.load(DataConfig(name="tofu", source=args.data, hub_id="", split="forget10", limit=limit))


def _make_model(args: argparse.Namespace, vocab: int, folder: Path) -> None:
    """A Llama with an output layer over `vocab` tokens; the tokenizer has as many of them as the texts give."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from unlearn.training.finetune import finetune

    benchmark = _benchmark(args)
    tokenizer = load.tiny_tokenizer(TinyConfig(vocab_size=min(vocab, 4096)), benchmark)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocab,
        hidden_size=SHAPE["hidden_size"],
        intermediate_size=8 * SHAPE["hidden_size"] // 3,
        num_hidden_layers=SHAPE["layers"],
        num_attention_heads=SHAPE["heads"],
        num_key_value_heads=SHAPE["heads"],
        max_position_embeddings=WINDOW,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(shape)
    encoder = Encoder(tokenizer, FORMAT, WINDOW)
    known = [*benchmark.evaluated["forget"].examples, *benchmark.evaluated["retain"].examples]
    if args.epochs:
        settings = FinetuneConfig(epochs=args.epochs, lr=1e-3, batch_size=16)
        finetune(model, encoder.answers(known), settings, 0, torch.device("cpu"), encoder.pad_id, "training")
    load.save(model, tokenizer, folder)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"vocabulary {vocab}: {count / 1e6:.1f} M parameters, {args.epochs} epochs on {len(known)} rows", flush=True)


def _in_a_process(side: str, vocab: int, folder: str) -> dict[str, Any]:
    words = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--model", folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side}, vocabulary {vocab}:\n{done.stderr}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _one_side(args: argparse.Namespace) -> None:
    """Evaluate, and print what was found as one line of JSON."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(args.model).eval()
    encoder = Encoder(AutoTokenizer.from_pretrained(args.model), FORMAT, WINDOW)
    benchmark = _benchmark(args)
    rows = {name: encoder.variants(each.examples) for name, each in benchmark.evaluated.items()}
    parts: Passes = {}
    before = _peak()
    with torch.inference_mode():
        found = (_plain if args.side == "plain" else _fast)(model, encoder, benchmark, rows, parts)
    with _timed(parts, "metrics"):
        values = evaluate(found, found, intervals=False)
    metrics = {name: value["value"] for name, value in values.items()}
    print(json.dumps({"parts": parts, "before": before, "peak": _peak(), "metrics": metrics}))


@contextmanager
def _timed(parts: Passes, name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    parts[name] = parts.get(name, 0.0) + time.perf_counter() - began


def _peak() -> int:
    """Peak resident memory of this process in bytes.

    From /proc where there is one: a child's ru_maxrss begins with that of the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _fast(
    model: Any, encoder: Encoder, benchmark: Benchmark, rows: dict[str, list[Row]], parts: Passes
) -> scores.Scores:
    from unlearn.evaluation.suite import Suite

    config = SuiteConfig(name="benchmark", canary=0)
    suite = Suite(config, encoder, benchmark.evaluated, rows, torch.device("cpu"), nullcontext)
    with _timed(parts, "passes"):
        measured = suite.run(model, "bench")
    with _timed(parts, "scores"):
        return scores.from_records(measured.records)


Statistic = Callable[[torch.Tensor, torch.Tensor, Row], Any]
"""From the log-probabilities [T, V] and the labels [T] of one answer to what a metric needs of it."""


def _nll(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> float:
    return -float(logp_TV.gather(1, labels_T[:, None]).mean())


def _zlib(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> float:
    return formulas.zlib_score(_nll(logp_TV, labels_T, row), row.answer)


def _content(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    return logp_TV[row.n_lead : row.n_content], labels_T[row.n_lead : row.n_content]


def _exact_memorization(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> float | None:
    logp_TV, labels_T = _content(logp_TV, labels_T, row)
    return formulas.exact_memorization((logp_TV.argmax(-1) == labels_T).numpy())


def _extraction_strength(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> float | None:
    logp_TV, labels_T = _content(logp_TV, labels_T, row)
    return formulas.extraction_strength((logp_TV.argmax(-1) == labels_T).numpy())


def _min_k(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> float | None:
    logp_TV, labels_T = _content(logp_TV, labels_T, row)
    return formulas.min_k(logp_TV.gather(1, labels_T[:, None])[:, 0].numpy())


def _min_k_plus_plus(logp_TV: torch.Tensor, labels_T: torch.Tensor, row: Row) -> float | None:
    logp_TV, labels_T = _content(logp_TV, labels_T, row)
    p_TV = logp_TV.exp()
    mean_T = (p_TV * logp_TV).sum(-1)
    variance_T = (p_TV * logp_TV.square()).sum(-1) - mean_T.square()
    logp_T = logp_TV.gather(1, labels_T[:, None])[:, 0]
    return formulas.min_k_plus_plus(logp_T.numpy(), mean_T.numpy(), variance_T.clamp_min(0).sqrt().numpy())


def _plain(
    model: Any, encoder: Encoder, benchmark: Benchmark, rows: dict[str, list[Row]], parts: Passes
) -> scores.Scores:
    """One pass for each metric and set."""
    found: dict[str, dict[str, dict[str, Any]]] = {
        name: {row.id: {"id": row.id} for row in rows[name]} for name in rows
    }

    def measure(name: str, score: str, kind: str, statistic: Statistic) -> None:
        chosen = [row for row in rows[name] if row.kind.startswith(kind) and (kind != "paraphrase" or row.kind == kind)]
        with _timed(parts, "passes"):
            for row, value in zip(chosen, _pass(model, encoder, chosen, statistic), strict=True):
                _put(found[name][row.id], score, value)

    for name in rows:
        measure(name, "nll", "answer", _nll)
        if name == "holdout":
            continue
        measure(name, "nll_paraphrase", "paraphrase" if name in ("forget", "retain") else "answer", _nll)
        measure(name, "nll_perturbed", "perturbed_", _nll)
        if name in ("forget", "retain"):
            measure(name, "paraphrased_nll", "paraphrased_question", _nll)
    measure("forget", "exact_memorization", "answer", _exact_memorization)
    measure("forget", "extraction_strength", "answer", _extraction_strength)
    for name in ("forget", "holdout"):
        measure(name, "nll", "answer", _nll)  # the LOSS attack
        measure(name, "zlib", "answer", _zlib)
        measure(name, "min_k", "answer", _min_k)
        measure(name, "min_k_plus_plus", "answer", _min_k_plus_plus)
    for name, each in benchmark.evaluated.items():
        for kind in ("answer", "paraphrased_question"):
            asked = [row for row in rows[name] if row.kind == kind]
            if each.max_new_tokens is None or not asked:
                continue
            with _timed(parts, "generation"):
                texts = _generate(model, encoder, asked, each.max_new_tokens)
            with _timed(parts, "scores"):
                _rouge(found[name], asked, texts, kind)
    with _timed(parts, "scores"):
        return scores.Scores(
            {name: {id: _complete(fields) for id, fields in each.items()} for name, each in found.items()}
        )


def _put(fields: dict[str, Any], score: str, value: Any) -> None:
    if score == "nll_perturbed":
        fields[score] = (*fields.get(score, ()), value)
    elif score == "paraphrased_nll":
        fields["paraphrased_prob"] = formulas.prob(value)
    else:
        fields[score] = value


def _pass(model: Any, encoder: Encoder, rows: Sequence[Row], statistic: Statistic) -> Iterator[Any]:
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        width = max(len(row.input_ids) for row in batch)
        ids_BT = torch.tensor([[*row.input_ids, *[encoder.pad_id] * (width - len(row.input_ids))] for row in batch])
        mask_BT = torch.tensor([[1] * len(row.input_ids) + [0] * (width - len(row.input_ids)) for row in batch])
        logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
        logp_BTV = logits_BTV.float().log_softmax(-1)
        for index, row in enumerate(batch):
            answer = slice(row.n_prompt - 1, len(row.input_ids) - 1)
            yield statistic(logp_BTV[index, answer], torch.tensor(row.input_ids[row.n_prompt :]), row)


def _generate(model: Any, encoder: Encoder, rows: Sequence[Row], max_new_tokens: int) -> list[tuple[str, bool]]:
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=encoder.end, pad_token_id=encoder.pad_id
    )
    texts = []
    for start in range(0, len(rows), BATCH):
        prompts = [list(row.input_ids[: row.n_prompt]) for row in rows[start : start + BATCH]]
        width = max(map(len, prompts))
        ids_BT = torch.tensor([[encoder.pad_id] * (width - len(prompt)) + prompt for prompt in prompts])
        mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=settings)
        texts += [_cut(encoder, new, max_new_tokens) for new in out_BT[:, width:].tolist()]
    return texts


def _cut(encoder: Encoder, new: list[int], max_new_tokens: int) -> tuple[str, bool]:
    hit_limit = encoder.end not in new and len(new) >= max_new_tokens
    if encoder.end in new:
        new = new[: new.index(encoder.end)]
    text = encoder.tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False).lstrip()
    cuts = [place for mark in FORMAT.stop if (place := text.find(mark)) >= 0]
    return (text[: min(cuts)].rstrip(), False) if cuts else (text.rstrip(), hit_limit)


def _rouge(found: dict[str, dict[str, Any]], rows: Sequence[Row], texts: Sequence[Any], kind: str) -> None:
    for row, (text, hit_limit) in zip(rows, texts, strict=True):
        rouge = formulas.rouge(row.answer, text)
        if rouge is None:
            continue
        if kind == "paraphrased_question":
            found[row.id]["paraphrased_rouge_l_recall"] = rouge.rouge_l_recall
        else:
            found[row.id] |= {**rouge._asdict(), "generated": text, "answer": row.answer, "hit_limit": hit_limit}


def _complete(fields: dict[str, Any]) -> scores.Row:
    return scores.complete(fields)


def _report(vocab: int, plain: dict[str, Any], fast: dict[str, Any]) -> None:
    total = {side: sum(found["parts"].values()) for side, found in (("plain", plain), ("fast", fast))}
    print(f"  {'':12}{'plain':>10}{'fast':>10}{'ratio':>8}")
    for name in dict.fromkeys([*plain["parts"], *fast["parts"]]):
        seconds = [found["parts"].get(name) for found in (plain, fast)]
        print(f"  {name:12}" + "".join(f"{'' if each is None else f'{each:.1f} s':>10}" for each in seconds))
    print(f"  {'all':12}{total['plain']:>8.1f} s{total['fast']:>8.1f} s{total['plain'] / total['fast']:>8.1f}")
    mib = [found["peak"] / 2**20 for found in (plain, fast)]
    above = [(found["peak"] - found["before"]) / 2**20 for found in (plain, fast)]
    print(f"  {'peak':12}{mib[0]:>6.0f} MiB{mib[1]:>6.0f} MiB{mib[0] / mib[1]:>8.1f}")
    print(f"  {'above start':12}{above[0]:>6.0f} MiB{above[1]:>6.0f} MiB{above[0] / max(above[1], 1):>8.1f}")
    shared = plain["metrics"].keys() & fast["metrics"].keys()
    unequal = {name for name in shared if (plain["metrics"][name] is None) != (fast["metrics"][name] is None)}
    both = [name for name in shared if plain["metrics"][name] is not None and fast["metrics"][name] is not None]
    distance = {name: abs(plain["metrics"][name] - fast["metrics"][name]) for name in both}
    worst = max(distance, key=lambda name: distance[name])
    print(f"  largest difference of {len(both)} metrics: {distance[worst]:.2g} ({worst})", flush=True)
    missing = sorted(unequal | (plain["metrics"].keys() ^ fast["metrics"].keys()))
    if missing:
        print(f"  scored on one side only: {', '.join(missing)}")
    assert np.isfinite(list(distance.values())).all()


if __name__ == "__main__":
    main()
