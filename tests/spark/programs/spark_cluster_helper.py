def mark_word(word):
    return (word.upper(), 1)
