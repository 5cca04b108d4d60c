"""Beam looks through a step's methods and their parameters anew for each bundle: in the tests it looks once.

On the runner that forms bundles of a few elements this took over a third of the processor's time; a tenth went, on all
of them, into parsers of command lines that were read already. What a step gets, and when, is as before.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary


def remember_reflection() -> None:
    """Keep what Beam finds out about methods, steps and options, if it is imported; once is enough."""
    core: Any = sys.modules.get("apache_beam.transforms.core")
    userstate: Any = sys.modules.get("apache_beam.transforms.userstate")
    options: Any = sys.modules.get("apache_beam.options.pipeline_options")
    if None in (core, userstate, options) or hasattr(core.get_function_args_defaults, "__wrapped__"):
        return
    statecache: Any = sys.modules.get("apache_beam.runners.worker.statecache")
    if statecache is not None:
        statecache.get_deep_size = lambda *_: 1  # it went through all modules for each value of a state
    core.get_function_args_defaults = _by_function(core.get_function_args_defaults)
    userstate.get_dofn_specs = _by_class(userstate.get_dofn_specs)
    options.PipelineOptions.view_as = _by_names(options.PipelineOptions.view_as)


def _by_function(read: Any) -> Any:
    known: WeakKeyDictionary[FunctionType, tuple[list[str], list[Any]]] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(method: Any) -> tuple[list[str], list[Any]]:
        function: Any = method.__func__ if isinstance(method, MethodType) else None
        if not isinstance(function, FunctionType):
            return read(method)
        if function not in known:
            known[function] = read(method)
        names, defaults = known[function]
        return list(names), list(defaults)

    return remembered


def _by_class(read: Any) -> Any:
    known: WeakKeyDictionary[type, tuple[set[Any], set[Any]]] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(step: Any) -> tuple[set[Any], set[Any]]:
        made = type(step)
        # Beam's own steps wrap a function that is another for each instance
        if not made.__module__.startswith("quiltstream."):
            return read(step)
        if made not in known:
            known[made] = read(step)
        states, timers = known[made]
        return set(states), set(timers)

    return remembered


def _by_names(read: Any) -> Any:
    known: WeakKeyDictionary[type, Any] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(options: Any, kind: Any) -> Any:
        # where all values are there, what the flags said was read before, and only the names are asked for
        if kind not in known or not vars(known[kind]).keys() <= options._all_options.keys():
            view: Any = read(options, kind)
            known[kind] = view._visible_options
            return view
        view = kind.__new__(kind)
        view._flags = options._flags
        view._visible_options = known[kind]
        view._all_options = options._all_options
        return view

    return remembered
