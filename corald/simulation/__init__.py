"""The second composition root: the daemon's own parts on virtual time and simulated clouds.

Nothing here decides anything: loop, clock, demand, harness and demo surround the runtime.
"""
