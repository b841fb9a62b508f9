"""From calls of the API to tasks: the job graph, its levels, and what each task has to know."""
