"""The hashmap backend: keyed state as Python objects in dicts, and numbers in columns."""
