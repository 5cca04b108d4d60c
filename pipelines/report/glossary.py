"""The words of a report in plain language, for readers who know neither statistics nor privacy mathematics.

A page explains the words that it uses, and no others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass(frozen=True)
class Term:
    """A word and what it means.

    Attributes:
        name: as the glossary has it.
        meaning: in plain language.
        forms: as a page has it, as regular expressions; the name where left out.
    """

    name: str
    meaning: str
    forms: tuple[str, ...] = field(default=())
    _form: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        forms = "|".join(self.forms or (re.escape(self.name),))
        object.__setattr__(self, "_form", re.compile(rf"\b(?:{forms})\b", re.IGNORECASE))

    def is_in(self, text: str) -> bool:
        """Whether a text uses the word."""
        return self._form.search(text) is not None


#: In the order of the glossary, what the later ones rest on first.
TERMS = (
    Term("series", "the readings of one meter, wearer or device, one after another"),
    Term("slot", "the stretch of time of one reading, for example half an hour", ("slots?",)),
    Term("bin", "a range of values that are counted together, for example 250 to 500 W", ("bins?",)),
    Term("state", "what a series is in during a slot: a bin of its value, or a label such as asleep", ("states?",)),
    Term("window", "the slots that one histogram counts, for example those of a week", ("windows?",)),
    Term("histogram", "how many slots of a window were in each bin", ("histograms?",)),
    Term("cell", "one slot of one series; a group of 30 series has 30 cells in every slot", ("cells?",)),
    Term("roster", "the public list of the series, and of the group that each is in"),
    Term("noise", "random numbers added to counts before they are published, so that no reading can be told from them"),
    Term("band", "how far a published count may be from the true one, by the noise alone", ("bands?",)),
    Term(
        "epsilon",
        "how much the published numbers can tell about a single slot: whatever is published is at most e^epsilon times "
        "as likely if the slot was in one state as in another: 1.1 times for 0.1, 2.7 times for 1, 55 times for 4. "
        "Smaller is more private",
    ),
    Term("loss", "the epsilon of everything that has been published so far, taken together", ("loss(?:es)?", "loses?")),
    Term("budget", "the largest loss that is allowed, ever; what would exceed it is refused and not published"),
    Term("domain", "the series that share one budget", ("domains?",)),
    Term("query", "one kind of histogram that is published again and again, window after window", ("quer(?:y|ies)",)),
    Term("ledger", "the record of every publication and of what it cost; nothing is published that is not in it"),
    Term("charged", "entered into the ledger with its cost, before it is published", ("charge[ds]?",)),
    Term("refused", "not published, because the budget would not have been enough", ("refus(?:ed|als?)",)),
    Term("naive adding", "adding up the epsilons of all windows, as if nothing were known about how they combine",
         ("naive", "adding the windows up")),
    Term("Pufferfish", "the definition of privacy that is used here. It hides a slot also where slots that follow each "
         "other resemble each other, which ordinary differential privacy does not"),
    Term("differential privacy", "the usual definition of privacy, which hides one record among independent ones"),
    Term("belief", "what is taken as known about how a series goes on from slot to slot. The promise holds for series "
         "that behave so", ("beliefs?",)),
    Term("Markov chain", "a series whose next state depends on its present state alone", ("Markov chains?", "chains?")),
    Term("transitions", "how likely each state is to follow each other one"),
    Term("initial distribution", "how likely each state is at the start"),
    Term("dobrushin-bounds", "the belief that a series forgets its past at least as fast as stated: after so many "
         "slots, what it did before hardly matters any more"),
    Term("mixing-bounds", "the belief that no state is rarer than stated, and that a series forgets at least so fast"),
    Term("pi_min", "how often the rarest state occurs at least, as a share of all slots"),
    Term("spectral gap", "how fast a chain forgets its past, from 0 (never) to 1 (at once)", ("spectral gap", "gap")),
    Term("total variation", "how different two chances can be: the largest difference for any event"),
    Term("max-divergence", "how much likelier something is under one assumption than under another, at most; on a "
         "logarithmic scale, as epsilon is"),
    Term("forward-backward", "how the loss is computed: what a slot tells of the past and of the future, each bounded"),
    Term("density", "the loss that a publication adds to each slot"),
    Term("sigma", "the size of the noise for a number that one reading changes by 1; twice as much, twice the noise"),
    Term("scale", "the size of the noise in each count"),
    Term("quilt", "the slots around a slot beyond which readings tell hardly anything of it", ("quilts?", "MQM\\w*")),
    Term("discrete-laplace", "the law of the noise: whole numbers, large ones rarer than small ones; with zero-sum "
         "they add up to nothing, so that totals stay right", ("discrete-laplace[a-z-]*",)),
    Term("certificate", "numbers that prove a bound, and that anyone can check"),
    Term("exchangeable", "alike in the sense that no order of the series is likelier than another"),
)  # fmt: skip


class _Words(HTMLParser):
    """The texts of a page, those that stand for its figures included, without its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """What stands for a figure."""
        del tag
        self.words += [value for name, value in attrs if name == "alt" and value]

    def handle_data(self, data: str) -> None:
        """What is read, or a style."""
        if self.cdata_elem is None:
            self.words.append(data)


def used_on(page: str) -> tuple[Term, ...]:
    """The terms that a page of HTML uses, texts of its figures included."""
    parser = _Words()
    parser.feed(page)
    parser.close()
    text = " ".join(parser.words)
    return tuple(one for one in TERMS if one.is_in(text))
