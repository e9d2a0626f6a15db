"""Running durable jobs (``wattcast.app.store.jobs``).

worker      claims jobs, runs each in a child process, keeps its lease alive, ends it
__main__    the child: ``python -m wattcast.app.jobs <job id>``
"""
