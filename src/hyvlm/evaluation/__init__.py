"""Tasks, metrics, and the runner that shares one pass over the images among them."""

from hyvlm.evaluation.cache import EmbeddingCache
from hyvlm.evaluation.embed import Embedder
from hyvlm.evaluation.report import Result, perturbation_table, results_table, write_results
from hyvlm.evaluation.runner import EvalSpec, check_specs, evaluate
from hyvlm.evaluation.task import TASKS, Outcome, Task
from hyvlm.evaluation.tasks.prompt_audit import prompt_audit_table

__all__ = [
    "TASKS",
    "Embedder",
    "EmbeddingCache",
    "EvalSpec",
    "Outcome",
    "Result",
    "Task",
    "check_specs",
    "evaluate",
    "perturbation_table",
    "prompt_audit_table",
    "results_table",
    "write_results",
]
