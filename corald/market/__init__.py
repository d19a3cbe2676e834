"""One pure model of a cloud: machines for sale, what became of them, and a ledger of it all.

No I/O, no clock: time is an argument and randomness is handed in. The simulated provider, the
scripted provider and the fakes of cloud APIs stand on it, so that all of them sell, bill, throttle
and fail alike. Nothing here decides anything for corald.
"""
