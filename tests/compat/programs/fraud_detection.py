"""An alert when a small transaction is followed by a large one.

Modelled on: Apache Flink, Fraud detection with the DataStream API (Python tab).

Prints:
    Alert{id=2}
    Alert{id=4}
"""

from headrace.pyflink.common.typeinfo import Types
from headrace.pyflink.datastream import StreamExecutionEnvironment
from headrace.pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from headrace.pyflink.datastream.state import ValueStateDescriptor


class FraudDetector(KeyedProcessFunction):
    SMALL_AMOUNT = 1.00
    LARGE_AMOUNT = 500.00

    def __init__(self):
        self.flag_state = None

    def open(self, runtime_context: RuntimeContext):
        descriptor = ValueStateDescriptor("flag", Types.BOOLEAN())
        self.flag_state = runtime_context.get_state(descriptor)

    def process_element(self, transaction, ctx: "KeyedProcessFunction.Context"):
        account_id = transaction[0]
        amount = transaction[2]
        last_transaction_was_small = self.flag_state.value()
        if last_transaction_was_small is not None:
            if amount > self.LARGE_AMOUNT:
                yield f"Alert{{id={account_id}}}"
            self.flag_state.clear()
        if amount < self.SMALL_AMOUNT:
            self.flag_state.update(True)


def fraud_detection():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    transactions = env.from_collection(
        [
            (1, 1000, 188.23),
            (2, 1001, 0.50),
            (2, 1002, 600.00),
            (1, 1004, 0.89),
            (1, 1005, 300.00),
            (4, 1006, 0.10),
            (4, 1007, 520.00),
        ],
        type_info=Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()]),
    )
    transactions.key_by(lambda t: t[0]).process(FraudDetector()).print()
    env.execute("Fraud Detection")


if __name__ == "__main__":
    fraud_detection()
