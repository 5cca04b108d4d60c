"""How values are randomised: exact discrete Laplace noise and the mechanisms on top of it.

``sampling``, ``discrete_laplace``, ``zero_sum``
    random bits, exact events, and the two laws of noise
``histogram``, ``projection``
    noisy counts, and their estimate with a known total
``exponential``, ``randomised_response``, ``wasserstein``
    other mechanisms, which ``run`` does not use
"""
