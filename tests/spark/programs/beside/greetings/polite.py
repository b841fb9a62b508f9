from headrace import MapFunction


class Greeter(MapFunction):
    def map(self, value):
        return f"hello {value}"
