"""The glossary: 25 words and what they mean, for the report and docs/glossary.md."""

from __future__ import annotations

WORDS = {
    "series": "the readings of one meter, wearer or device, one after another",
    "slot": "the time interval of one reading, for example half an hour",
    "bin": "a range of values that are counted together, for example 250 to 500 W; a label such as asleep is one too",
    "state": "the bin that a series is in during a slot",
    "window": "the slots that one histogram counts, for example those of a week",
    "histogram": "how many slots of a window were in each bin",
    "cell": "one slot of one series; a group of 30 series has 30 cells in every slot",
    "roster": "the public list of the series, and of the group that each is in",
    "habit": "what lasts about a series: how its values follow each other, and what kind of day it was",
    "noise": "random numbers added to counts before they are published, so that no reading can be told from them",
    "sigma": "the size of the noise for a number that one reading changes by 1; a count has about twice as much",
    "band": "how far a published count may be from the true one, by the noise alone",
    "epsilon": "the most that the published numbers change the odds of what a series did in one slot, as a logarithm: "
               "odds change by at most 1.1 times for 0.1, 2.7 times for 1, 55 times for 4",
    "loss": "the epsilon of everything that has been published so far, taken together",
    "budget": "the largest loss that is allowed, ever; a window that would exceed it is refused and not published",
    "density": "the loss that a publication adds to each of its slots",
    "domain": "the series that share one budget",
    "query": "one kind of histogram that is published again and again, window after window",
    "ledger": "the record of every publication and of what it cost; nothing is published that is not in it",
    "belief": "what is taken as known about how a series goes on from slot to slot; the promise holds for series that "
              "behave so",
    "Markov chain": "a series whose next state depends on its present state alone",
    "contraction class": "the belief that a series forgets its past at least as fast as stated: after so many slots, "
                         "what it did before hardly matters (in settings `dobrushin-bounds`)",
    "Lambda": "what a habit tells about a slot to someone who learns the habit, as an epsilon",
    "cover": "the share of the history's series that the belief holds for; also the probability that it holds for "
             "another one",
    "Pufferfish": "the definition of privacy that is used here: it hides a slot also where slots that follow each "
                  "other resemble each other, which differential privacy of single readings does not",
}  # fmt: skip
