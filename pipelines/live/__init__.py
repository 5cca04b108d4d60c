"""Live jobs: started, watched and ended.

``command``, ``job``
    ``quiltstream run --live``, and the graph that it builds
``follow``, ``watch``, ``failures``
    a job while it runs; why it publishes nothing, said and as a metric; what its failure ends with
``runner``, ``flink``, ``lifeline``
    which runners can follow a source, a job in a Flink cluster, processes that end with the command
"""
