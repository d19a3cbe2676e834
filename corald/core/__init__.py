"""Decisions, pure: events in, instructions out; time is an argument.

Nothing here does I/O, logs, waits, or draws a random number. Reasons leave as `Note`s.
"""
