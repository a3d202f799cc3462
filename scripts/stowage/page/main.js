// Puts the page together.

function figure(title, ...parts) {
  return make("div", {class: "figure"}, make("dl", {}, make("dt", {}, title), ...parts));
}

const value = (kind, ...parts) => make("dd", {class: `value ${kind}`}, ...parts);
const remark = (...parts) => make("dd", {class: "quiet"}, ...parts);

function showFigures(model) {
  const {run, before, after} = model.data, box = byId("figures"), moves = after && run.kind === "graph";
  const unplanned = model.data.unplanned_peak_bytes;
  if (!moves) {
    box.append(figure("Peak memory of the step", value("main", size(before.peak_bytes)),
      remark(after ? "in a step of a loop the order stays" : "not planned")));
  } else {
    const saved = unplanned - after.peak_bytes;
    box.append(
      figure("Peak memory of the step", value("main", size(unplanned), make("span", {class: "arrow"}, " → "),
        make("span", {class: saved > 0 ? "better" : ""}, size(after.peak_bytes))),
      remark(unplanned === before.peak_bytes ? "before and after planning" : "unplanned, and within the budget")),
      figure("Saved", value("", `${(100 * saved / Math.max(unplanned, 1)).toFixed(1)} %`), remark(size(saved))),
      figure("Lower bound", value("", size(run.bound_bytes)), remark(after.peak_bytes <= run.bound_bytes
        ? "reached: no order is better" : `plan is ${size(after.peak_bytes - run.bound_bytes)} above`)));
  }
  if (after) {
    box.append(figure("Arena", value("", size(run.arena_bytes)), remark(run.arena_bytes <= run.arena_bound_bytes
      ? "no layout needs less" : `bound ${size(run.arena_bound_bytes)}`)));
  }
}

function showPeak(model) {
  const {classes, before, after, run} = model.data, sides = model.shownSides;
  const head = ["class", ...sides.map((side) => sides.length > 1 ? side.name : "at the peak")];
  const rows = classes.filter((name) => sides.some((side) => side.events.peak_classes[name])).reverse();
  const cells = (pick) => sides.map((side) => make("td", {}, pick(side.events)));
  byId("peak").append(
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {scope: "col"}, text)))),
    make("tbody", {}, ...rows.map((name) => make("tr", {}, make("th", {scope: "row"}, swatch(name), name),
      ...cells((events) => size(events.peak_classes[name] ?? 0))))),
    make("tfoot", {}, make("tr", {}, make("th", {scope: "row"}, "together"), ...cells((events) => size(events.peak_bytes)))));
}

// Sections that are tables for the most part are closed at first.
function showExplanation(model) {
  const sections = model.data.explanation;
  byId("explanation-section").hidden = sections.length === 0;
  byId("explanation").append(...sections.map(({title, blocks}) => make("details",
    {open: blocks.some((block) => block.kind === "table") && blocks[0].kind !== "item" ? null : ""},
    make("summary", {}, title || "In words"), ...blocks.map(({kind, text}) => kind === "table"
      ? make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": title}, make("pre", {}, text))
      : make("p", {class: kind}, text)))));
}

function showCharts(model, view) {
  const {run} = model.data, box = byId("memory"), sides = model.shownSides;
  byId("legend").append(...[...model.data.classes].reverse().map((name) => make("li", {}, swatch(name), name)));
  const ceiling = Math.max(...sides.map((side) => side.events.peak_bytes));
  const timelines = sides.map(({name, replayed}) => {
    if (sides.length > 1) box.append(make("h3", {}, name));
    return new Timeline(box, view, replayed, {name, ceiling, bound: run.kind === "graph" ? run.bound_bytes : null,
      height: sides.length > 1 ? 220 : 300});
  });
  const timeline = timelines.at(-1);
  if (!model.slots.length) {
    byId("layout-lead").textContent = "The run has no plan, so that its tensors have no addresses of ours.";
    byId("layout").nextElementSibling.remove();
    return {timeline};
  }
  byId("layout-lead").textContent = "Time from left to right in the planned order, addresses from bottom to top in the " +
    `arena of ${size(run.arena_bytes)}: ${grouped(model.slots.length)} slots. The dotted line is the peak.`;
  return {timeline, layout: new Layout(byId("layout"), view, {arena: run.arena_bytes, height: 420})};
}

