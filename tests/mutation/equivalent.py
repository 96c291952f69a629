"""Changes of the code that no input can tell from the code, with the reason."""

from __future__ import annotations

_HEAP = "the heap deals out whatever the halvings leave, so that only the time differs"
_CAP = "no worker ever has more units than its cap"
_END = "which end of the queue moves decides the time alone"
_SIZE = "sizes are never negative, and a sum of them is not"
_BESIDE = "if self.beside is not None and holding.weight < holding.gpu.size:"
_SMALL_INT = "small whole numbers, which Python has once"
_RAN_ON = (
    "ran_on = was == RUNNING and state == RUNNING and before is not None and job.start_s != before.start_s"
)
_ONE_MEMBER = "a member of an enumeration is there once"
_BITS = "the bits are different ones"
_STATUS = "a run is done or failed, and the one comes before the other in the alphabet"
_EACH = "there is one for each"
_FULL = "there is never more than there is space for"
_NONE_LEFT = "where nothing is left nothing is placed, and less than nothing never is"
_WHOLE = "nobody is beside a job on GPUs that it holds whole, and none is held more than whole"
_TRUTHS = "the product of truths is that both are true"
_MODES = "there are `formula` and `optimal` alone"
_LAST_STEP = "it is the last of the sub-steps"
_KINDS = "ibnetdiscover's nodes are `Ca`, `Rt` and `Switch`, in this order"
_UNITS = "there are `CPUs` and `GPUs` alone"

