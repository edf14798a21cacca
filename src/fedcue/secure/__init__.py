"""Secure summation: a server learns the sum of its clients' vectors and nothing about a single one.

``fixed_point`` turns named arrays into words modulo 2^64, ``client`` and ``server`` are the two
halves of the protocol, ``session`` says what one round is. The protocol and who may do what
against it are written down in ``docs/decisions/0011-secure-summation.md``.
"""
