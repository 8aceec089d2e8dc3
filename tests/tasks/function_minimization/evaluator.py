"""OpenEvolve's function_minimization example, written anew after its documentation: the evaluator loads the program
into its own process, runs it several times under a timeout of its own, and has two stages and artifacts."""

import concurrent.futures
import importlib.util
import traceback

import numpy as np
from openevolve.evaluation_result import EvaluationResult

GLOBAL_MIN_X, GLOBAL_MIN_Y, GLOBAL_MIN_VALUE = -1.704, 0.678, -1.519
TRIALS = 5


def load(program_path):
    spec = importlib.util.spec_from_file_location("program", program_path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def run_with_timeout(func, timeout_seconds=5):
    with concurrent.futures.ThreadPoolExecutor() as executor:
        return executor.submit(func).result(timeout=timeout_seconds)


def evaluate(program_path):
    try:
        program = load(program_path)
        if not hasattr(program, "run_search"):
            return EvaluationResult(
                metrics={"combined_score": 0.0, "error": "Missing run_search function"},
                artifacts={"suggestion": "define run_search()"},
            )
        values, distances = [], []
        for _ in range(TRIALS):
            x, y, value = run_with_timeout(program.run_search)
            if not all(np.isfinite([x, y, value])):
                continue
            values.append(float(value))
            distances.append(float(np.hypot(x - GLOBAL_MIN_X, y - GLOBAL_MIN_Y)))
        if not values:
            return EvaluationResult(metrics={"combined_score": 0.0, "error": "All trials failed"}, artifacts={})
        value_score = float(1.0 / (1.0 + abs(np.mean(values) - GLOBAL_MIN_VALUE)))
        distance_score = float(1.0 / (1.0 + np.mean(distances)))
        reliability = len(values) / TRIALS
        combined = 0.5 * value_score + 0.3 * distance_score + 0.2 * reliability
        return EvaluationResult(
            metrics={
                "value_score": value_score,
                "distance_score": distance_score,
                "reliability_score": reliability,
                "combined_score": combined,
            },
            artifacts={"best_value": f"{min(values):.4f}", "average_distance": f"{np.mean(distances):.4f}"},
        )
    except Exception as e:
        return EvaluationResult(
            metrics={"combined_score": 0.0, "error": str(e)}, artifacts={"traceback": traceback.format_exc()}
        )


def evaluate_stage1(program_path):
    """One trial only, for cascade evaluation."""
    try:
        x, y, value = run_with_timeout(load(program_path).run_search)
        return EvaluationResult(metrics={"runs_successfully": 1.0, "combined_score": float(value < 0)}, artifacts={})
    except Exception as e:
        return EvaluationResult(metrics={"runs_successfully": 0.0, "error": str(e)}, artifacts={})


def evaluate_stage2(program_path):
    return evaluate(program_path)