function opTable(model, parent, open) {
  const {ops} = model.data, {last, before} = model, isPlanned = model.after !== null;
  const byStep = (column) => Array.from(last.stepOf, (step) => column[step]);
  return new VirtualTable(parent, {label: "Ops", rows: ops.name.length, open, columns: [
    {title: "step", width: 70, isNumber: true, isPlace: true, values: last.stepOf},
    {title: "kind", width: 190, values: ops.kind},
    {title: "name", width: 170, values: ops.name},
    ...[["module", "scope", 160], ["source", "source", 110]].filter(([, name]) => ops[name].some(Boolean))
      .map(([title, name, width]) => ({title, width, values: ops[name]})),
    {title: "live", width: 95, isNumber: true, values: byStep(last.live), text: size},
    ...(isPlanned && model.data.run.kind === "graph"
      ? [{title: "live before", width: 105, isNumber: true, values: Array.from(before.live), text: size}] : []),
    {title: "allocates", width: 95, isNumber: true, values: byStep(last.allocated), text: size},
    {title: "frees", width: 95, isNumber: true, values: byStep(last.freed), text: size},
    {title: "time", width: 90, isNumber: true, values: ops.duration_ns, text: duration},
    {title: "op", width: 65, isNumber: true, isPlace: true, values: model.programOrder},
    ...(model.moved.size
      ? [{title: "moved", width: 70, values: ops.name.map((_, op) => model.moved.has(op) ? "moved" : "")}] : []),
  ]});
}

function tensorTable(model, parent, open) {
  const {tensors, ops} = model.data, at = (op, column) => op === null ? "" : column[op];
  return new VirtualTable(parent, {label: "Tensors", rows: tensors.name.length, open, columns: [
    {title: "size", width: 105, isNumber: true, values: tensors.size_bytes, text: size},
    {title: "name", width: 250, values: tensors.name.map((_, tensor) => model.tensorName(tensor))},
    {title: "class", width: 150, values: tensors.class},
    {title: "made by", width: 260, values: tensors.made_by.map((op) => op === null ? "" : model.opName(op))},
    {title: "last used by", width: 260, values: tensors.last_use.map((op) => op === null ? "" : model.opName(op))},
    ...(model.slots.length ? [{title: "address", width: 130, isNumber: true, isPlace: true,
      values: tensors.name.map((_, tensor) => model.offsets.get(tensor) ?? null),
      text: (offset) => offset === null ? "-" : grouped(offset)}] : []),
    ...(ops.scope.some(Boolean) ? [{title: "module", width: 220, values: tensors.made_by.map((op) => at(op, ops.scope))}] : []),
    {title: "dtype", width: 90, values: tensors.dtype},
    {title: "shape", width: 190, values: tensors.shape},
  ]});
}

