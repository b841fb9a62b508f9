from browser import browser, page, watched

__all__ = ["browser", "page", "watched"]
