"""PyFlink's module paths: a PyFlink DataStream program runs on Spark by changing the root of its imports.

    from pyflink.datastream import StreamExecutionEnvironment            # before
    from headgate.pyflink.datastream import StreamExecutionEnvironment   # after

The names are those of `headgate`, found where PyFlink has them; only where PyFlink's shape differs (futures of a job
client, the runtime mode) is there a thin class of our own. What Headgate does not have yet is not here either.
"""
