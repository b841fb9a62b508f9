"""Nexmark: persons sell things by auction, others bid; seventeen questions about that.

    headrace run examples/nexmark.py q5 1000000

The queries are those of the benchmark of the same name, but for the ones that go by the clock. Events are computed from their
number, so every run sees the same ones; they come out of order by up to two seconds.
"""

import sys
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import (
    AggregateFunction,
    CoGroupFunction,
    DataStream,
    EventTimeSessionWindows,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)

PERSON = "id bigint, name string, city string, state string, at bigint"
AUCTION = "id bigint, item string, initial_bid bigint, reserve bigint, at bigint, expires bigint, seller bigint, category bigint"
BID = "auction bigint, bidder bigint, price bigint, channel string, url string, at bigint"
START = 1_700_000_000_000
DAY = 86_400_000
LATE = 2000  # ms
_EVERY = 10  # ms from one event to the next
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = pa.array(
    ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Kent", "Cheyenne"]
)
_NAMES = pa.array(["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"])
_CHANNELS = pa.array(["Google", "Facebook", "Baidu", "Apple"])


# --- events: of fifty in a row, one is a person, three are auctions, the others are bids --------------------------------


def _random(numbers, salt, below):
    """Numbers from 0 to `below` that depend on nothing else (splitmix64)."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt) * np.uint64(0xD1B54A32D192ED03)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x % np.uint64(below)).astype(np.int64)


def _when(events, salt):
    return START + events * _EVERY - _random(events, salt, LATE)


def _recent(numbers, salt, newest, among):
    """One of the `among` newest ids, or the newest."""
    return np.maximum(newest - _random(numbers, salt, among), 0)


def _price(numbers, salt):
    return np.power(10, 2 + _random(numbers, salt, 6_000_000) / 1e6).astype(np.int64)


def _batch(ddl, columns):
    names = [field.split()[0] for field in ddl.split(", ")]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)


def persons(n: np.ndarray) -> pa.RecordBatch:
    """The persons of these numbers."""
    name, city, state = (
        values.take(pa.array(_random(n, salt, len(values))))
        for salt, values in ((1, _NAMES), (2, _CITIES), (3, _STATES))
    )
    return _batch(PERSON, [n, name, city, state, _when(n * 50, 4)])


def auctions(n: np.ndarray) -> pa.RecordBatch:
    """The auctions of these numbers."""
    events = n // 3 * 50 + 1 + n % 3
    at, initial = _when(events, 5), _price(n, 6)
    seller = _recent(n, 7, n // 3, 30)
    expires = at + 1000 + _random(n, 8, 60_000)
    item = pc.binary_join_element_wise("item", pa.array(n).cast("string"), " ")
    return _batch(AUCTION, [n, item, initial, initial + _price(n, 9), at, expires, seller, 10 + _random(n, 10, 5)])


def bids(n: np.ndarray) -> pa.RecordBatch:
    """The bids of these numbers."""
    epochs = n // 46
    newest = epochs * 3 + 2
    hot = _random(n, 11, 2) == 0
    auction = np.where(hot, newest // 50 * 50, _recent(n, 12, newest, 100))
    bidder = _recent(n, 13, epochs, 100)
    channel = _CHANNELS.take(pa.array(_random(n, 14, len(_CHANNELS))))
    url = pc.binary_join_element_wise("https://auctions.example", pa.array(auction).cast("string"), "bid", "/")
    return _batch(BID, [auction, bidder, _price(n, 15), channel, url, _when(epochs * 50 + 4 + n % 46, 16)])


class Events:
    """The three streams of a job; `count` events in all."""

    def __init__(self, env: StreamExecutionEnvironment, count: int, rate: float | None = None) -> None:
        self._env, self._count, self._rate = env, count, rate
        self.strategy = WatermarkStrategy.for_bounded_out_of_orderness(
            timedelta(milliseconds=LATE + 50 * _EVERY)
        ).with_timestamp_assigner("at")

    def _stream(self, generate, share, ddl) -> DataStream:
        rate = None if self._rate is None else self._rate * share / 50
        stream = self._env.from_datagen(generate, self._count // 50 * share, rate, ddl, vectorised=True)
        return stream.name(generate.__name__).assign_timestamps_and_watermarks(self.strategy)

    @property
    def persons(self) -> DataStream:
        return self._stream(persons, 1, PERSON)

    @property
    def auctions(self) -> DataStream:
        return self._stream(auctions, 3, AUCTION)

    @property
    def bids(self) -> DataStream:
        return self._stream(bids, 46, BID)


# --- queries ------------------------------------------------------------------------------------------------------------


def q0(events: Events) -> DataStream:
    """Bids as they are."""
    return events.bids


def q1(events: Events) -> DataStream:
    """Prices in another currency."""
    return events.bids.map(
        lambda b: (b.auction, b.bidder, b.price * 908 // 1000, b.at),
        output_type="auction bigint, bidder bigint, price bigint, at bigint",
    )


def q2(events: Events) -> DataStream:
    """Bids on some auctions."""
    chosen = events.bids.filter(lambda b: b.auction % 123 == 0)
    return chosen.map(lambda b: (b.auction, b.price), output_type="auction bigint, price bigint")


class LocalItems(KeyedCoProcessFunction):
    """Persons and their auctions find each other, whichever comes first."""

    def open(self, runtime_context):
        self.person = runtime_context.get_state(
            ValueStateDescriptor("person", "name string, city string, state string")
        )
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("auctions", "bigint"))

    def process_element1(self, value, ctx):
        person = self.person.value()
        if person is None:
            self.waiting.add(value.id)
        else:
            yield *person, value.id

    def process_element2(self, value, ctx):
        self.person.update((value.name, value.city, value.state))
        for auction in self.waiting.get():
            yield value.name, value.city, value.state, auction
        self.waiting.clear()


def q3(events: Events) -> DataStream:
    """Who sells things of category 10 in three states?"""
    things = events.auctions.filter(lambda a: a.category == 10).key_by("seller")
    people = events.persons.filter(lambda p: p.state in ("OR", "ID", "CA")).key_by("id")
    return things.connect(people).process(
        LocalItems(), output_type="name string, city string, state string, auction bigint"
    )


class Winner(KeyedCoProcessFunction):
    """The highest bid of an auction, known when it has expired; bids may come before their auction."""

    def open(self, runtime_context):
        self.auction = runtime_context.get_state(
            ValueStateDescriptor("auction", "at bigint, expires bigint, seller bigint, category bigint")
        )
        self.early = runtime_context.get_list_state(
            ListStateDescriptor("early", "price bigint, at bigint, bidder bigint")
        )
        self.best = runtime_context.get_state(ValueStateDescriptor("best", "price bigint, at bigint, bidder bigint"))

    def process_element1(self, value, ctx):
        self.auction.update((value.at, value.expires, value.seller, value.category))
        ctx.timer_service().register_event_time_timer(value.expires)
        for bid in self.early.get():
            self.offer(*bid)
        self.early.clear()

    def process_element2(self, value, ctx):
        if self.auction.value() is None:
            self.early.add((value.price, value.at, value.bidder))
        else:
            self.offer(value.price, value.at, value.bidder)

    def offer(self, price, at, bidder):
        opened, expires, *_ = self.auction.value()
        best = self.best.value()
        if opened <= at <= expires and (best is None or _rank(price, at, bidder) > _rank(*best)):
            self.best.update((price, at, bidder))

    def on_timer(self, timestamp, ctx):
        _, expires, seller, category = self.auction.value()
        best = self.best.value()
        if best is not None:
            yield ctx.get_current_key(), seller, category, expires, *best
        self.best.clear()


def _rank(price, at, bidder):
    """The greatest price wins, of equal ones the first."""
    return price, -at, -bidder


WINNER = "auction bigint, seller bigint, category bigint, expires bigint, price bigint, at bigint, bidder bigint"


def q9(events: Events) -> DataStream:
    """The winning bid of each auction."""
    return events.auctions.key_by("id").connect(events.bids.key_by("auction")).process(Winner(), output_type=WINNER)


class Average(KeyedProcessFunction):
    """The mean so far."""

    def open(self, runtime_context):
        self.so_far = runtime_context.get_state(ValueStateDescriptor("so far", "total bigint, count bigint"))

    def process_element(self, value, ctx):
        total, count = self.so_far.value() or (0, 0)
        self.so_far.update((total + value.price, count + 1))
        yield value.category, (total + value.price) / (count + 1)


def q4(events: Events) -> DataStream:
    """The mean of the winning prices of each category, again with each auction that ends."""
    return q9(events).key_by("category").process(Average(), output_type="category bigint, average double")


class LastTen(KeyedProcessFunction):
    """The mean of the last ten auctions of a seller, in the order of their ends."""

    def open(self, runtime_context):
        self.ended = runtime_context.get_map_state(
            MapStateDescriptor("ended", "bigint", "array<struct<id bigint, price bigint>>")
        )
        self.prices = runtime_context.get_list_state(ListStateDescriptor("prices", "bigint"))

    def process_element(self, value, ctx):
        self.ended.put(value.expires, [*(self.ended.get(value.expires) or []), (value.auction, value.price)])
        ctx.timer_service().register_event_time_timer(value.expires)

    def on_timer(self, timestamp, ctx):
        prices = list(self.prices.get())
        for auction, price in sorted(map(tuple, self.ended.get(timestamp))):
            prices = [*prices, price][-10:]
            yield ctx.get_current_key(), auction, sum(prices) / len(prices)
        self.ended.remove(timestamp)
        self.prices.update(prices)


def q6(events: Events) -> DataStream:
    """The mean price of each seller's last ten auctions, for each auction that ends."""
    return q9(events).key_by("seller").process(LastTen(), output_type="seller bigint, auction bigint, average double")


