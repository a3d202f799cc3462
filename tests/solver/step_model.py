# SPDX-License-Identifier: Apache-2.0
"""What a step in the format stowage-step/1 means, told a second time: the lowest peak by trying every order, and the
replay of a plan. It shares no code with the solver, and is slow and obvious."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reuse:
    output: int
    input: int


class StepModel:
    """A step whose ids are indices. Sizes in bytes; sets of ops are bit masks."""

    def __init__(self, step: dict) -> None:
        tensors, self.ops = step["tensors"], step["ops"]
        self.sizes = [tensor["size_bytes"] for tensor in tensors]
        self.alignments = [tensor.get("alignment_bytes", 64) for tensor in tensors]
        self.persistent = [tensor["persistent"] for tensor in tensors]
        self.output = [tensor["output"] for tensor in tensors]
        self.external = [tensor.get("external", False) for tensor in tensors]
        self.persistent_bytes = sum(size for size, kept in zip(self.sizes, self.persistent) if kept)
        self.events = [self._events(op) for op in self.ops]
        self.reuses = [[Reuse(reuse["output"], reuse["input"]) for reuse in op.get("reuses", ())] for op in self.ops]

        self.allocator = {tensor: op for op, events in enumerate(self.events) for kind, tensor in events
                          if kind == "allocate"}
        self.workspace = {tensor for events in self.events for kind, tensor in events if kind == "free"}
        self.users = [0] * len(self.sizes)  # by tensor, the op that allocates it too
        for op, entry in enumerate(self.ops):
            for tensor in {*entry["reads"], *entry["writes"], *(tensor for _, tensor in self.events[op])}:
                self.users[tensor] |= 1 << op
        self.before = self._dependencies()

    @staticmethod
    def _events(op: dict) -> list[tuple[str, int]]:
        if "events" in op:
            return [next(iter(event.items())) for event in op["events"]]
        return [("allocate", tensor) for tensor in op["allocates"]]

    def _dependencies(self) -> list[int]:
        """By op: the ops that must run before. Two ops that touch a tensor keep their order unless both only read."""
        before = []
        for op, entry in enumerate(self.ops):
            mask = 0
            for earlier in entry.get("after", ()):
                mask |= 1 << earlier
            touched = self._written(op) | set(entry["reads"])
            for earlier in range(op):
                earlier_touched = self._written(earlier) | set(self.ops[earlier]["reads"])
                if self._written(op) & earlier_touched or self._written(earlier) & touched:
                    mask |= 1 << earlier | before[earlier]
            for earlier in range(op):
                if mask >> earlier & 1:
                    mask |= before[earlier]
            before.append(mask)
        return before

    def _written(self, op: int) -> set[int]:
        return set(self.ops[op]["writes"]) | {tensor for _, tensor in self.events[op]}

    def kept(self) -> list[int]:
        """The tensors that live from op to op and die after their last use."""
        return [tensor for tensor in self.allocator if tensor not in self.workspace and not self.output[tensor]]

    def live_bytes(self, done: int) -> int:
        """What lives between two ops, when the ops of `done` have run."""
        live = self.persistent_bytes
        for tensor, op in self.allocator.items():
            waits = self.output[tensor] or self.users[tensor] & ~done
            if done >> op & 1 and tensor not in self.workspace and waits:
                live += self.sizes[tensor]
        return live

    def rise_bytes(self, op: int, reused_output: int | None = None) -> int:
        """The most by which the live sum exceeds that before the op, while it runs."""
        rise = live = 0
        for kind, tensor in self.events[op]:
            if tensor == reused_output:
                continue
            live += self.sizes[tensor] if kind == "allocate" else -self.sizes[tensor]
            rise = max(rise, live)
        return rise

    def can_reuse(self, op: int, reuse: Reuse, done: int) -> bool:
        """Whether the op, run after those of `done`, is the input's last use."""
        return not self.users[reuse.input] & ~(done | 1 << op)

    def lowest_peak_bytes(self, with_reuse: bool = True) -> int:
        """Of every order, by the set of ops that have run: what lives then does not depend on how they were ordered,
        nor on who reused whose memory."""
        rises = [(self.rise_bytes(op), self.rise_bytes(op, self.reuses[op][0].output if self.reuses[op] else None))
                 for op in range(len(self.ops))]
        peaks = {0: self.persistent_bytes}
        for _ in self.ops:
            next_peaks: dict[int, int] = {}
            for done, peak in peaks.items():
                live = self.live_bytes(done)
                for op, before in enumerate(self.before):
                    if done >> op & 1 or before & ~done:
                        continue
                    reuses = with_reuse and any(self.can_reuse(op, reuse, done) for reuse in self.reuses[op])
                    reached = max(peak, live + rises[op][reuses])
                    after = done | 1 << op
                    next_peaks[after] = min(reached, next_peaks.get(after, reached))
            peaks = next_peaks
        return peaks[(1 << len(self.ops)) - 1]

    def replay(self, plan: dict) -> int:
        """Runs a plan, checks that it may run so and that no two tensors share bytes, and returns its peak."""
        order, reuse_of = plan["order"], plan.get("reuse_of", [-1] * len(self.sizes))
        assert sorted(order) == list(range(len(self.ops)))
        clock = done = 0
        live = peak = self.persistent_bytes
        starts: dict[int, int] = {}
        spans: dict[int, tuple[int, int]] = {}
        for op in order:
            assert not self.before[op] & ~done, f"op {op} runs too early"
            taken = set()
            for kind, tensor in self.events[op]:
                if kind == "free":
                    live -= self.sizes[tensor]
                    spans[tensor] = (starts.pop(tensor), clock)
                elif reuse_of[tensor] >= 0:
                    reuse = Reuse(tensor, reuse_of[tensor])
                    assert reuse in self.reuses[op] and self.can_reuse(op, reuse, done), f"op {op} may not {reuse}"
                    assert plan["offset_bytes"][reuse.output] == plan["offset_bytes"][reuse.input]
                    taken.add(reuse.input)
                    spans[reuse.input] = (starts.pop(reuse.input), clock)
                    starts[tensor] = clock
                else:
                    live += self.sizes[tensor]
                    starts[tensor] = clock
                peak = max(peak, live)
                clock += 1
            done |= 1 << op
            dying = [tensor for tensor in sorted(self.kept())
                     if self.users[tensor] >> op & 1 and not self.users[tensor] & ~done and tensor not in taken]
            assert plan["frees_after"][op] == dying
            for tensor in dying:
                live -= self.sizes[tensor]
                spans[tensor] = (starts.pop(tensor), clock)
                clock += 1
        spans.update((tensor, (start, clock)) for tensor, start in starts.items())
        self._check_places(plan, spans)
        return peak

    def _check_places(self, plan: dict, spans: dict[int, tuple[int, int]]) -> None:
        height = 0
        placed: list[tuple[int, int, int, int]] = []
        for tensor, (start, end) in spans.items():
            offset = plan["offset_bytes"][tensor]
            if self.external[tensor] or self.sizes[tensor] == 0:
                assert offset == -1
                continue
            assert offset >= 0 and offset % self.alignments[tensor] == 0
            top = offset + -(-self.sizes[tensor] // self.alignments[tensor]) * self.alignments[tensor]
            for other_start, other_end, other_offset, other_top in placed:
                assert end <= other_start or other_end <= start or top <= other_offset or other_top <= offset
            placed.append((start, end, offset, top))
            height = max(height, top)
        assert plan["arena_bytes"] == height
