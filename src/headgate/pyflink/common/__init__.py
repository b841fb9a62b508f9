"""`pyflink.common`."""

from headgate.pyflink.common.completable_future import *
from headgate.pyflink.common.configuration import *
from headgate.pyflink.common.job_client import *
from headgate.pyflink.common.job_execution_result import *
from headgate.pyflink.common.job_id import *
from headgate.pyflink.common.job_status import *
from headgate.pyflink.common.restart_strategy import *
from headgate.pyflink.common.time import *
from headgate.pyflink.common.typeinfo import *
from headgate.pyflink.common.types import *