class Bounds(ProcessWindowFunction):
    """What a window has, with its key and its bounds."""

    def process(self, key, context, elements):
        window = context.window()
        for value in elements:
            yield key, value, window.start, window.end


class Count(AggregateFunction):
    """How many."""

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Greatest(AggregateFunction):
    """All records with the greatest value of a field."""

    def __init__(self, field):
        self.field = field

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        greatest = accumulator[0][self.field] if accumulator else None
        if greatest is None or value[self.field] > greatest:
            return [value]
        return [*accumulator, value] if value[self.field] == greatest else accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        for value in acc_b:
            acc_a = self.add(value, acc_a)
        return acc_a


COUNTED = "auction bigint, bids bigint, start bigint, end bigint"


def q5(events: Events) -> DataStream:
    """The auctions with most bids in the last ten seconds, every two seconds."""
    windows = SlidingEventTimeWindows.of(timedelta(seconds=10), timedelta(seconds=2))
    counts = events.bids.key_by("auction").window(windows).aggregate(Count(), Bounds(), output_type=COUNTED)
    ends = counts.key_by("end").window(TumblingEventTimeWindows.of(timedelta(seconds=2)))
    return ends.aggregate(Greatest("bids")).flat_map(lambda best: best, output_type=COUNTED)


def q7(events: Events) -> DataStream:
    """The highest bids of every ten seconds."""
    windows = TumblingEventTimeWindows.of(timedelta(seconds=10))
    # First for each bidder, so that one subtask sees few of them.
    own = (
        events.bids.key_by("bidder")
        .window(windows)
        .aggregate(Greatest("price"))
        .flat_map(lambda best: best, output_type=BID)
    )
    highest = own.window_all(windows).aggregate(Greatest("price")).flat_map(lambda best: best, output_type=BID)
    return highest.map(
        lambda b: (b.auction, b.price, b.bidder, b.at),
        output_type="auction bigint, price bigint, bidder bigint, at bigint",
    )