// Each row leads to its place in the charts, and back.
function showTables(model, view, charts) {
  const box = byId("table"), peak = new Set((model.data.after ?? model.data.before).peak_tensors);
  const boxes = {ops: make("div"), tensors: make("div")};
  box.append(boxes.ops, boxes.tensors);
  const tables = {
    ops: opTable(model, boxes.ops, (op) => charts.timeline.visit(model.last.stepOf[op])),
    tensors: tensorTable(model, boxes.tensors, (tensor) => charts.layout?.visitTensor(tensor)),
  };
  tables.ops.sort(0);
  tables.tensors.sort(0);
  const only = {ops: ["only what moved", (op) => model.moved.has(op)],
    tensors: ["only at the peak", (tensor) => peak.has(tensor)]};
  let shown = "ops";
  const filter = () => {
    const keeps = byId("only-marked").checked ? only[shown][1] : () => true;
    tables[shown].filter(byId("filter").value, keeps);
    const [count, all] = [tables[shown].shown.length, tables[shown].all.length];
    byId("count").textContent = count === all ? `${grouped(all)} ${shown}` : `${grouped(count)} of ${grouped(all)} ${shown}`;
  };
  const choose = (name) => {
    shown = name;
    for (const other of ["ops", "tensors"]) {
      byId(`tab-${other}`).setAttribute("aria-selected", other === name);
      byId(`tab-${other}`).tabIndex = other === name ? 0 : -1;
      boxes[other].hidden = other !== name;
    }
    box.setAttribute("aria-labelledby", `tab-${name}`);
    byId("only-marked").checked = false;
    byId("only").hidden = name === "ops" && model.moved.size === 0;
    byId("only-text").textContent = only[name][0];
    filter();
  };
  for (const name of ["ops", "tensors"]) {
    byId(`tab-${name}`).addEventListener("click", () => choose(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      choose(shown === "ops" ? "tensors" : "ops");
      byId(`tab-${shown}`).focus();
    });
  }
  byId("filter").addEventListener("input", filter);
  byId("only-marked").addEventListener("change", filter);
  // Marks the row; the page moves there only if that is what was asked for, and not the side effect of a click.
  const open = (name, row, isWanted) => {
    if (shown !== name) choose(name);
    if (!tables[name].reveal(row)) {
      byId("filter").value = "";
      byId("only-marked").checked = false;
      filter();
      tables[name].reveal(row);
    }
    if (isWanted) byId("ops").scrollIntoView({block: "nearest"});
  };
  view.openOp = (op, isWanted) => open("ops", op, isWanted);
  view.openTensor = (tensor, isWanted) => open("tensors", tensor, isWanted);
  choose("ops");
}

function listen(view) {
  const dark = matchMedia("(prefers-color-scheme: dark)"), button = byId("theme"), root = document.documentElement;
  const isDark = () => (root.style.colorScheme || (dark.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.style.colorScheme = isDark() ? "light" : "dark";
    name();
    view.recolour();
  });
  dark.addEventListener("change", () => { name(); view.recolour(); });
  name();
  const zooms = {in: () => view.zoom(0.5), out: () => view.zoom(2), all: () => view.all(), peak: () => {
    const time = view.model.last.peakTime, half = Math.max(10, view.model.steps / 40);
    view.show(time - half, time + half);
  }};
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".chart")) tip.hide(); });
  for (const tool of document.querySelectorAll("[data-zoom]")) tool.addEventListener("click", zooms[tool.dataset.zoom]);
}

function main() {
  const data = JSON.parse(byId("data").textContent), {run} = data;
  const model = new Model(data), view = new View(model);
  const both = data.after && run.kind === "graph";
  // Within a budget the unplanned step has other ops: what is shown is the order in which this one was recorded.
  const isWithin = data.unplanned_peak_bytes !== data.before.peak_bytes;
  model.shownSides = [{name: !both ? "the step" : isWithin ? "in program order" : "before planning",
    events: data.before, replayed: model.before},
    ...(both ? [{name: "after planning", events: data.after, replayed: model.after}] : [])];
  byId("name").textContent = run.name;
  byId("context").textContent = [`run ${run.run_id}`, run.device, `torch ${run.torch_version}`, run.clock,
    `${grouped(model.steps)} ops`, data.date].join(" · ");
  byId("footer").textContent = `Made by stowage ${run.stowage_version} from ${data.store}.`;
  showFigures(model);
  byId("story").append(...data.story.map((text) => make("li", {}, text)));
  showPeak(model);
  showExplanation(model);
  showTables(model, view, showCharts(model, view));
  listen(view);
  // Once all is drawn: how long that took, in milliseconds.
  requestAnimationFrame(() => requestAnimationFrame((now) => { document.documentElement.dataset.readyMs = Math.round(now); }));
}

main();
