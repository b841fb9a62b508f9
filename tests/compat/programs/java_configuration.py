"""The options of an environment through the Java object behind it, as before get_configuration().

Modelled on: PyFlink-UserBehaviorAnalysis, MarketAnalysis/AdStatisticsByGeo.

Fails:
    ModuleNotFoundError: pyflink.util is not in Headrace: it is internal to PyFlink; remove what reaches into
    it
"""

from headrace.pyflink.util.java_utils import get_j_env_configuration

from headrace.pyflink.common import Configuration
from headrace.pyflink.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
config = Configuration(j_configuration=get_j_env_configuration(env._j_stream_execution_environment))
config.set_integer("python.fn-execution.bundle.size", 10)
env.from_collection([1]).print()
env.execute()
