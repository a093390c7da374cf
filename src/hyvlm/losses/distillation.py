"""Distillation: the student ranks candidates as its teacher does."""

from __future__ import annotations

from torch import Tensor


def distillation_rows(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """Kullback-Leibler divergence of each row's softmax from the teacher to the student; no gradient for the teacher.

    Args:
        teacher_logits, student_logits: ``(n, m)``, already divided by their temperatures.
    Returns:
        Shape ``(n,)``.
    Source: HyFL-CLIP, Eqs. 11 and 12.
    """
    teacher = teacher_logits.detach().log_softmax(-1)
    return (teacher.exp() * (teacher - student_logits.log_softmax(-1))).sum(-1)
