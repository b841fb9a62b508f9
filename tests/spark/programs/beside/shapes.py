def square(text):
    return f"[{text}]"


def fails(text):
    raise ValueError(f"no shape for {text}")
