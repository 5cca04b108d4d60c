"""What libraries find out anew for each bundle, job or connection: in the tests they look once.

Beam looks through a step's methods and their parameters for each bundle: on the runner that forms bundles of a few
elements this took over a third of the processor's time. A tenth went, on all of them, into parsers of command lines
that were read already, and another into statements that SQLAlchemy writes anew for each engine, of which a job has a
dozen. What a step gets, and when, is as before.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary


def remember_reflection() -> None:
    """Keep what Beam and SQLAlchemy find out, if they are imported; once is enough."""
    engines: Any = sys.modules.get("sqlalchemy.engine.base")
    if engines is not None and not hasattr(engines.Engine, "_compiled_cache"):
        texts = _Texts()
        engines.Engine._compiled_cache = property(lambda _: texts, lambda *_: None)
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


class _Texts(dict[Any, Any]):
    """Statements as text, for all dialects that are alike; SQLAlchemy's own key has the dialect itself."""

    @staticmethod
    def _key(key: Any) -> Any:
        dialect, *rest = key
        return (dialect.name, dialect.driver, dialect.paramstyle, dialect.server_version_info, *rest)

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._key(key), default)

    def __setitem__(self, key: Any, text: Any) -> None:
        if len(self) < _MOST_TEXTS:
            super().__setitem__(self._key(key), text)


_MOST_TEXTS = 5_000


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
