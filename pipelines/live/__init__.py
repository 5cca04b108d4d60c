"""Live jobs: started, monitored, restarted and ended.

``command``, ``job``
    ``quiltstream run --live``, and the graph that it builds
``runner``, ``flink``, ``lifeline``
    which runners can follow a source, a job in a Flink cluster, processes that end with the command
``monitor``, ``watchdog``
    what is printed; why a job stopped producing, said and as a metric for Prometheus
``restarts``
    when a failed job is restarted
"""
