"""Suites: the tables of the papers as lists of evaluations, run on what a data root holds, for several models."""

from hyvlm.suites.catalog import Suite, read_suite, suite_names
from hyvlm.suites.runner import SuiteRun, run_suites

__all__ = ["Suite", "SuiteRun", "read_suite", "run_suites", "suite_names"]
