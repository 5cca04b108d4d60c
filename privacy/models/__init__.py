"""What is believed about the data: chains, classes of chains, networks and tables.

``belief``, ``reading``
    the protocol: what a belief answers; and a belief from its plain form
``markov_chain``, ``periodic``
    one chain, with one kernel or a kernel for every slot of the day or week
``classes``, ``interval_chain``, ``dobrushin``
    classes of chains: finite, by mixing, by start, by intervals, by contraction, around a chain
``bayesian_network``, ``joint_distribution``
    any discrete network, and any small table
"""

from __future__ import annotations

from .belief import Directed
from .dobrushin import DobrushinBounds, Neighbourhood
from .periodic import PeriodicChain

__all__ = ["Directed", "DobrushinBounds", "Neighbourhood", "PeriodicChain"]
