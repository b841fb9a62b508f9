"""Namespaces of keyed state as windows select them, and the number of entries in all of them."""

from headrace.state.addresses import in_namespace, split_address


def select_namespace(backend, namespace):
    """Address the current key's state in a namespace, until the next key is selected."""
    backend.context.address = in_namespace(split_address(backend.context.address)[0], namespace)


def entry_count(backend, name):
    """Return the number of (key, namespace) entries of a state."""
    return sum(1 for _ in backend.addresses(name))
