"""`pyflink.common.constants`."""

MAX_LONG_VALUE = 0x7FFF_FFFF_FFFF_FFFF
MIN_LONG_VALUE = -MAX_LONG_VALUE - 1
