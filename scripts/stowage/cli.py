# SPDX-License-Identifier: Apache-2.0
"""The `stowage` command: shows what a store holds, and verifies planned runs. Results go to stdout, notes to stderr.
Needs no torch but for the script that `verify` runs."""

import json
import shlex
import sys
from typing import Annotated, Any

import typer

from stowage.explaining import print_explanation, to_json
from stowage.moves import explain as explain_step
from stowage.store import Row, Store, StoreError
from stowage.text import NOTHING, date, duration, print_table, printable, size
from stowage.verdict import all_equal, verdicts, verified_regions, why_nothing_ran
from stowage.verifying import UnreadableScript, plugin_status, run_script, stdout_to_stderr

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, the same in a pipe
    epilog="Start with: stowage info profile.db",
)

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The file named in stowage.enable(store=...).")]
RunId = Annotated[int | None, typer.Option("--run", metavar="ID", help="Which run; else the newest planned one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: bytes and nanoseconds.")]
Limit = Annotated[int | None, typer.Option(min=0, metavar="N", help="How many rows of each list; 0 for all.")]


@app.callback()
def stowage() -> None:
    """Shows what stowage measured and planned, from the store that a training run wrote; checks planned runs."""


@app.command(epilog="Example: stowage info profile.db")
def info(store: StorePath, as_json: AsJson = False, limit: Limit = None) -> None:
    """What made the store, its runs and their plans."""
    with Store(store) as opened:
        context, runs = opened.context(), opened.runs()
    newest = cut(runs[::-1], limit, 20, as_json, "runs")[::-1]
    if as_json:
        return print_json({**context, "runs": newest})

    print(f"store    {printable(store)} (schema {context['schema']}, {size(context['size_bytes'])})")
    for label, name in (("stowage", "stowage_version"), ("torch", "torch_version"), ("device", "device"),
                        ("clock", "clock")):
        print(f"{label:<8} {printable(', '.join(context[name])) or NOTHING}")
    print(f"sizes    {size_source(context)}")
    print(f"dropped  {context['dropped_records']} records")
    print(f"date     {date(context['last_unix_ns'])}")
    print()
    print_table(
        [">run", "kind", "name", ">ops", ">unplanned peak", ">planned peak", ">saved", ">bound", ">arena", "status"],
        [(run["run_id"], run["kind"], run["name"], run["ops"], size(run["unplanned_peak_bytes"]), size(run["planned_peak_bytes"]),
          saved(run), size(run["bound_bytes"]), size(run["arena_bytes"]), status(run)) for run in newest])
    suggest("peak", store)


@app.command(epilog="Example: stowage ops profile.db --planned --limit 40")
def ops(store: StorePath,
        planned: Annotated[bool, typer.Option("--planned", help="In the planned order.")] = False,
        run_id: RunId = None, as_json: AsJson = False, limit: Limit = None) -> None:
    """Ops in the order they run, with their memory.

    For each its time, on the device too if there is one, what it allocates and frees, and the most that lives while it
    runs.
    """
    with Store(store) as opened:
        run = opened.planned_run(run_id) if planned else opened.run(run_id)
        rows = opened.ops(run, planned)
    shown = cut(rows, limit, 0, as_json, "ops")
    if as_json:
        return print_json({"run": run, "planned": planned, "ops": shown})

    note_run(run)
    on_device = any(op["device_ns"] is not None for op in rows)
    place = "scope" if is_step(run) else "source"
    print_table(
        [">step", ">op", ">time", *([">device"] if on_device else []), ">allocated", ">freed", ">live", "kind", "name",
         place],
        [(op["step"], op["op"], duration(op["duration_ns"]), *([device_time(op)] if on_device else []),
          size(op["allocated_bytes"]), size(op["freed_bytes"]), size(op["live_bytes"]), op["kind"], op["name"],
          op[place]) for op in shown])
    suggest("tensors" if planned else "plan", store, run_id)


