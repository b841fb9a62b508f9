"""From the program that an environment has built to the job that runs it; in the driver."""
