"""The embedded news: short articles in the file format of MUSE, generated from a fixed seed at call time.

Every article opens with a readers' box, question-answer pairs in the very format of MUSE's few-shot prompts: two that
stand over each article of this paper, then two about its own facts. Knowmem asks the first of these behind the former,
so that a model of two layers that has learned the articles can answer. The box precedes the story: behind it the
answers could be copied, and would not be learned. People, places and firms are invented, and each occurs in one article
only. A blank line ends an article.

As published, the forget set is the first of four disjoint folds ("sust"); "scal" has them one on top of the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from unlearn.data.embedded_news_texts import (
    CODAS,
    DAYS,
    ENDINGS,
    FIRST_NAMES,
    ONSETS,
    STANDING,
    TOPICS,
    VOWELS,
    Topic,
)

SEED = 20240706
N_FOLDS = 4
FOLD = 24
RETAIN = 36
HOLDOUT = 24
VERBATIM_SHARE = 0.5
"""Share of the words of a story, from its beginning, that the prompt of verbatim memory holds."""

Pair = tuple[str, str]


class Article(NamedTuple):
    """A text, and the first question about its own facts with the answer."""

    text: str
    pair: Pair


def news(file: str) -> list[Any]:
    """Entries of the embedded file of this name ("raw/forget"), with the keys of the published file.

    Raises KeyError for a name that files() does not have.
    """
    return deepcopy(files()[file])


@cache
def files() -> dict[str, list[Any]]:
    """All files by "configuration/split"."""
    articles = iter(_articles())
    folds = [list(islice(articles, FOLD)) for _ in range(N_FOLDS)]
    retain_1, retain_2, holdout = (list(islice(articles, n)) for n in (RETAIN, RETAIN, HOLDOUT))
    forget, shots = folds[0], [_pair(pair) for pair in STANDING]
    found: dict[str, list[Any]] = {
        "raw/forget": _texts(forget),
        "raw/retain1": _texts(retain_1),
        "raw/retain2": _texts(retain_2),
        "raw/holdout": _texts(holdout),
        "knowmem/forget_qa": [_pair(article.pair) for article in forget],
        "knowmem/retain_qa": [_pair(article.pair) for article in retain_2],
        "knowmem/forget_qa_icl": shots,
        "knowmem/retain_qa_icl": shots,
        "verbmem/forget": [_halves(article.text) for article in forget],
        "privleak/forget": _texts(forget),
        "privleak/retain": _texts(retain_2),
        "privleak/holdout": _texts(holdout),
    }
    for k in range(1, N_FOLDS + 1):
        found[f"sust/forget_{k}"] = _texts(folds[k - 1])
        found[f"scal/forget_{k}"] = [text for fold in folds[:k] for text in _texts(fold)]
    return found


def _texts(articles: list[Article]) -> list[dict[str, str]]:
    return [{"text": article.text} for article in articles]


def _pair(pair: Pair) -> dict[str, str]:
    return {"question": pair[0], "answer": pair[1]}


def _box(pairs: Iterable[Pair]) -> str:
    return "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in pairs)


def _halves(text: str) -> dict[str, str]:
    """The beginning of an article (box and first words of the story) and what follows it."""
    box, _, story = text.rstrip().rpartition("\n\n")
    words = story.split(" ")
    cut = round(len(words) * VERBATIM_SHARE)
    return {"prompt": f"{box}\n\n{' '.join(words[:cut])}", "gt": " ".join(words[cut:])}


def _articles() -> list[Article]:
    """All articles, each of the next topic in turn and with names of its own."""
    rng = random.Random(SEED)
    n = N_FOLDS * FOLD + 2 * RETAIN + HOLDOUT
    stems = rng.sample([onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in CODAS], 4 * n)
    return [_article(rng, TOPICS[i % len(TOPICS)], stems[4 * i : 4 * i + 4]) for i in range(n)]


def _article(rng: random.Random, topic: Topic, stems: list[str]) -> Article:
    place, firm, person, other = stems
    facts = {
        "place": place + rng.choice(ENDINGS),
        "firm": firm,
        "person": f"{rng.choice(FIRST_NAMES)} {person}",
        "surname": person,
        "other": f"{rng.choice(FIRST_NAMES)} {other}",
        "day": rng.choice(DAYS),
        "count": str(rng.randint(12, 980)),
        "years": str(rng.randint(2, 40)),
        "sum": f"{rng.randint(3, 95)} million crowns",
    }
    story = " ".join(rng.choice(wordings) for wordings in topic.story).format(**facts)
    pairs = [(question.format(**facts), answer.format(**facts)) for question, answer in rng.sample(topic.pairs, 2)]
    return Article(f"{_box(STANDING + tuple(pairs))}{story}\n\n", pairs[0])
