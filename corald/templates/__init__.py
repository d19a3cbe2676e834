"""The offline stage: performance model, exact placement, search and pruning of node sets.

Only a build needs numba; it is imported there, so that listing templates works without it.
"""
