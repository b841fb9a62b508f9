"""The queries of Nexmark in SQL, over all events at once: the table of results, and the columns that say what is one result.

A query that gives a result again when it changes has a key here: the last result of a key counts.
"""

_WINNERS = """
    SELECT auction, seller, category, expires, price, at, bidder FROM (
        SELECT a.id AS auction, a.seller, a.category, a.expires, b.price, b.at, b.bidder,
               row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.at, b.bidder) AS rank
        FROM auctions a JOIN bids b ON a.id = b.auction AND b.at BETWEEN a.at AND a.expires
    ) WHERE rank = 1
"""

_RANKS = [
    "TRUE",
    "price < 10000",
    "price >= 10000 AND price < 1000000",
    "price >= 1000000",
]


def _ranked(what):
    return ", ".join(f"{what.format(condition)} AS c{i}" for i, condition in enumerate(_RANKS))


_BOUNDS = "unix_millis(window.start) AS start, unix_millis(window.end) AS end"

SQL = {
    "q0": "SELECT * FROM bids",
    "q1": "SELECT auction, bidder, price * 908 DIV 1000 AS price, at FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN persons p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"SELECT category, avg(price) FROM ({_WINNERS}) GROUP BY category",
    "q5": f"""
        SELECT auction, bids, start, end FROM (
            SELECT *, max(bids) OVER (PARTITION BY start) AS most FROM (
                SELECT auction, count(*) AS bids, {_BOUNDS} FROM bids
                GROUP BY auction, window(timestamp_millis(at), '10 seconds', '2 seconds')
            )
        ) WHERE bids = most
    """,
    "q6": f"""
        SELECT seller, auction, avg(price) OVER (
            PARTITION BY seller ORDER BY expires, auction ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) FROM ({_WINNERS})
    """,
    "q7": """
        SELECT auction, price, bidder, at FROM (
            SELECT *, max(price) OVER (PARTITION BY at DIV 10000) AS most FROM bids
        ) WHERE price = most
    """,
    "q8": """
        SELECT p.id, p.name, p.at DIV 10000 * 10000 FROM persons p
        WHERE EXISTS (SELECT 1 FROM auctions a WHERE a.seller = p.id AND a.at DIV 10000 = p.at DIV 10000)
    """,
    "q9": _WINNERS,
    "q11": f"""
        SELECT bidder, count(*), {_BOUNDS} FROM bids GROUP BY bidder, session_window(timestamp_millis(at), '10 seconds')
    """.replace("window.start", "session_window.start").replace("window.end", "session_window.end"),
    "q16": f"""
        SELECT channel, at DIV 86400000, {_ranked("count_if({})")},
               {_ranked("count(DISTINCT CASE WHEN {} THEN bidder END)")},
               {_ranked("count(DISTINCT CASE WHEN {} THEN auction END)")}
        FROM bids GROUP BY channel, at DIV 86400000
    """,
    "q17": f"""
        SELECT auction, at DIV 86400000, {_ranked("count_if({})")}, min(price), max(price), avg(price), sum(price)
        FROM bids GROUP BY auction, at DIV 86400000
    """,
    "q18": """
        SELECT auction, bidder, price, channel, url, at FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY at DESC, price DESC) AS rank FROM bids
        ) WHERE rank = 1
    """,
    "q19": """
        SELECT auction, rank, price, at, bidder FROM (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, at, bidder) AS rank FROM bids
        ) WHERE rank <= 10
    """,
    "q20": """
        SELECT a.id, a.item, a.seller, b.price, b.at, b.bidder
        FROM auctions a JOIN bids b ON a.id = b.auction WHERE a.category = 10
    """,
    "q22": "SELECT auction, bidder, split(url, '/')[2], split(url, '/')[3], split(url, '/')[4] FROM bids",
}

KEYS = {"q4": 1, "q18": 2, "q19": 2}
"""The number of leading columns that are the key of a result."""
