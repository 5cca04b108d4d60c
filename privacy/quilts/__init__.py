"""The Markov Quilt Mechanism: influence tables, calibration, networks and influence curves.

Sources: [SWC17] Song, Wang and Chaudhuri, "Pufferfish Privacy Mechanisms for Correlated Data" (SIGMOD 2017), and
[BHGKM], influence curves.
"""
