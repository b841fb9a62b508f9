"""A window class of the program, with a serializer of its own.

Modelled on: PyFlink-UserBehaviorAnalysis, base_window (class TimeWindow(Window)).

Not run on PyFlink: it ends with an error there, since PyFlink stores windows of its own classes only.

Prints:
    a ColorWindow(1) ['x', 'z']
    a ColorWindow(2) ['y', 'v']
"""

import struct
from collections.abc import Collection

from headrace.pyflink.common import TypeSerializer
from headrace.pyflink.datastream import CountWindow, StreamExecutionEnvironment, Window, WindowAssigner, WindowFunction
from headrace.pyflink.datastream.window import CountTrigger, PurgingTrigger


class ColorWindow(Window):
    def __init__(self, color: int):
        self.color = color

    def max_timestamp(self) -> int:
        return 0x7FFFFFFFFFFFFFFF

    def __hash__(self):
        return hash(self.color)

    def __eq__(self, other):
        return self.__class__ == other.__class__ and self.color == other.color

    def __repr__(self):
        return f"ColorWindow({self.color})"


class ColorWindowSerializer(TypeSerializer[ColorWindow]):
    def serialize(self, element: ColorWindow, stream) -> None:
        stream.write(struct.pack(">q", element.color))

    def deserialize(self, stream) -> ColorWindow:
        return ColorWindow(struct.unpack(">q", stream.read(8))[0])


class ByColor(WindowAssigner[tuple, ColorWindow]):
    def assign_windows(self, element: tuple, timestamp: int, context) -> Collection[ColorWindow]:
        return [ColorWindow(element[1])]

    def get_default_trigger(self, env):
        return PurgingTrigger.of(CountTrigger.of(2))

    def get_window_serializer(self):
        return ColorWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class Show(WindowFunction[tuple, str, str, CountWindow]):
    def apply(self, key, window, inputs):
        return [f"{key} {window!r} {[i[2] for i in inputs]}"]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([("a", 1, "x"), ("a", 2, "y"), ("a", 1, "z"), ("b", 1, "u"), ("a", 2, "v")]).key_by(
    lambda x: x[0]
).window(ByColor()).apply(Show()).print()
env.execute()
