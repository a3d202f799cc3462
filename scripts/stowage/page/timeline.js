// Live bytes over the step, stacked by class.

class Timeline extends Chart {
  // `ceiling`: the bytes that the chart is high enough for.
  constructor(parent, view, side, {name, ceiling, bound, height}) {
    super(parent, view, {label: `${name}: live memory at each step`, height, values: view.model.steps});
    Object.assign(this, {side, name, ceiling: ceiling * 1.14 || 1, bound});
  }

  showAll() {}

  y(bytes) {
    return this.height * (1 - bytes / this.ceiling);
  }

  draw() {
    const pen = this.begin(), {view, side} = this, {classes} = this.model.data;
    this.drawSizes(pen, 0, this.ceiling);
    const top = [];
    for (let x = LEFT; x < this.width; ++x) {
      const place = side.highest(this.time(x), this.time(x + 1)), stack = side.stack(place);
      let below = 0;
      for (let kind = 0; kind < side.kinds; ++kind) {
        if (stack[kind] <= 0) continue;
        const low = this.y(below), high = this.y(below += stack[kind]);
        pen.fillStyle = view.colours[classes[kind]];
        pen.fillRect(x, high, 1.02, low - high);
      }
      top.push(this.y(below));
    }
    pen.beginPath();
    top.forEach((y, x) => pen.lineTo(LEFT + x + 0.5, y));
    pen.strokeStyle = view.colours.text;
    pen.lineWidth = 1;
    pen.stroke();
    this.drawSteps(pen);
    this.#drawBound(pen);
    this.#drawPeak(pen);
  }

  #drawBound(pen) {
    if (this.bound === null) return;
    const y = Math.round(this.y(this.bound)) + 0.5;
    pen.strokeStyle = this.view.colours.bound;
    pen.lineWidth = 1.5;
    pen.setLineDash([6, 4]);
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(this.width, y);
    pen.stroke();
    pen.setLineDash([]);
    this.#label(pen, `bound ${size(this.bound)}`, this.width - 4, y + 11, "right", this.view.colours.bound);
  }

  #drawPeak(pen) {
    const time = this.side.peakTime, x = this.x(time), y = this.y(this.side.peakBytes);
    if (time < this.view.from || time > this.view.to) return;
    pen.beginPath();
    pen.arc(x, y, 4, 0, 7);
    pen.fillStyle = this.view.colours.text;
    pen.fill();
    pen.strokeStyle = this.view.colours.card;
    pen.lineWidth = 1.5;
    pen.stroke();
    const isRight = x > (LEFT + this.width) / 2;
    this.#label(pen, `peak ${size(this.side.peakBytes)}`, x + (isRight ? -8 : 8), y - 9, isRight ? "right" : "left",
      this.view.colours.text);
  }

  #label(pen, text, x, y, align, colour) {
    const width = pen.measureText(text).width;
    pen.globalAlpha = 0.88;
    pen.fillStyle = this.view.colours.card;
    pen.fillRect(align === "right" ? x - width - 3 : x - 3, y - 8, width + 6, 16);
    pen.globalAlpha = 1;
    pen.fillStyle = colour;
    pen.textAlign = align;
    pen.textBaseline = "middle";
    pen.fillText(text, x, y);
  }

  hover(x, y, event) {
    if (x < LEFT) return this.leave();
    const step = Math.min(Math.floor(this.time(x)), this.model.steps - 1);
    this.#show(step, event.clientX, event.clientY);
  }

  // By keys: as hovering over it would.
  point(step) {
    this.view.reveal(step + 0.5);
    const box = this.element.getBoundingClientRect();
    this.#show(step, box.left + this.x(step + 0.5), box.top + this.height / 2);
  }

  visit(step) {
    this.element.scrollIntoView({block: "center"});
    this.point(step);
  }

  #show(step, clientX, clientY) {
    if (this.model.steps === 0) return;
    this.cursor = step;
    const {side, model} = this, op = side.order[step], {classes} = model.data;
    const place = side.highest(step, step + 1), stack = side.stack(place);
    this.clearOver();
    this.drawCursor(step + 0.5);
    const rows = classes.map((name, kind) => [name, size(stack[kind]), name]).filter((_, kind) => stack[kind] > 0).reverse();
    const where = model.place(op), title = `${model.data.ops.kind[op]} '${model.data.ops.name[op]}'`;
    this.tell(step, title, [["step", `${grouped(step)} (op ${op})`], ...(where ? [["module", where]] : []),
      ["live", size(side.totals[place])], ...rows], clientX, clientY);
  }

  cursorTime() {
    return this.cursor + 0.5;
  }

  keys() {
    const go = (step) => () => this.point(Math.min(Math.max(Math.round(step), 0), this.model.steps - 1));
    const far = Math.max(1, (this.view.to - this.view.from) / 12), peak = go(Math.ceil(this.side.peakTime) - 1);
    return {ArrowLeft: go(this.cursor - 1), ArrowDown: go(this.cursor - 1), ArrowRight: go(this.cursor + 1),
      ArrowUp: go(this.cursor + 1), PageUp: go(this.cursor + far), PageDown: go(this.cursor - far), Home: go(0),
      End: go(this.model.steps - 1), p: peak, P: peak};
  }

  open(isWanted) {
    if (this.model.steps > 0) this.view.openOp(this.side.order[this.cursor], isWanted);
  }

  drawSelection(from, to) {
    const pen = this.over.getContext("2d");
    pen.globalAlpha = 0.25;
    pen.fillStyle = this.view.colours.accent;
    pen.fillRect(Math.min(from.x, to.x), 0, Math.abs(to.x - from.x), this.height);
    pen.globalAlpha = 1;
  }

  select(from, to) {
    this.leave();
    this.view.show(this.time(Math.min(from.x, to.x)), this.time(Math.max(from.x, to.x)));
  }
}
