"""The laws of the noise in released counts, by their names in rows and records.

``discrete-laplace`` is independent in each count. ``discrete-laplace-zero-sum`` is conditioned on sum zero over the
counts of one histogram, which therefore add up to the true total: it is used where the total is public. ``none`` is
for noise-free rows of tests.
"""

from __future__ import annotations

INDEPENDENT = "discrete-laplace"
ZERO_SUM = "discrete-laplace-zero-sum"
NO_NOISE = "none"
