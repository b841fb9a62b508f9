"""A program with modules beside it: a file, a package, and one that only a worker imports."""

import shapes
from greetings.polite import Greeter

from headrace import StreamExecutionEnvironment


def lazily(value):
    import only_in_workers

    return only_in_workers.decorate(value)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(["a", "b"]).map(shapes.square).map(Greeter()).map(lazily).print()
    env.execute("beside")


if __name__ == "__main__":
    main()
