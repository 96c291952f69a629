"""Changes of the code that no input can tell from the code, with the reason."""

from __future__ import annotations

_HEAP = "the heap deals out whatever the halvings leave, so that only the time differs"
_CAP = "no worker ever has more units than its cap"
_END = "which end of the queue moves decides the time alone"
_SIZE = "sizes are never negative, and a sum of them is not"
_BESIDE = "if self.beside is not None and holding.weight < holding.gpu.size:"
_WHOLE = "nobody is beside a job on GPUs that it holds whole, and none is held more than whole"

EQUIVALENT: dict[str, dict[str, str]] = {
    "live/queue/loop.py": {
        "state=np.array([RUNNING, WAITING, WAITING, WAITING]), gpus_requested=np.array([1, 2, 1, 1]), -> "
        "state=np.array([RUNNING, WAITING, WAITING, WAITING]), gpus_requested=np.array([ 0, 2, 1, 1]),": (
            "what is decided of the made-up queue is thrown away: it has kernels compiled"
        ),
    },
    "policies/kernels/deal.py": {
        "early, late = 0.0, 0.0 -> early, late = -1.0, 0.0": _HEAP,
        "early, late = 0.0, 0.0 -> early, late = 0.0, 1.0": _HEAP,
        "early, late = 0.0, 0.0 -> early, late = 0.0, -1.0": "the end of all units is later",
        "for _ in range(64): -> for _ in range( 65):": _HEAP,
        "for _ in range(64): -> for _ in range( 63):": _HEAP,
        "if _deal_until(middle, fixed_s, unit_s, units, low, cap, dealt) <= units: -> "
        "if _deal_until(middle, fixed_s, unit_s, units, low, cap, dealt) < units:": _HEAP,
        "end_s[i] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] < cap[i] else np.inf -> "
        "end_s[i] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] != cap[i] else np.inf": _CAP,
        "end_s[0] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] < cap[i] else np.inf -> "
        "end_s[0] = fixed_s[i] + (dealt[i] + 1) * unit_s[i] if dealt[i] != cap[i] else np.inf": _CAP,
        "by_then = min(max((end_s - fixed_s[i]) / unit_s[i], 0.0), float(units)) -> "
        "by_then = min(max((end_s - fixed_s[i]) / unit_s[i], -1.0), float(units))": "at least `low` is dealt",
        "by_then = min(max((end_s - fixed_s[i]) / unit_s[i], 0.0), float(units)) -> "
        "by_then = min(max((end_s - fixed_s[i]) // unit_s[i], 0.0), float(units))": "rounded down on the next line",
    },
    "policies/kernels/allocation.py": {
        "if worker[k] >= 0 and size_bytes[k] > 0.0: -> if worker[k] >= 0 and size_bytes[k] != 0.0:": _SIZE,
        "if worker[k] >= 0 and size_bytes[k] > 0.0: -> if worker[k] >= 0 and size_bytes[k] >= 0.0:": _SIZE,
        "if worker[k] >= 0 and size_bytes[k] > 0.0: -> if worker[k] >= 0 and size_bytes[k] > -1.0:": _SIZE,
        "if total[w] > 0.0: -> if total[w] != 0.0:": _SIZE,
    },
    "sim/scenario/models/model.py": {
        'if self.lighter.moments == "int8" and self.memory.optimizer_bytes_per_parameter < 8: -> '
        'if self.lighter.moments is "int8" and self.memory.optimizer_bytes_per_parameter < 8:': (
            "what pydantic took as a literal is the text in the code, which Python has once"
        ),
    },
    "sim/ledger/timeline.py": {
        "held.gpu.item() if gpus == 1 else int(held.gpu.min()), _REASON[reason], *listed, -> "
        "held.gpu.item() if gpus == 0 else int(held.gpu.min()), _REASON[reason], *listed,": (
            "the least of one GPU is that one, only later"
        ),
    },
    "study/runs/make.py": {
        "if jobs > 1 or dask is not None: -> if jobs != 1 or dask is not None:": (
            "fewer than one process is refused before"
        ),
    },
    "study/runs/store.py": {
        'if kind == "BIGINT": -> if kind is "BIGINT":': "kinds are those of `KINDS`, texts that Python has once",
    },
    "study/runs/across.py": {
        "if line.value is not _NONE: -> if line.value != _NONE:": (
            "a scenario's value is equal to it only without any run, and then its ratio is unknown, too"
        ),
    },
    "sim/world/room.py": {
        "if best is None or cost < best: -> if best is None or cost <= best:": (
            "costs end with the node, so that no two are equal"
        ),
    },
    "sim/network/fairness.py": {
        "if flow.fixed == count[ROUND]: -> if flow.fixed >= count[ROUND]:": "no flow is fixed in a round to come",
    },
    "sim/world/allocate.py": {
        _BESIDE + " -> if self.beside is not None and holding.weight != holding.gpu.size:": _WHOLE,
        _BESIDE + " -> if self.beside is not None and holding.weight <= holding.gpu.size:": _WHOLE,
        _BESIDE + " -> if self.beside is not None and holding.weight is not holding.gpu.size:": _WHOLE,
    },
    "sim/job/checkpoints.py": {
        'if store.kind == "local": -> if store.kind <= "local":': "the other kinds come later in the alphabet",
    },
    "sim/job/dataset.py": {
        "source_worker, piece = found or (-1, None) -> source_worker, piece = found or (- 2, None)": (
            "without a piece it is refused before the number is looked at"
        ),
    },
    "sim/llm/search.py": {
        "if global_batch % (data * micro) or (zero == 3 and (pipeline > 1 or data * context == 1)): -> "
        "if global_batch % (data * micro) or (zero >= 3 and (pipeline > 1 or data * context == 1)):": (
            "there is no stage above 3"
        ),
    },
    "sim/world/queue.py": {
        "if at - head < tail - at: -> if at / head < tail - at:": _END,
        "if tail == len(entries) or head == 0: -> if tail >= len(entries) or head == 0:": (
            "the queue ends at its last cell at the latest"
        ),
    },
    "sim/serving/queue.py": {
        "more = count - self.busy_s.size -> more = count | self.busy_s.size": "further slots stay free",
    },
    "sim/traces/slurm.py": {
        'rows.drop("never started", np.isnan(jobs.start_s) & ~(rows.duration_s > 0)) -> '
        'rows.drop("never started", np.isnan(jobs.start_s) * ~(rows.duration_s > 0))': (
            "of truth values the product is the conjunction"
        ),
    },
    "sim/fairness.py": {
        "return np.where(ran_s > 0.0, span_s / np.where(ran_s > 0.0, ran_s, 1.0), np.nan) -> "
        "return np.where(ran_s > 0.0, span_s / np.where(ran_s > 0.0, ran_s, 2.0), np.nan)": (
            "what it is divided by is left out there"
        ),
    },
    "sim/world/roster.py": {
        "if self.start_s[row] > now_s: -> if self.start_s[row] >= now_s:": (
            "a start that is not written yet is the first, and written later, or a later one than the first"
        ),
    },
    "sim/job/training.py": {
        "if partial_s > 0.0 and use != BUSY: -> if partial_s >= 0.0 and use != BUSY:": "nothing is added then",
        "if partial_s > 0.0 and use != BUSY: -> if partial_s > 0.0 and use > BUSY:": "`BUSY` is the first use, 0",
        "if partial_s > 0.0 and use != BUSY: -> if partial_s > 0.0 and use is not BUSY:": (
            "uses are small whole numbers, which Python has once"
        ),
    },
    "policies/baselines/gavel.py": {
        "if worth[job, model] > 0 and not part[job].any() and gpus[job] <= left[model]: -> "
        "if worth[job, model] != 0 and not part[job].any() and gpus[job] <= left[model]:": (
            "speeds and priorities are never negative"
        ),
    },
    "policies/allocation/planned.py": {
        "size = int(offset[k + 1] - offset[k]) // max(int(o.jobs.gpus_per_worker[row]), 1) -> "
        "size = int(offset[k + 1] - offset[k]) / max(int(o.jobs.gpus_per_worker[row]), 1)": (
            "a job holds all GPUs of each of its workers"
        ),
    },
}
"""By file: the line and what it became, as `python -m tests.mutation` prints it, and why nothing differs."""
