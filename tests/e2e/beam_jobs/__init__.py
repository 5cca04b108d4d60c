"""Small pipelines of Beam alone, for the tests of the runners themselves.

Run as ``python -m beam_jobs NAME ARGUMENTS``, with the folder above on PYTHONPATH: the steps are then pickled by the
name of a module that the workers can import too.
"""