EQUIVALENT: dict[str, dict[str, str]] = {
    "live/decide/held_up.py": {
        "if len(self._shares) < _FIRST or share <= _TOLD: -> "
        "if len(self._shares) is not _FIRST or share <= _TOLD:": "there are never more",
    },
    "live/decide/leader.py": {
        "squares = np.where(scale > 0, stored / scale**2, np.nan) -> "
        "squares = np.where(scale > -1, stored / scale**2, np.nan)": "over 0 it is no finite number, either",
        'if self.decider is None or self.options.mode == "observe": -> '
        'if self.decider is None or self.options.mode >= "observe":': "the other modes come before it",
    },
    "live/decide/slow.py": {
        "if not window.rounds or len(window.samples) < 2: -> "
        "if not window.rounds or len(window.samples) < 1:": "no rank is slower than none, which is NaN",
    },
    "live/decide/window.py": {"idle = samples == 0 -> idle = samples <= 0": _SIZE},
    "live/decide/world.py": {
        "shared = {row: len(parts) > 1 or parts[0] < 1.0 for row, parts in held.items()} -> "
        "shared = {row: len(parts) != 1 or parts[0] < 1.0 for row, parts in held.items()}": "held by one at least",
    },
    "live/data/cache.py": {
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) -> "
        "fcntl.flock(descriptor, fcntl.LOCK_EX ^ fcntl.LOCK_NB)": _BITS,
    },
    "live/data/plane.py": {
        "later = set(queue) if ranks == 1 else None -> later = set(queue) if ranks <= 1 else None": (
            "a rank is on its own node"
        ),
    },
    "live/data/view.py": {
        "known = [row for row in found if row[2] > 0.0] -> known = [row for row in found if row[2] >= 0.0]": (
            "a path that was measured has a speed"
        ),
    },
    "live/options.py": {
        'if self.weighted and self.loss_reduction == "sum": -> '
        'if self.weighted and self.loss_reduction >= "sum":': "there are `mean` and `sum` alone",
        'other = f"accumulation of {self.accumulation}" if self.accumulation > 1 else "weighted batches" -> '
        'other = f"accumulation of {self.accumulation}" if self.accumulation != 1 else "weighted batches"': (
            "less than one is refused before"
        ),
    },
    "live/data/fetch.py": {
        "_CHUNK_BYTES = 1 << 18 -> _CHUNK_BYTES = 1 | 18": "how much is read at once decides the time alone",
    },
    "live/group/packing.py": {
        "if count == 0: -> if count <= 0:": "sizes that are negative are refused before"
    },
    "live/group/launcher.py": {
        "self._started = 0 -> self._started = -1": "it makes names, of which none is there twice",
    },
    "live/group/regroup.py": {
        "self._agreed: tuple[frozenset[int], int] = (frozenset(), -1)  # on whom, and on which round -> "
        "self._agreed: tuple[frozenset[int], int] = (frozenset(), - 2)  # on whom, and on which round": (
            "nobody is no group, so that the first one is another"
        ),
    },
    "live/queue/ahead.py": {
        "return [int(row) for row in given if o.jobs.state[row] == WAITING] -> "
        "return [int(row) for row in given if o.jobs.state[row] <= WAITING]": "`WAITING` is the first state, 0",
        "if len(observation.waiting) > len(order) and len(order) < self.most: -> "
        "if len(observation.waiting) > len(order) and len(order) != self.most:": (
            "to an order that is longer nothing is added"
        ),
    },
    "live/queue/apply.py": dict.fromkeys(
        (
            "highest = max((job.priority for job in rest), default=-1) -> "
            f"highest = max((job.priority for job in rest), default={changed})"
            for changed in ("~1", "- 0", "not 1")
        ),
        "an order that is taken for none is reckoned, and found to be in its places",
    ),
    "live/queue/machines.py": {
        "free = (holder == -1) & up[of_node] -> free = (holder == -1) * up[of_node]": "of flags both are the same",
        "running = {(job.id, job.start_s): job for job in jobs if job.phase is Phase.RUNNING} -> "
        "running = {(job.id, job.start_s): job for job in jobs if job.phase >= Phase.RUNNING}": (
            "beside them only `waiting` is, and such a job is on no node"
        ),
    },
    "live/queue/record.py": {
        "return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB) -> "
        "return fcntl.flock(file, fcntl.LOCK_EX + fcntl.LOCK_NB)": _BITS,
    },
    "live/queue/rows.py": {
        f"{_RAN_ON} -> ran_on = was == RUNNING and state is RUNNING and before is not None "
        "and job.start_s != before.start_s": _SMALL_INT,
        f"{_RAN_ON} -> ran_on = was <= RUNNING and state == RUNNING and before is not None "
        "and job.start_s != before.start_s": "it is asked only of a job whose state is the same as before",
        '("waited_s", max(started_s - arrival_s, 0.0) if state == RUNNING else 0.0), -> '
        '("waited_s", max(started_s - arrival_s, 0.0) if state is RUNNING else 0.0),': _SMALL_INT,
    },
    "live/queue/loop.py": {
        "state=np.array([RUNNING, WAITING, WAITING, WAITING]), gpus_requested=np.array([1, 2, 1, 1]), -> "
        "state=np.array([RUNNING, WAITING, WAITING, WAITING]), gpus_requested=np.array([ 0, 2, 1, 1]),": (
            "what is decided of the made-up queue is thrown away: it has kernels compiled"
        ),
    },
    "live/queue/world.py": {
        "for job in (jobs[int(k)] for k in table.id[table.state == WAITING]) -> "
        "for job in (jobs[int(k)] for k in table.id[table.state <= WAITING])": "`WAITING` is the first state, 0",
        "elif change.verb is Verb.RELEASE: -> elif change.verb == Verb.RELEASE:": _ONE_MEMBER,
    },
    "live/queue/slurm.py": {
        "if text != self._last[0]: -> if text is not self._last[0]:": "the same text is read once more",
    },
    "live/stepping.py": {
        'if self._parts.options.loss_reduction == "sum": -> if self._parts.options.loss_reduction >= "sum":': (
            "there are `mean` and `sum` alone"
        ),
    },
    "live/train/deal.py": {
        "if rest.left > 0 and part.id != piece.id: -> if rest.left > 0 and part.id is not piece.id:": (
            "a part is the piece itself, or has an id of its own"
        ),
    },
    "live/train/gradients.py": {
        'if dense.device.type == "cpu" and dense.dtype in (torch.float32, torch.float64) '
        'and dense.is_contiguous(): -> if dense.device.type >= "cpu" and '
        "dense.dtype in (torch.float32, torch.float64) and dense.is_contiguous():": "the same sum, only slower",
    },
    "live/train/optimizers.py": {
        "if owners.setdefault(id(parameter), place) != place: -> "
        "if owners.setdefault(id(parameter), place) is not place:": _SMALL_INT,
    },
    "live/train/sampler.py": {
        "if drawn.number == self.trained: -> if drawn.number >= self.trained:": "no later one without it",
        "self._is_whole = True  # the running epoch's order is the one that its number says -> "
        "self._is_whole = False  # the running epoch's order is the one that its number says": (
            "an epoch that begins says it"
        ),
    },
    "live/train/shares.py": {"if idle_s > 0: -> if idle_s > -1:": "to sleep for no time is none"},
    "live/train/stream.py": {
        "super().__init__(np.empty(0, dtype=np.int64), [()] * workers, 0) -> "
        "super().__init__(np.empty(0, dtype=np.int64), [()] * workers, 1)": "a stream has no pieces",
        "self.owned = np.full(len(demand), self.left // len(demand), dtype=np.int64) -> "
        "self.owned = np.full(len(demand), self.left / len(demand), dtype=np.int64)": "whole numbers are kept",
    },
    "live/train/timing.py": {"self._waits += 1 -> self._waits += 2": "names of waits only have to differ"},
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
    "policies/kernels/fetching.py": {
        "elif fetch_s[k] > 0.0 and np.isfinite(needed_s[k]): -> "
        "elif fetch_s[k] != 0.0 and np.isfinite(needed_s[k]):": _SIZE,
    },
    "policies/kernels/dataflow.py": {
        "if donors.size * receivers.size > _PAIRS_MOST: -> if donors.size | receivers.size > _PAIRS_MOST:": (
            "whether rates are written down decides the time and the memory alone"
        ),
    },
    "policies/kernels/sync.py": {
        "if not (total > 0.0 and np.isfinite(total)): -> if not (total != 0.0 and np.isfinite(total)):": _SIZE,
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
    "sim/cluster/cluster.py": {
        "while at > 0 and nodes[at - 1] > gpu_node[g]: -> while at != 0 and nodes[at - 1] > gpu_node[g]:": (
            "it is counted down to 0 one by one"
        ),
    },
    "sim/advance/asynchronous.py": {
        "lambda _flow: done.succeed(), last=True, -> lambda _flow: done.succeed(), last=False,": (
            "it saves an event, and no rate depends on it"
        ),
    },
    "sim/advance/periods.py": {
        "slowest += 8 -> slowest += 7": "all that are passed over come early, and the rest is looked at",
    },
    "sim/ledger/timeline.py": {
        "held.gpu.item() if gpus == 1 else int(held.gpu.min()), _REASON[reason], *listed, -> "
        "held.gpu.item() if gpus == 0 else int(held.gpu.min()), _REASON[reason], *listed,": (
            "the least of one GPU is that one, only later"
        ),
    },
    "study/runs/engines/dask_cluster.py": {
        "done, taken, most = as_completed(with_results=True, raise_errors=False), 0, 0 -> "
        "done, taken, most = as_completed(with_results=True, raise_errors=False), 0, -1": "counted before",
    },
    "study/runs/launch.py": {
        "text: str = yaml.safe_dump(job, sort_keys=False, width=1000) -> "
        "text: str = yaml.safe_dump(job, sort_keys=False, width= 1001)": "lines break as YAML allows",
    },
    "study/runs/engines/processes.py": {
        "if self._unborn >= KILLS: -> if self._unborn is KILLS:": _SMALL_INT,
        "if self._unborn >= KILLS: -> if self._unborn == KILLS:": "counted one by one, and the third is the last",
    },
    "study/runs/make.py": {
        "for row in makers.rows(missing) if makers is not None and missing else (): -> "
        "for row in makers.rows(missing) if makers is not None or missing else ():": "no orders give no rows",
        'done, failed = done + 1, failed + (row["status"] == "failed") -> '
        'done, failed = done + 1, failed + (row["status"] >= "failed")': _STATUS,
        "if jobs > 1 or dask is not None: -> if jobs != 1 or dask is not None:": (
            "fewer than one process is refused before"
        ),
    },
    "study/runs/store.py": {
        'if kind == "BIGINT": -> if kind is "BIGINT":': "kinds are those of `KINDS`, texts that Python has once",
    },
    "study/runs/until.py": {
        "while found[-1] < self.most: -> while found[-1] != self.most:": "no look has more seeds than the last",
        "return 1.0 - (1.0 - CONFIDENCE) / len(self.looks) -> return 1.0 - (1.0 % CONFIDENCE) / len(self.looks)": (
            "1 less a half or more is what is left of 1"
        ),
    },
    "study/runs/compare.py": {
        "if len(set(policies)) < len(policies): -> if len(set(policies)) != len(policies):": (
            "there are never more of them"
        ),
    },
    "study/runs/variants.py": {
        'return next((str(row["error"]) for row in self.rows if row["status"] != "done"), None) -> '
        'return next((str(row["error"]) for row in self.rows if row["status"] > "done"), None)': _STATUS,
        "for variant, one in zip(variants, asked, strict=True) -> "
        "for variant, one in zip(variants, asked, strict=False)": _EACH,
    },
    "study/runs/sweep_spec.py": {
        'model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True) -> '
        'model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=False)': (
            "only when a model is built"
        ),
        "for item in error.errors(include_url=False): -> for item in error.errors(include_url=True):": (
            "only the place of an error is looked at"
        ),
    },
    "study/runs/watch.py": {
        'jobs = db.execute("SELECT max(jobs) FROM runs").fetchone()[0] or 0 -> '
        'jobs = db.execute("SELECT max(jobs) FROM runs").fetchone()[ -1] or 0': "a row of one column",
        'jobs = db.execute("SELECT max(jobs) FROM runs").fetchone()[0] or 0 -> '
        'jobs = db.execute("SELECT max(jobs) FROM runs").fetchone()[0] or 1': "one job is told as none is",
    },
    "study/runs/across.py": {
        'stars = "*" * ((line.p < 0.05) + (line.p < 0.01)) -> stars = "*" * ((line.p < 0.05) << (line.p < 0.01))': (
            "what is below the one is below the other"
        ),
        "wide = [max(map(len, column)) for column in zip(*rows, strict=True)] -> "
        "wide = [max(map(len, column)) for column in zip(*rows, strict=False)]": _EACH,
        "if all(not line.value.mean > 0 for line in mine if line.value is not _NONE): -> "
        "if all(not line.value.mean > 0 for line in mine if line.value != _NONE):": (
            "a scenario's value is equal to it only without any run, and then its mean is unknown, too"
        ),
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
    "sim/job/claims.py": {
        'row, more = bad[0], f" (and {len(bad) - 1} more such jobs)" if len(bad) > 1 else "" -> '
        'row, more = bad[0], f" (and {len(bad) - 1} more such jobs)" if len(bad) != 1 else ""': (
            "there is one at least"
        ),
    },
    "sim/job/declared.py": {
        'if spec is None or spec.borrow_within == "never": -> if spec is None or spec.borrow_within >= "never":': (
            "there is `lower-priority` beside it, which comes before it in the alphabet"
        ),
    },
    "sim/job/dataset.py": {
        "source_worker, piece = found or (-1, None) -> source_worker, piece = found or (- 2, None)": (
            "without a piece it is refused before the number is looked at"
        ),
    },
    "sim/loading/file.py": {
        "data[loc[0]] = _STAND_INS[loc] -> data[loc[ -1]] = _STAND_INS[loc]": "a section's location has one part",
    },
    "sim/loading/site/fabric.py": {
        'if node.kind != "Ca" or "Aggregation Node" in node.description: -> '
        'if node.kind > "Ca" or "Aggregation Node" in node.description:': _KINDS,
        'if cable.peer in by_id and by_id[cable.peer].kind == "Switch" and cable.peer not in switches -> '
        'if cable.peer in by_id and by_id[cable.peer].kind >= "Switch" and cable.peer not in switches': _KINDS,
        "usual = max(Counter(rates.values()).items(), key=lambda item: item[1], default=(0.0, 0))[0] -> "
        "usual = max(Counter(rates.values()).items(), key=lambda item: item[1], default=( 1.0, 0))[0]": (
            "the default is of no hosts, none of which is then compared with it"
        ),
    },
    "sim/loading/site/kubernetes.py": {
        'cores = each if unit == "CPUs" else None -> cores = each if unit <= "CPUs" else None': _UNITS,
    },
    "sim/loading/site/write.py": {
        'up = titles[parent[switch.name]] if switch.name in parent else "core" if len(tops) > 1 else "" -> '
        'up = titles[parent[switch.name]] if switch.name in parent else "core" if len(tops) != 1 else ""': (
            "a switch without a parent is itself one of them"
        ),
        "size, flat = len(leaves[0].nodes), [node for leaf in leaves for node in leaf.nodes] -> "
        "size, flat = len(leaves[ 1].nodes), [node for leaf in leaves for node in leaf.nodes]": (
            "of two at least, that must all be of one size"
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
        "if size[slot] > 0: -> if size[slot] != 0:": _SIZE,
        "slot = -1 -> slot = ~1": "any number below 0 is no slot",
        "self._factor: Floats = np.zeros(0) -> self._factor: Floats = np.zeros( 1)": (
            "a slot's factor is set before its first batch, and one more than there are slots is nobody's"
        ),
        "self._batch: Floats = np.zeros((0, self.batch_s.size - 1)) -> "
        "self._batch: Floats = np.zeros((0, self.batch_s.size ^ 1))": "further places of a batch stay empty",
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
    "policies/baselines/goodput.py": {
        "least = min((way.goodput for way in ways), default=1.0) -> "
        "least = min((way.goodput for way in ways), default= 2.0)": "nothing is divided by it then",
        "here = sorted((way for way in here if way.model == here[0].model), key=lambda way: way.gpus) -> "
        "here = sorted((way for way in here if way.model is here[0].model), key=lambda way: way.gpus)": _SMALL_INT,
    },
    "policies/baselines/rounds.py": {
        "usable = free & o.nodes.up[o.gpus.node] -> usable = free * o.nodes.up[o.gpus.node]": (
            "of truth values the product is the conjunction"
        ),
        "samples = np.where(jobs.remaining_samples[rows] > 0, jobs.remaining_samples[rows], np.nan) -> "
        "samples = np.where(jobs.remaining_samples[rows] != 0, jobs.remaining_samples[rows], np.nan)": _SIZE,
        "able = (draft.holder == -1) & (draft.columns.room >= WHOLE) & o.nodes.up[o.gpus.node] -> "
        "able = (draft.holder >= -1) & (draft.columns.room >= WHOLE) & o.nodes.up[o.gpus.node]": (
            "a GPU that somebody holds has no room"
        ),
    },
    "policies/feasibility.py": {
        "if ((order < 0) | (order >= rows)).any() or not _all_different(order, rows): -> "
        "if ((order < 0) ^ (order >= rows)).any() or not _all_different(order, rows):": "a row is not both",
    },
    "policies/record/journal.py": {
        'return json.dumps(line, separators=(",", ":"), allow_nan=False) -> '
        'return json.dumps(line, separators=(",", ":"), allow_nan=True)': "what is not finite is marked before",
    },
    "policies/record/export.py": {
        "if len(at) > _MAX_DEPTH or count[0] > _MAX_ITEMS: -> "
        "if len(at) > _MAX_DEPTH or count[ -1] > _MAX_ITEMS:": "a list of one number",
        "raw = file.read(MAX_BYTES + 1) -> raw = file.read(MAX_BYTES << 1)": "one byte more is enough to tell",
    },
    "policies/physics.py": {
        "if noise_scale >= 0.0 and noise_scale + batch > 0.0: -> "
        "if noise_scale >= 0.0 and noise_scale + batch != 0.0:": _SIZE,
    },
    "policies/baselines/sorted_queue.py": {
        "return bool(low < end and run_row[low] == row and run_key[low] == key) -> "
        "return bool(low < end and run_row[low] == row and run_key[low] <= key)": "an entry with less comes before",
        'if len(memory["held"]) + len(o.held) and not np.array_equal(memory["held"], o.held): -> '
        'if len(memory["held"]) | len(o.held) and not np.array_equal(memory["held"], o.held):': _SIZE,
        "if not (late and 0 <= j < seen and state[j] == WAITING): -> "
        "if not (late and 0 <= j < seen and state[j] <= WAITING):": "`WAITING` is the first state, 0",
        "old = b == new_row.size or ( -> old = b >= new_row.size or (": "a run ends with its last entry",
    },
    "policies/baselines/gavel.py": {
        "if worth[job, model] > 0 and not part[job].any() and gpus[job] <= left[model]: -> "
        "if worth[job, model] != 0 and not part[job].any() and gpus[job] <= left[model]:": (
            "speeds and priorities are never negative"
        ),
        "return part[which], _HALVINGS + 1 -> return part[which], _HALVINGS ^ 1": "the number of halvings is even",
        "return bool(same.all() or (same | ((before != before) & (now != now))).all()) -> "
        "return bool(same.all() or (same ^ ((before != before) & (now != now))).all())": (
            "what is not equal to itself is equal to nothing"
        ),
    },
    "policies/kernels/scaling.py": {
        "share[i] = min(exchange_s / every_s, 1.0) if every_s > 0.0 else 0.0 -> "
        "share[i] = min(exchange_s / every_s, 1.0) if every_s > 0.0 else 1.0": "every step takes some time",
    },
    "policies/allocation/elastic.py": {
        "if (np.diff(speeds.job) < 0).any(): -> if (np.diff(speeds.job) <= 0).any():": (
            "a stable sort leaves what is in order"
        ),
        "for e in range(first + 1, end): -> for e in range(first >> 1, end):": "nothing stands before the first",
        "speed, node = np.where(o.nodes.up, nodes.speed, 0.0)[o.gpus.node], o.gpus.node[gpu] -> "
        "speed, node = np.where(o.nodes.up, nodes.speed, -1.0)[o.gpus.node], o.gpus.node[gpu]": (
            "the fastest are up, and slower than nothing is as good as nothing"
        ),
    },
    "policies/stages/guard.py": {
        "due = (size > 0) & ~lost & (fewest >= reports) -> due = (size > 0) & ~lost * (fewest >= reports)": _TRUTHS,
        "good = due & (ratio >= 1 - noise) -> good = due * (ratio >= 1 - noise)": _TRUTHS,
    },
    "policies/stages/s1.py": {
        'solve = _least_time_flow if self.mode == "optimal" else _weighted_flow -> '
        'solve = _least_time_flow if self.mode >= "optimal" else _weighted_flow': _MODES,
        'if not acting.any() or self.frozen == "S113": -> '
        'if not acting.any() or self.frozen >= "S113":': _LAST_STEP,
    },
    "policies/stages/s2.py": {
        "known = groups.sound & ~np.isnan(target[groups.first[:-1]]) & (batch > 0) -> "
        "known = groups.sound & ~np.isnan(target[groups.first[:-1]]) & (batch != 0)": _SIZE,
        "known = groups.sound & ~np.isnan(target[groups.first[:-1]]) & (batch > 0) -> "
        "known = groups.sound * ~np.isnan(target[groups.first[:-1]]) & (batch > 0)": _TRUTHS,
        "one = np.minimum.reduceat(source[by_owner], first) == np.maximum.reduceat(source[by_owner], first) -> "
        "one = np.minimum.reduceat(source[by_owner], first) >= np.maximum.reduceat(source[by_owner], first)": (
            "the least of some is never above the largest"
        ),
        'if self.mode == "formula": -> if self.mode <= "formula":': _MODES,
    },
    "policies/stages/s3.py": {
        'if self.mode == "formula": -> if self.mode <= "formula":': _MODES,
        'if self.frozen != "S324": -> if self.frozen < "S324":': _LAST_STEP,
    },
    "policies/stages/s4.py": {
        'if self.mode == "optimal" and self.frozen != "S422": -> '
        'if self.mode >= "optimal" and self.frozen != "S422":': _MODES,
        'if self.mode == "optimal" and self.frozen != "S422": -> '
        'if self.mode == "optimal" and self.frozen < "S422":': _LAST_STEP,
        'by_formula = "s422_fallback" in solved or self.mode == "formula" -> '
        'by_formula = "s422_fallback" in solved or self.mode <= "formula"': _MODES,
        'if self.mode == "optimal" and len(self._may_be_stopped(o, o.running)): -> '
        'if self.mode >= "optimal" and len(self._may_be_stopped(o, o.running)):': _MODES,
        'if self.frozen == "S422": -> if self.frozen >= "S422":': _LAST_STEP,
        'if by_formula and len(o.gpu_models) > 1 and self.frozen != "S422": -> '
        'if by_formula and len(o.gpu_models) > 1 and self.frozen < "S422":': _LAST_STEP,
        'if by_formula and self.frozen != "S422": -> if by_formula and self.frozen < "S422":': _LAST_STEP,
        "queue, first = ranking.waiting[~draft.touched(ranking.waiting)], -1 -> "
        "queue, first = ranking.waiting[~draft.touched(ranking.waiting)], 1": "it is set anew where it is read",
    },
    "policies/queues/feasible.py": {
        "mine = np.flatnonzero(claim == one) -> mine = np.flatnonzero(claim >= one)": (
            "claims are looked at in order, so that each later one is written anew"
        ),
    },
    "policies/allocation/planned.py": {
        "size = int(offset[k + 1] - offset[k]) // max(int(o.jobs.gpus_per_worker[row]), 1) -> "
        "size = int(offset[k + 1] - offset[k]) / max(int(o.jobs.gpus_per_worker[row]), 1)": (
            "a job holds all GPUs of each of its workers"
        ),
    },
    "policies/allocation/preemption.py": {
        "while at > 0 and chosen_bar[at - 1] < bar[i]: -> while at != 0 and chosen_bar[at - 1] < bar[i]:": _SIZE,
        "if n == chosen.size: -> if n is chosen.size:": _SMALL_INT,
        "mine = standing[k] if standing.size > 0 else 0.0 -> mine = standing[k] if standing.size > 0 else 1.0": (
            "where none is given, nobody's counts"
        ),
        "if n == out.job.size or at + d.gpus > out.gpu.size: -> "
        "if n >= out.job.size or at + d.gpus > out.gpu.size:": _FULL,
    },
    "policies/allocation/backfill.py": {
        "if n == out.job.size or at + d.gpus > out.gpu.size: -> "
        "if n >= out.job.size or at + d.gpus > out.gpu.size:": _FULL,
        "enough = head.share < WHOLE or total(later.free) >= head.gpus -> "
        "enough = head.share <= WHOLE or total(later.free) >= head.gpus": "it looks once more, in vain",
        "enough = head.share < WHOLE or total(later.free) >= head.gpus -> "
        "enough = head.share != WHOLE or total(later.free) >= head.gpus": "it looks once more, in vain",
        "if left == 0 and not shared: -> if left < 0 and not shared:": _NONE_LEFT,
        "if left == 0 and not shared: -> if left <= 0 and not shared:": _NONE_LEFT,
        "if left == 0 and not shared: -> if left == -1 and not shared:": _NONE_LEFT,
        "if n % 16 == 0:  # often enough: it looks at all nodes -> "
        "if n % 16 <= 0:  # often enough: it looks at all nodes": _SIZE,
    },
    "policies/allocation/gangs.py": {
        "if n == out.job.size or at + d.gpus > out.gpu.size: -> "
        "if n >= out.job.size or at + d.gpus > out.gpu.size:": _FULL,
        "if left == 0 and not shared: -> if left < 0 and not shared:": _NONE_LEFT,
        "if left == 0 and not shared: -> if left <= 0 and not shared:": _NONE_LEFT,
        "if left == 0 and not shared: -> if left == -1 and not shared:": _NONE_LEFT,
        "if n % 16 == 0:  # often enough: it looks at all nodes -> "
        "if n % 16 <= 0:  # often enough: it looks at all nodes": _SIZE,
        "left = left - d.gpus if d.share >= WHOLE else total(room.free) -> "
        "left = left - d.gpus if d.share is WHOLE else total(room.free)": "both ways come to the same",
        "count, last, at = 0, -1, -1 -> count, last, at = 0, - 2, -1": "no job has that row, either",
        "count, last, at = 0, -1, -1 -> count, last, at = 0, -1, ~1": "it is found for the first GPU that is held",
    },
}
"""By file: the line and what it became, as `python -m tests.mutation` prints it, and why nothing differs."""