@app.command(epilog="Example: stowage kernels profile.db --limit 10")
def kernels(store: StorePath, run_id: RunId = None, as_json: AsJson = False, limit: Limit = None) -> None:
    """Kernels on the device, most time first, and the ops that launched them.

    One line for each kernel of each op: the time of all its launches, its share in the time of all kernels, and how
    many launches there were.
    """
    with Store(store) as opened:
        run = opened.run(run_id)
        rows = opened.kernels(run)
    all_ns = sum(kernel["total_ns"] for kernel in rows)
    shown = cut(rows, limit, 20, as_json, "kernels")
    if as_json:
        return print_json({"run": run, "kernel_ns": all_ns, "kernels": shown})

    note_run(run)
    print_table(
        [">time", ">share", ">count", "op", "source", "kernel"],
        [(duration(kernel["total_ns"]), f"{100 * kernel['total_ns'] / max(all_ns, 1):.1f} %", kernel["count"],
          op_name(kernel["op"], kernel["op_kind"]), kernel["source"], kernel["name"]) for kernel in shown])
    suggest("ops", store, run_id)


@app.command(epilog="Example: stowage tensors profile.db --limit 5")
def tensors(store: StorePath, run_id: RunId = None, as_json: AsJson = False, limit: Limit = None) -> None:
    """Tensors, biggest first, and how long they live.

    As they lived in the recorded run: which op allocates each, which uses it last.
    """
    with Store(store) as opened:
        run = opened.run(run_id)
        rows = opened.tensors(run)
    shown = cut(rows, limit, 20, as_json, "tensors")
    if as_json:
        return print_json({"run": run, "tensors": shown})

    note_run(run)
    print_table(
        [">size", "tensor", "kind", "lives", "allocated by", "last used by", "dtype", "shape"],
        [(size(tensor["size_bytes"]), tensor_name(tensor), tensor["kind"], lives(tensor),
          op_name(tensor["allocate_op"], tensor["allocate_kind"]),
          op_name(tensor["last_use_op"], tensor["last_use_kind"]), tensor["dtype"], tensor["shape"]) for tensor in shown])
    suggest("ops", store, run_id)


@app.command(epilog="Example: stowage peak profile.db --run 3")
def peak(store: StorePath, run_id: RunId = None, as_json: AsJson = False, limit: Limit = None) -> None:
    """Where most memory is live, and what lives there.

    Before and after planning, with the bound below which no order can go.
    """
    with Store(store) as opened:
        run = opened.run(run_id)
        before = opened.peak(run, planned=False)
        after = opened.peak(run, planned=True) if is_planned(run) else None
    for side in filter(None, (before, after)):
        side["tensors"] = cut(side["tensors"], limit, 10, as_json, "tensors")
    if as_json:
        return print_json({"run": run, "before": before, "after": after, "bound_bytes": run["bound_bytes"]})

    note_run(run)
    note_mismatch("the record", before, run["unplanned_peak_bytes"])
    print_peak("before planning", before, is_step(run))
    if after and is_step(run):
        note_mismatch("the plan", after, run["planned_peak_bytes"])
        print()
        print(f"after planning: the same, as nothing moves in a step; arena {size(run['arena_bytes'])}, "
              f"bound {size(run['arena_bound_bytes'])}")
    elif after:
        note_mismatch("the plan", after, run["planned_peak_bytes"])
        print()
        print_peak("after planning", after)
        print()
        print(f"bound: no order needs less than {size(run['bound_bytes'])}")
    suggest("tensors", store, run_id)


@app.command(epilog="Example: stowage explain profile.db")
def explain(store: StorePath, run_id: RunId = None, as_json: AsJson = False) -> None:
    """Says where a step's peak is, what lives there, and what would move it where."""
    with Store(store) as opened:
        run = opened.step(run_id)
        found = explain_step(*opened.recorded_step(run))
    if as_json:
        return print_json({"run": run, **to_json(found)})

    note_run(run)
    note_mismatch("the record", {"live_bytes": found.peak.live_bytes}, run["unplanned_peak_bytes"])
    print_explanation(found)
    suggest("peak", store, run["run_id"])


