"""Milliseconds of a round."""
