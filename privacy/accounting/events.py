"""How long an event is protected: what releases cost for a secret of several slots in a row.

*Theorem* (the one-slot case is Cao, Yoshikawa, Xiao, Xiong, TKDE 2018, extended to any windows). Two paths a and b
that are both possible over the slots s..t differ in some of them; d is the density of a slot, F and B are the forward
and backward loss of :mod:`.forward_backward`. Everything published is at most e^loss times as likely under a as under
b, with

    loss = sum of d over the slots where the paths differ + (F_t - d_t)[a_t, b_t] + (B_s - d_s)[a_s, b_s].

*Proof.* h is the likelihood of everything published, V(past, path) its mean given all slots up to t. Given the path,
what follows depends on its last state alone, so V(past, a) = sum over y of P_t(a_t, y) V(past, a, y). Changing the
path costs e^d a slot where it differs, for every y; and G(y) = V(past, b, y) obeys F_{t+1}, so the mean over row a_t
is at most e^{L(P_t rows; F_{t+1})} = e^{F_t - d_t} times the mean over row b_t. What lies before depends on the first
state alone, and past -> V(past, b) obeys the backward recursion in the same way.

At a certificate of the largest density D no F_t - d_t is above F - D, nor any B_s - d_s above B - D, and F and B are
those of one member. So no event of m slots loses more than m D + max(F - D) + max(B - D), the largest over the
members.

>>> from quiltstream.privacy.classes import MixingBounds
>>> from quiltstream.privacy.accounting.constant import constant_loss
>>> bounds, density = MixingBounds(pi_min=0.2, gap=0.75), 2.0**-5
>>> round(constant_loss(bounds, density), 4), round(around(bounds, density) + 10 * density, 4)
(0.3805, 0.6618)
"""

from __future__ import annotations

import math
from functools import lru_cache

from ..classes import Belief
from ..models.belief import Directed
from .constant import certificates_at


@lru_cache(maxsize=4096)
def around(belief: Belief | Directed, density: float) -> float:
    """What the slots before and after an event tell about it, at most, where no slot has more than a density.

    Args:
        belief: What is believed about a series.
        density: Largest loss per slot, on the grid of :func:`.constant.on_grid`.

    Returns:
        Epsilon, on top of the density of the event's own slots; infinite where no bound was found.
    """
    if density <= 0:
        return 0.0
    sides = [
        float(one.forward.max()) + float(one.backward.max()) - 2 * one.density
        for one in certificates_at(belief, density)
    ]
    return math.nextafter(max(sides, default=math.inf), math.inf)
