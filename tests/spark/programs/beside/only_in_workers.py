def decorate(text):
    return f"*{text}*"
