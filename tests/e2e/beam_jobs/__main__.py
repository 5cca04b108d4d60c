"""Run one of the pipelines by its name."""

from __future__ import annotations

import sys
from importlib import import_module

import_module(f"beam_jobs.{sys.argv[1]}").run(sys.argv[2:])