class NewSeller(CoGroupFunction):
    """A person who is new and sells something."""

    def co_group(self, first, second):
        if second:
            for person in first:
                yield person.id, person.name, person.at // 10_000 * 10_000


def q8(events: Events) -> DataStream:
    """Who registered and sold something within the same ten seconds?"""
    pairs = events.persons.co_group(events.auctions).where("id").equal_to("seller")
    windows = TumblingEventTimeWindows.of(timedelta(seconds=10))
    return pairs.window(windows).apply(NewSeller(), output_type="id bigint, name string, start bigint")


def q11(events: Events) -> DataStream:
    """How many bids did a person make in one go?"""
    windows = EventTimeSessionWindows.with_gap(timedelta(seconds=10))
    return (
        events.bids.key_by("bidder")
        .window(windows)
        .aggregate(Count(), Bounds(), output_type="bidder bigint, bids bigint, start bigint, end bigint")
    )


class Statistics(AggregateFunction):
    """Bids by price: all, below 10,000, below 1,000,000, above; and the persons and auctions of each."""

    def create_accumulator(self):
        return [0, 0, 0, 0], [set(), set(), set(), set()], [set(), set(), set(), set()]

    def add(self, value, accumulator):
        rank = 1 if value.price < 10_000 else 2 if value.price < 1_000_000 else 3
        counts, bidders, sold = accumulator
        for i in (0, rank):
            counts[i] += 1
            bidders[i].add(value.bidder)
            sold[i].add(value.auction)
        return accumulator

    def get_result(self, accumulator):
        counts, bidders, sold = accumulator
        return (*counts, *map(len, bidders), *map(len, sold))

    def merge(self, acc_a, acc_b):
        for mine, theirs in zip(acc_a[1] + acc_a[2], acc_b[1] + acc_b[2], strict=True):
            mine |= theirs
        return [a + b for a, b in zip(acc_a[0], acc_b[0], strict=True)], acc_a[1], acc_a[2]


class Flat(ProcessWindowFunction):
    """The key, the day and the values of a window in one record."""

    def process(self, key, context, elements):
        for value in elements:
            yield key, context.window().start // DAY, *value


_RANKED = ", ".join(f"{what}{i} bigint" for what in ("bids", "bidders", "auctions") for i in range(4))


def q16(events: Events) -> DataStream:
    """Statistics of each channel and day."""
    days = events.bids.key_by("channel").window(TumblingEventTimeWindows.of(timedelta(days=1)))
    return days.aggregate(Statistics(), Flat(), output_type=f"channel string, day bigint, {_RANKED}")


