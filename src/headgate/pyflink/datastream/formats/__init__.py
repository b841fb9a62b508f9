"""`pyflink.datastream.formats`."""
