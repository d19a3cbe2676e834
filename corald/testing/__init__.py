"""What an author of a provider tests with: the conformance suite and a provider on a script.

`corald.testing.conformance` needs pytest. The harness that runs all of corald in virtual time is
`corald.simulation.harness`.
"""
