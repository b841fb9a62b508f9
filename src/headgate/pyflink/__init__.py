"""PyFlink's module paths: a PyFlink DataStream program runs on Spark by changing the root of its imports.

    from pyflink.datastream import StreamExecutionEnvironment            # before
    from headgate.pyflink.datastream import StreamExecutionEnvironment   # after

The names are those of `headgate`, in the modules where PyFlink has them. Where PyFlink's interface differs (futures of a
job client, the runtime mode), and for names of Flink 1.x, there is a thin class. What Headgate does not have is missing.
"""
