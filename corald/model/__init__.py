"""Plain values that every part of corald shares: frozen, without behaviour beyond derived facts.

Nothing here does I/O, reads a clock or draws a random number.
"""