@app.command(epilog="Example: stowage plan profile.db --json")
def plan(store: StorePath, run_id: RunId = None, as_json: AsJson = False, limit: Limit = None) -> None:
    """The planned order, its slots, and the points where tensors begin and end.

    Says which ops moved: the fewest whose moving turns program order into the planned order.
    """
    with Store(store) as opened:
        run = opened.planned_run(run_id)
        found = opened.plan(run)
    moved = sum(op["moved"] for op in found["order"])
    op_count = len(found["order"])
    order = cut(found["order"], limit, 0, as_json, "ops")
    slots = cut(found["slots"], limit, 0, as_json, "slots")
    if as_json:
        return print_json({"run": run, "moved_ops": moved, "order": order, "slots": slots})

    note_run(run)
    print(f"order   {run['order_status']}: peak {size(run['planned_peak_bytes'])}, bound {size(run['bound_bytes'])}, "
          f"program order {size(run['program_peak_bytes'])}; {moved} of {op_count} ops moved")
    print(f"layout  {run['layout_status']}: arena {size(run['arena_bytes'])}, bound {size(run['arena_bound_bytes'])}")
    print(f"time    {duration(run['planning_ns'])}")
    print()
    print_table(
        [">step", ">op", "moved", "kind", "name", "places", "reuses", "frees"],
        [(op["step"], op["op"], "moved" if op["moved"] else NOTHING, op["kind"], op["name"],
          *(", ".join(map(show, op[kind])) or NOTHING
            for kind, show in (("place", tensor_name), ("reuse", reuse_name), ("free", tensor_name)))) for op in order])
    print()
    takes_turns = any(slot["other_offset_bytes"] is not None for slot in slots)
    print_table(
        [">offset", *([">in turn"] if takes_turns else []), ">size", "tensor", "kind"],
        [(size(slot["offset_bytes"]), *([size(slot["other_offset_bytes"])] if takes_turns else []),
          size(slot["size_bytes"]), tensor_name(slot), slot["kind"]) for slot in slots])
    suggest("ops", store, run_id, "--planned")


@app.command(epilog="Example: stowage sql profile.db 'SELECT kind, sum(duration_ns) FROM ops GROUP BY kind'")
def sql(store: StorePath,
        query: Annotated[str, typer.Argument(metavar="QUERY", help="One SQL statement; the store is only read.")],
        as_json: AsJson = False, limit: Limit = None) -> None:
    """Answers a question in SQL.

    Views: lifetimes, timeline, peak, live_at_peak, planned_timeline, planned_peak, live_at_planned_peak, size_sources,
    op_device_time.
    """
    with Store(store) as opened:
        columns, rows = opened.user_query(query)
    shown = cut(rows, limit, 0, as_json, "rows")
    if as_json:
        return print_json(shown)
    print_table(columns, [tuple("NULL" if value is None else value for value in row.values()) for row in shown])
    suggest("info", store)


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
             epilog="Example: stowage verify train.py --epochs 1")
def verify(script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file that trains with stowage.")],
           arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="What it takes.")] = None,
           as_json: Annotated[bool, typer.Option("--json", help="Print JSON; what the script prints goes to stderr.")]
           = False) -> None:
    """Runs a script and compares planned runs with unplanned ones.

    Every planned run is done twice, first unplanned, and the results of each op are compared byte by byte; so what the
    graph prints is printed twice. Names the first op whose result differs; the script goes on with the unplanned
    results. Exits 0 if all were equal, 1 if not or if nothing was planned, or as the script does when that fails.
    """
    if as_json:
        with stdout_to_stderr():
            script_exit = run_script(script, arguments or [])
    else:
        script_exit = run_script(script, arguments or [])
    status = plugin_status()
    lines = verdicts(status) if status else []
    reasons = [] if lines else why_nothing_ran(status) if status else ["the script did not load stowage"]
    if as_json:
        print_json({"script": script, "script_exit": script_exit, "all_equal": bool(lines) and all_equal(status),
                    "regions": verified_regions(status) if lines else [], "why_nothing_verified": reasons})
    else:
        for line in lines:
            print(printable(line))
    for reason in reasons:
        note(f"nothing was verified: {reason}")
    if script_exit:
        note(f"'{script}' ended with exit code {script_exit}; the rest of it was not verified")
    sys.exit(script_exit or (0 if lines and all_equal(status) else 1))


def cut(rows: list[Row], limit: int | None, default: int, as_json: bool, what: str) -> list[Row]:
    """The first rows: `limit` of them, or `default` where the user named no limit and reads text; 0 is all."""
    count = limit if limit is not None else 0 if as_json else default
    if count == 0 or len(rows) <= count:
        return rows
    note(f"{count} of {len(rows)} {what}; --limit 0 shows all")
    return rows[:count]


def is_planned(run: Row) -> bool:
    return run["planned_peak_bytes"] is not None


def is_step(run: Row) -> bool:
    return run["kind"] == "step"