class Prices(AggregateFunction):
    """Bids by price, and least, greatest and total price."""

    def create_accumulator(self):
        return 0, 0, 0, 0, None, None, 0

    def add(self, value, accumulator):
        price = value.price
        rank = 1 if price < 10_000 else 2 if price < 1_000_000 else 3
        counts = [count + (i in (0, rank)) for i, count in enumerate(accumulator[:4])]
        least, greatest, total = accumulator[4:]
        least = price if least is None else min(least, price)
        return *counts, least, max(greatest or price, price), total + price

    def get_result(self, accumulator):
        return *accumulator[:6], accumulator[6] / accumulator[0], accumulator[6]

    def merge(self, acc_a, acc_b):
        counts = [a + b for a, b in zip(acc_a[:4], acc_b[:4], strict=True)]
        both = [acc for acc in (acc_a, acc_b) if acc[0]]
        least, greatest = min(acc[4] for acc in both), max(acc[5] for acc in both)
        return *counts, least, greatest, acc_a[6] + acc_b[6]


def q17(events: Events) -> DataStream:
    """Statistics of each auction and day."""
    days = events.bids.key_by("auction").window(TumblingEventTimeWindows.of(timedelta(days=1)))
    return days.aggregate(
        Prices(),
        Flat(),
        output_type="auction bigint, day bigint, bids bigint, low bigint, middle bigint, high bigint, "
        "least bigint, greatest bigint, average double, total bigint",
    )


class Last(KeyedProcessFunction):
    """The newest bid; a bid that is older than it changes nothing."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "at bigint, price bigint"))

    def process_element(self, value, ctx):
        last = self.last.value()
        if last is None or (value.at, value.price) > last:
            self.last.update((value.at, value.price))
            yield value


def q18(events: Events) -> DataStream:
    """The last bid of each person on each auction, again when it changes."""
    return events.bids.key_by(lambda b: (b.bidder, b.auction), "bidder bigint, auction bigint").process(
        Last(), output_type=BID
    )


class TopTen(KeyedProcessFunction):
    """The ten highest bids of an auction."""

    def open(self, runtime_context):
        self.top = runtime_context.get_list_state(ListStateDescriptor("top", "price bigint, at bigint, bidder bigint"))

    def process_element(self, value, ctx):
        old = [tuple(bid) for bid in self.top.get()]
        new = sorted([*old, (value.price, value.at, value.bidder)], key=lambda bid: (-bid[0], bid[1], bid[2]))[:10]
        if new != old:
            self.top.update(new)
            for rank, bid in enumerate(new):
                if rank >= len(old) or old[rank] != bid:
                    yield value.auction, rank + 1, *bid


def q19(events: Events) -> DataStream:
    """The ten highest bids of each auction, each rank again when it changes."""
    return events.bids.key_by("auction").process(
        TopTen(), output_type="auction bigint, rank bigint, price bigint, at bigint, bidder bigint"
    )


class WithAuction(KeyedCoProcessFunction):
    """Bids wait for their auction."""

    def open(self, runtime_context):
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction", "item string, seller bigint"))
        self.early = runtime_context.get_list_state(
            ListStateDescriptor("early", "price bigint, at bigint, bidder bigint")
        )

    def process_element1(self, value, ctx):
        self.auction.update((value.item, value.seller))
        for bid in self.early.get():
            yield value.id, value.item, value.seller, *bid
        self.early.clear()

    def process_element2(self, value, ctx):
        auction = self.auction.value()
        if auction is None:
            self.early.add((value.price, value.at, value.bidder))
        else:
            yield value.auction, *auction, value.price, value.at, value.bidder


def q20(events: Events) -> DataStream:
    """Bids with their auction, for one category."""
    things = events.auctions.filter(lambda a: a.category == 10).key_by("id")
    return things.connect(events.bids.key_by("auction")).process(
        WithAuction(),
        output_type="auction bigint, item string, seller bigint, price bigint, at bigint, bidder bigint",
    )


def q22(events: Events) -> DataStream:
    """The parts of each bid's address."""
    return events.bids.map(
        lambda b: (b.auction, b.bidder, *b.url.split("/")[2:5]),
        output_type="auction bigint, bidder bigint, host string, number string, action string",
    )


QUERIES: dict[str, Callable[[Events], DataStream]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q16, q17, q18, q19, q20, q22)
}


def main() -> None:
    name, count = (sys.argv[1:] + ["q5", "100000"][len(sys.argv) - 1 :])[:2]
    env = StreamExecutionEnvironment.get_execution_environment()
    QUERIES[name](Events(env, int(count))).print()
    env.execute(f"nexmark {name}")


if __name__ == "__main__":
    main()
