"""Eyrie: a declarative build system for EAGLE-3 drafters."""

__version__ = "0.1.0"
