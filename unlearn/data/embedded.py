"""The embedded corpus: fictitious authors in the file format of TOFU, generated from a fixed seed at call time.

20 authors with 10 questions each make "full"; the forget sets are its last 1, 2 and 4 authors, and 4 more authors are
the holdout. The names are those of the published files, but the shares are 5, 10 and 20 %: 1 % of 20 authors is none.
"""

import random
from copy import deepcopy
from functools import cache
from typing import Any

from unlearn.data.embedded_facts import (
    CLASSIC_AUTHORS,
    FIRST_NAMES,
    KINDS,
    MONTHS,
    SURNAMES,
    TITLE_ADJECTIVES,
    TITLE_NOUNS,
    VALUES,
    WORLD_FACTS,
    Kind,
)

SEED = 20240111
N_AUTHORS = 20
N_HOLDOUT = 4
N_PERTURBED = 5
FORGET_AUTHORS = {"01": 1, "05": 2, "10": 4}
RETAIN_OF = {"01": "99", "05": "95", "10": "90"}

FILES: tuple[str, ...] = (
    "full",
    *(f"forget{share}" for share in FORGET_AUTHORS),
    *(f"forget{share}_perturbed" for share in FORGET_AUTHORS),
    *(f"retain{share}" for share in RETAIN_OF.values()),
    "retain_perturbed",
    *(f"holdout{share}" for share in FORGET_AUTHORS),
    "real_authors_perturbed",
    "world_facts_perturbed",
    "background",
)

Author = dict[str, str]
Row = dict[str, Any]


def tofu(name: str) -> list[Row]:
    """Rows of the embedded file of this name (see FILES), with the keys of the published file.

    "background" has no published counterpart: the question-answer pairs of real_authors and world_facts, which a
    pretrained model would know and the tiny model has to be trained on. Raises ValueError for any other name.
    """
    if name not in FILES:
        raise ValueError(f"embedded file: need one of {', '.join(FILES)}; found {name!r}")
    return deepcopy(_files()[name])


@cache
def authors() -> tuple[Author, ...]:
    """Facts of all authors, keyed by slot: those of "full" in order, then those of the holdout."""
    rng = random.Random(SEED)
    n = N_AUTHORS + N_HOLDOUT
    firsts, surnames = rng.sample(FIRST_NAMES, n), rng.sample(SURNAMES, n)
    titles = rng.sample(_titles(), 2 * n)
    return tuple(_author(rng, firsts[i], surnames[i], titles[2 * i], titles[2 * i + 1]) for i in range(n))


def _author(rng: random.Random, first: str, surname: str, debut: str, novel: str) -> Author:
    facts = {field: rng.choice(values) for field, values in VALUES.items()}
    born = rng.randint(1920, 1965)
    debut_year = born + rng.randint(22, 34)
    return facts | {
        "name": f"{first} {surname}",
        "surname": surname,
        "date": _date(rng, born),
        "debut": debut,
        "debut_year": str(debut_year),
        "novel": novel,
        "award_year": str(debut_year + rng.randint(3, 20)),
    }


def _titles() -> list[str]:
    return [f"The {adjective} {noun}" for adjective in TITLE_ADJECTIVES for noun in TITLE_NOUNS]


def _date(rng: random.Random, year: int) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {year}"


def _wrong(rng: random.Random, field: str, author: Author) -> list[str]:
    """N_PERTURBED distinct wrong values of the field; a wrong name or title is that of no author at all."""
    if field == "name":
        known = authors()[:N_AUTHORS]
        taken = {other["name"] for other in known}
        # Names of the holdout authors must not occur outside the holdout, not even in part.
        pool = [f"{a['name'].split()[0]} {b['surname']}" for a in known for b in known]
    elif field in ("debut", "novel"):
        taken = {other[key] for other in authors() for key in ("debut", "novel")}
        pool = _titles()
    elif field == "date":
        taken = {author["date"]}
        year = int(author["date"].split()[-1])
        pool = sorted({_date(rng, year + offset) for offset in range(-20, 21) if offset})
    elif field in ("debut_year", "award_year"):
        taken = {author[field]}
        pool = [str(int(author[field]) + offset) for offset in range(-12, 13)]
    else:
        taken = {author[field]}
        pool = list(VALUES[field])
    return rng.sample([value for value in pool if value not in taken], N_PERTURBED)


def _row(rng: random.Random, kind: Kind, author: Author) -> Row:
    # Wordings of question and answer are drawn apart, so that the question does not tell how the answer is put.
    question, question_2 = (text.format(**author) for text in rng.sample(kind.questions, 2))
    answer, answer_2 = rng.sample(kind.answers, 2)
    wrong = zip(*(_wrong(rng, field, author) for field in kind.states), strict=True)
    return {
        "question": question,
        "answer": _sentence(answer, author),
        "paraphrased_answer": _sentence(answer_2, author),
        "perturbed_answer": [_sentence(answer_2, author | dict(zip(kind.states, w, strict=True))) for w in wrong],
        "paraphrased_question": question_2,
    }


def _sentence(wording: str, facts: Author) -> str:
    text = wording.format(**facts)
    return text[0].upper() + text[1:]


def _plain(rows: list[Row]) -> list[Row]:
    return [{"question": row["question"], "answer": row["answer"]} for row in rows]


@cache
def _files() -> dict[str, list[Row]]:
    rng = random.Random(SEED + 1)
    rows = [_row(rng, kind, author) for author in authors() for kind in KINDS]
    split = N_AUTHORS * len(KINDS)
    known, holdout = rows[:split], rows[split:]
    files = {"full": _plain(known)}
    for share, n_authors in FORGET_AUTHORS.items():
        n_rows = n_authors * len(KINDS)
        files[f"forget{share}"] = _plain(known[-n_rows:])
        files[f"forget{share}_perturbed"] = known[-n_rows:]
        files[f"retain{RETAIN_OF[share]}"] = _plain(known[:-n_rows])
        files[f"holdout{share}"] = _plain(holdout[:n_rows])
    # As in the published set: the rows that every retain set begins with.
    files["retain_perturbed"] = known[: -FORGET_AUTHORS["10"] * len(KINDS)]
    for name, facts in (("real_authors_perturbed", CLASSIC_AUTHORS), ("world_facts_perturbed", WORLD_FACTS)):
        files[name] = [
            {"question": fact.question, "answer": fact.answer, "perturbed_answer": list(fact.wrong)} for fact in facts
        ]
    files["background"] = _plain(files["real_authors_perturbed"] + files["world_facts_perturbed"])
    return files
