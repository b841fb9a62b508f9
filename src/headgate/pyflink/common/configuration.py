"""`pyflink.common.configuration`."""

from headgate.config import Configuration as Configuration