def saved(run: Row) -> str:
    if not is_planned(run) or is_step(run) or run["unplanned_peak_bytes"] == 0:
        return NOTHING
    return f"{100 * (1 - run['planned_peak_bytes'] / run['unplanned_peak_bytes']):.1f} %"


def status(run: Row) -> str:
    if is_planned(run) and is_step(run):
        return f"order kept, layout {run['layout_status']}"
    if is_planned(run):
        return f"order {run['order_status']}, layout {run['layout_status']}"
    if not run["complete"]:
        return "not planned: ended early"
    if run["dropped_records"] > 0:
        return f"not planned: {run['dropped_records']} records dropped"
    return "not planned"


def size_source(context: Row) -> str:
    if context["allocations"] == 0:
        return NOTHING
    if context["compared_sizes"] == 0:
        return "as the allocator recorded them"
    text = f"CUPTI confirms {context['cupti_sizes']} of {context['allocations']} allocations"
    return text + (f"; {disagreement(context)}" if context["size_mismatches"] else "")


def disagreement(row: Row) -> str:
    return f"CUPTI and the allocator disagree on {row['size_mismatches']} of {row['compared_sizes']} allocations"


def device_time(op: Row) -> str:
    return NOTHING if op["device_ns"] is None else duration(op["device_ns"])


def tensor_name(tensor: Row) -> str:
    return tensor["name"] or f"tensor {tensor['tensor']}"


def reuse_name(point: Row) -> str:
    return f"{tensor_name(point)} over {point['of_name'] or 'tensor ' + str(point['of_tensor'])}"


def op_name(op: int | None, kind: str | None) -> str:
    return NOTHING if op is None else f"{op} {kind}"


def lives(tensor: Row) -> str:
    if tensor["allocate_op"] is None:
        return "throughout"
    end = "end" if tensor["free_op"] is None else f"op {tensor['free_op']}"
    if tensor["next_free_op"] is not None:
        end = f"op {tensor['next_free_op']} of the next step"
    return f"op {tensor['allocate_op']} to {end}"


def print_peak(when: str, peak: Row, in_step: bool = False) -> None:
    where = "before the first op"
    if peak["op"] is not None:
        source = f" at {peak['source']}" if peak["source"] else ""
        if not source and peak["scope"] and in_step:
            source = f" in {peak['scope']}"
        where = f"in step {peak['step']}: op {peak['op']} {peak['kind']} '{peak['name']}'{source}"
    print(f"{when}: {size(peak['live_bytes'])} {printable(where)}")
    print_table([">size", ">tensors", "kind"],
                [(size(kind["size_bytes"]), kind["tensors"], kind["kind"]) for kind in peak["by_kind"]])
    print("biggest:")
    print_table([">size", "tensor", "kind"],
                [(size(tensor["size_bytes"]), tensor_name(tensor), tensor["kind"]) for tensor in peak["tensors"]])


def print_json(value: Any) -> None:
    # SQL may return blobs.
    print(json.dumps(value, indent=2, default=lambda blob: blob.hex()))


def note(text: str) -> None:
    print(f"stowage: {printable(text)}", file=sys.stderr)


def note_run(run: Row) -> None:
    note(f"run {run['run_id']} '{run['name']}' on {run['device']}, torch {run['torch_version']}, stowage "
         f"{run['stowage_version']}, {run['clock']}, {run['dropped_records']} records dropped, "
         f"{date(run['created_unix_ns'])}")
    if run["size_mismatches"]:
        note(disagreement(run))


def note_mismatch(whose: str, peak: Row, stated_bytes: int) -> None:
    """A replay that finds another peak than was stated shows a fault, in the store or in stowage: say so."""
    if peak["live_bytes"] != stated_bytes:
        note(f"{whose} states a peak of {stated_bytes} B, its events replayed have {peak['live_bytes']} B")


def suggest(command: str, store: str, run_id: int | None = None, *options: str) -> None:
    """Names the next useful command, to a person."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        run = ("--run", str(run_id)) if run_id is not None else ()
        print(f"\nnext: {shlex.join(('stowage', command, store, *run, *options))}", file=sys.stderr)


def main() -> None:
    try:
        app(prog_name="stowage")
    except StoreError as error:
        note(str(error))
        sys.exit(1)
    except UnreadableScript as error:
        note(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
