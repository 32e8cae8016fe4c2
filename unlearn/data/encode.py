"""Text into token rows: the only place that knows where a prompt ends and an answer begins.

Prompt and answer are tokenized apart and joined, so that no token straddles the border. A row begins with exactly one
BOS where the model has one, and the answer ends with one labelled end marker. Whatever a chat template puts behind
the end marker is left out: it is no content and nothing is learned from it. Examples with a prompt of their own, and
texts without any, have no end marker: they go on.

Published code tokenizes the whole text and cuts it at the length of the prompt. That gives the same tokens, except
where one token would hold the prompt's last letter and the answer's first (Llama-2's `]"`): there it scores nothing
of the straddling letters, and we do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unlearn.config import FormatConfig
from unlearn.data.example import Example
from unlearn.errors import UserError

BREAK = "\n"


@dataclass(frozen=True)
class Row:
    """One prompt and one answer as tokens.

    n_prompt   tokens before the answer: input_ids[n_prompt:] are the labels
    n_lead     labels that only introduce the answer (the separator "Answer:", where a benchmark trains on it)
    n_content  labels up to the end of the answer's text, n_lead included; the end marker, if any, comes after them
    truncated  whether the row was longer than the model's window
    """

    id: str
    kind: str
    prompt: str
    answer: str
    input_ids: tuple[int, ...]
    n_prompt: int
    n_content: int
    n_lead: int = 0
    truncated: bool = False

    @property
    def n_answer(self) -> int:
        return len(self.input_ids) - self.n_prompt


@dataclass(frozen=True)
class _Text:
    """One answer to one question; or, with a prompt, the answer that continues it."""

    id: str
    kind: str
    question: str
    answer: str
    prompt: str | None = None


class Encoder:
    """Turns examples into rows for one tokenizer and one prompt format."""

    def __init__(self, tokenizer: Any, format: FormatConfig, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.format = format
        self.max_length = max_length
        if format.prompt is None and not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "model.format.prompt: needs a template with {question}, because the tokenizer has no chat template"
            )
        # GPT-2 and its kin name one token as BOS and EOS and were trained without a BOS.
        self.bos = tokenizer.bos_token_id if tokenizer.bos_token_id != tokenizer.eos_token_id else None
        end = tokenizer.eos_token_id if format.prompt is not None else self._end_of_turn()
        if end is None:
            raise UserError("model.tokenizer: needs an EOS token, found none")
        self.end: int = end
        # Padding is told from text by the mask alone, so any id will do where a tokenizer names none.
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end

    def prompt(self, question: str) -> str:
        """The text that the model is asked to continue."""
        if self.format.prompt is not None:
            return self.format.prompt.replace("{question}", question)
        text = self._chat([{"role": "user", "content": question}], add_generation_prompt=True)
        bos = self.tokenizer.bos_token
        return text.removeprefix(bos) if bos else text

    def answers(self, examples: Iterable[Example], key: str = "data.source") -> list[Row]:
        """What is trained on: one row per example, its question and its answer; of a text all of it, in windows.

        A fault names the setting `key`.
        """
        rows: list[Row] = []
        asked: list[_Text] = []
        for example in examples:
            if example.is_text:
                rows += self._rows(asked, key) + self._windows(example, key)
                asked = []
            else:
                asked.append(_Text(example.id, "answer", example.question, example.answer, example.prompt))
        return rows + self._rows(asked, key)

    def alternates(self, examples: Sequence[Example], answers: Sequence[Sequence[str]]) -> dict[str, list[Row]]:
        """Rows of other answers, by example id: `answers[i]` to the question of `examples[i]`.

        Each has exactly the prompt tokens of the example's own row, so that two answers are compared under the same
        condition; where the window is too short for it, its end is cut and not the prompt.
        """
        texts = list({answer: None for alternates in answers for answer in alternates})
        tokens = dict(zip(texts, self._continuations(texts), strict=True))
        found: dict[str, list[Row]] = {}
        for own, alternates in zip(self.answers(examples), answers, strict=True):
            found[own.id] = []
            for k, answer in enumerate(alternates):
                answer_ids, n_lead = tokens[answer]
                labels = [*answer_ids, self.end][: self.max_length - own.n_prompt]
                ids = (*own.input_ids[: own.n_prompt], *labels)
                n_content = min(len(answer_ids), len(labels))
                cut = own.truncated or len(labels) <= len(answer_ids)
                row = Row(f"{own.id}#{k}", "alternate", own.prompt, answer, ids, own.n_prompt, n_content, n_lead, cut)
                self._check(row, "method.alternates")
                found[own.id].append(row)
        return found

    def answer_ids(self, answer: str) -> list[int]:
        """Tokens of an answer as they are in the middle of a row, without separator and end marker."""
        ((ids, n_lead),) = self._continuations([answer])
        return ids[n_lead:]

    def variants(
        self, examples: Iterable[Example], max_new_tokens: int = 0, paraphrased_questions: bool = True
    ) -> list[Row]:
        """Rows for everything that is scored: answer, paraphrased answer and perturbed answers to the same question,
        and the answer to the paraphrased question. Of a text its first window.

        Of prompts that come with the benchmark so much is cut that `max_new_tokens` have room behind them.
        """
        texts: list[_Text] = []
        for e in examples:
            texts.append(_Text(e.id, "answer", e.question, e.answer, e.prompt))
            if e.paraphrased_answer is not None:
                texts.append(_Text(e.id, "paraphrase", e.question, e.paraphrased_answer, e.prompt))
            texts += [_Text(e.id, f"perturbed_{k}", e.question, a, e.prompt) for k, a in enumerate(e.perturbed_answers)]
            if paraphrased_questions and e.paraphrased_question not in (None, e.question):
                texts.append(_Text(e.id, "paraphrased_question", str(e.paraphrased_question), e.answer))
        return self._rows(texts, room=max_new_tokens)

    def _chat(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        if self.format.system is not None:
            messages = [{"role": "system", "content": self.format.system}, *messages]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **self.format.template_args
        )
        return str(text)

    def _end_of_turn(self) -> int | None:
        """The special token with which the chat template closes an answer."""
        answer = "answer"
        text = self._chat(
            [{"role": "user", "content": "question"}, {"role": "assistant", "content": answer}],
            add_generation_prompt=False,
        )
        tail = text[text.rindex(answer) + len(answer) :]
        added = self.tokenizer.added_tokens_decoder
        for token in self._tokenize([tail])[0]:
            if token in added and added[token].special:
                return int(token)
        return self.tokenizer.eos_token_id  # type: ignore[no-any-return]

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []

    def _rows(self, texts: Sequence[_Text], key: str = "data.source", room: int = 0) -> list[Row]:
        prompts = [self.prompt(text.question) if text.prompt is None else text.prompt for text in texts]
        answers = iter(self._continuations([text.answer for text in texts if text.prompt is None]))
        # A prompt of the benchmark's own ends with the blank before the answer, or has to be given one.
        joints = iter(
            self._continuations(
                [text.answer for text in texts if text.prompt is not None],
                ["" if not text.prompt or text.prompt[-1].isspace() or text.answer[:1].isspace() else " "
                 for text in texts if text.prompt is not None],
            )
        )  # fmt: skip
        rows = []
        for text, prompt, prompt_ids in zip(texts, prompts, self._tokenize(prompts), strict=True):
            answer_ids, n_lead = next(answers if text.prompt is None else joints)
            if text.prompt == "":
                row = self._alone(text.id, text.kind, text.answer, self._tokenize([text.answer])[0])
            else:
                row = self._join(text, prompt, prompt_ids, answer_ids, n_lead, room)
            self._check(row, key)
            rows.append(row)
        return rows

    def _windows(self, example: Example, key: str) -> list[Row]:
        """A text in consecutive windows of the longest length; a last token alone is left out."""
        ids = self._tokenize([example.answer])[0]
        size = self.max_length - (self.bos is not None)
        rows = []
        for k, start in enumerate(range(0, len(ids), size)):
            part = ids[start : start + size]
            if len(part) > 1:
                text = self.tokenizer.decode(part, clean_up_tokenization_spaces=False)
                rows.append(self._alone(f"{example.id}#{k}", "answer", text, part))
        if not rows:
            raise UserError(f"{key}: the text {example.id} has fewer than two tokens")
        return rows

    def _alone(self, id: str, kind: str, text: str, ids: list[int]) -> Row:
        """A text without a prompt: every token is a label, but the first where no BOS stands before it."""
        head = [self.bos] if self.bos is not None else []
        kept = (*head, *ids)[: self.max_length]
        return Row(id, kind, "", text, kept, 1, len(kept) - 1, truncated=len(head) + len(ids) > self.max_length)

    def _continuations(
        self, answers: Sequence[str], separators: Sequence[str] | None = None
    ) -> list[tuple[list[int], int]]:
        """Tokens of separator + answer as they are in the middle of a text, and how many of them are separator alone.

        The separator is that of the model's format, unless `separators` has one for each answer.

        Tokenizers of the SentencePiece kind put a blank in front of whatever they are given. Behind a line break, which
        merges with nothing, they do not.
        """
        if not answers:
            return []
        separators = separators or [self.format.separator] * len(answers)
        encoded = self.tokenizer(
            [BREAK + separator + answer for separator, answer in zip(separators, answers, strict=True)],
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        found = []
        for ids, offsets, separator in zip(encoded["input_ids"], encoded["offset_mapping"], separators, strict=True):
            border = len(BREAK) + len(separator.rstrip())
            first = next((k for k, (_, end) in enumerate(offsets) if end > len(BREAK)), len(ids))
            n_lead = sum(len(BREAK) < end <= border for _, end in offsets)
            found.append((ids[first:], n_lead))
        return found

    def _join(
        self, text: _Text, prompt: str, prompt_ids: list[int], answer_ids: list[int], n_lead: int, room: int
    ) -> Row:
        """Join, and where the row is too long cut the prompt from its left end, never the answer to nothing."""
        head = [self.bos] if self.bos is not None else []
        if head and prompt_ids[:1] == head:
            prompt_ids = prompt_ids[1:]
        space = self.max_length - len(head)
        end = [self.end] if text.prompt is None else []
        # One token of the prompt must stay: an answer cannot be predicted from nothing.
        labels = [*answer_ids, *end][: space - 1]
        behind = len(labels) if text.prompt is None else min(max(len(labels), room), space - 1)
        kept = prompt_ids[len(prompt_ids) - min(len(prompt_ids), space - behind) :]
        truncated = len(labels) < len(answer_ids) + len(end) or len(kept) < len(prompt_ids)
        ids = (*head, *kept, *labels)
        n_prompt, n_content = len(head) + len(kept), min(len(answer_ids), len(labels))
        return Row(text.id, text.kind, prompt, text.answer, ids, n_prompt, n_content, n_lead, truncated)

    def _check(self, row: Row, key: str) -> None:
        """The labels must be the answer, and BOS must stand once at the start: a wrong border would poison every
        number.
        """
        content = row.input_ids[row.n_prompt + row.n_lead : row.n_prompt + row.n_content]
        decoded = self.tokenizer.decode(content, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        # A cut may go through a letter of several tokens.
        want, found = squeeze(row.answer), squeeze(decoded.rstrip("\ufffd") if row.truncated else decoded)
        if row.n_prompt == 0 or row.n_content <= row.n_lead:
            raise UserError(f"{key}: row {row.id} ({row.kind}) has an empty prompt or answer")
        if not row.prompt and self.bos is None:
            # The first token of a text alone is no label.
            matches = found in want
        else:
            matches = want.startswith(found) if row.truncated else want == found
        if not matches:
            raise UserError(f"{key}: row {row.id} ({row.kind}): the labels decode to {found!r}, the answer is {want!r}")
        if self.bos is not None and (row.input_ids[0] != self.bos or self.bos in row.input_ids[1:]):
            raise UserError(f"{key}: row {row.id} ({row.kind}): needs exactly one BOS at its start")


def squeeze(text: str) -> str:
    """Each run of blanks as one: tokenizers may add, drop or fold blanks; letters they must not touch."""
    return " ".join(text.split())


def answer_tokens(rows: Iterable[Row]) -> int:
    """Labelled tokens, end markers included."""
    return sum(row.n_answer for row in rows)


def longest(rows: Iterable[Row], size: Callable[[Row], int] = lambda row: len(row.input_ids)) -> int:
    """Length in tokens of the longest row; 0 without rows."""
    return max((size(row) for row in rows), default=0)
