"""Headgate."""
