// What the charts share: the stretch of time they show, a canvas with axes, the pointer, keys and the tip beside it.

class View {
  constructor(model) {
    Object.assign(this, {model, from: 0, to: Math.max(model.steps, 1), charts: []});
    this.recolour();
  }

  recolour() {
    this.colours = themeColours([...this.model.data.classes, "text", "quiet", "line", "card", "bound", "accent"]);
    this.redraw();
  }

  redraw() {
    for (const chart of this.charts) chart.draw();
  }

  show(from, to) {
    const all = Math.max(this.model.steps, 1), span = Math.min(Math.max(to - from, 2), all);
    this.from = Math.min(Math.max(from, 0), all - span);
    this.to = this.from + span;
    this.redraw();
  }

  all() {
    for (const chart of this.charts) chart.showAll();
    this.show(0, this.model.steps);
  }

  zoom(factor, centre = (this.from + this.to) / 2) {
    this.show(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  // Moves so that the time is in sight.
  reveal(time) {
    const span = this.to - this.from;
    if (time < this.from || time > this.to) this.show(time - span / 2, time + span / 2);
  }
}

const LEFT = 66, BOTTOM = 20, DRAG = 5;  // pixels

class Chart {
  constructor(parent, view, {label, height, values}) {
    this.view = view;
    this.model = view.model;
    this.cursor = 0;
    this.base = make("canvas", {"aria-hidden": "true"});
    this.over = make("canvas", {"aria-hidden": "true"});
    this.element = make("div", {class: "chart", tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0,
      "aria-valuemax": Math.max(values - 1, 0), "aria-valuenow": 0}, this.base, this.over);
    this.element.style.height = `${height}px`;
    parent.append(this.element);
    view.charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.#listen();
  }

  #listen() {
    const on = (name, handle) => this.element.addEventListener(name, handle);
    on("pointermove", (event) => this.#pointerMoves(event));
    on("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) {
        this.drag = {x: event.offsetX, y: event.offsetY};
        this.element.setPointerCapture(event.pointerId);
      } else {
        this.#pointerMoves(event);
      }
    });
    on("pointerup", (event) => {
      const from = this.drag;
      this.drag = null;
      if (!from) return;
      if (Math.abs(event.offsetX - from.x) > DRAG) this.select(from, {x: event.offsetX, y: event.offsetY});
      else this.open(false);
    });
    on("pointercancel", () => {
      this.drag = null;
      this.leave();
    });
    // A finger leaves whenever it is lifted: what it tapped stays shown.
    on("pointerleave", (event) => { if (event.pointerType === "mouse") this.leave(); });
    on("blur", () => this.leave());
    on("focus", () => { if (this.element.matches(":focus-visible")) this.point(this.cursor); });
    on("dblclick", () => this.view.all());
    on("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.view.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX));
    });
    on("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const handled = {"+": () => this.view.zoom(0.5, this.cursorTime()), "=": () => this.view.zoom(0.5, this.cursorTime()),
        "-": () => this.view.zoom(2, this.cursorTime()), "0": () => this.view.all(), Enter: () => this.open(true),
        Escape: () => this.leave(), ...this.keys()}[event.key];
      if (!handled) return;
      event.preventDefault();
      handled();
    });
  }

  #pointerMoves(event) {
    if (this.drag) {
      this.clearOver();
      this.drawSelection(this.drag, {x: event.offsetX, y: event.offsetY});
      tip.hide();
    } else {
      this.hover(event.offsetX, event.offsetY, event);
    }
  }

  leave() {
    this.clearOver();
    tip.hide();
  }

  // Of the time axis.
  x(time) {
    return LEFT + (time - this.view.from) / (this.view.to - this.view.from) * (this.width - LEFT);
  }

  time(x) {
    return this.view.from + (x - LEFT) / (this.width - LEFT) * (this.view.to - this.view.from);
  }

  // Clears both canvases, at the size and the resolution that they have now.
  begin() {
    this.width = this.element.clientWidth;
    this.height = this.element.clientHeight - BOTTOM;
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.element.clientHeight * ratio);
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    const pen = this.base.getContext("2d");
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    return pen;
  }

  clearOver() {
    this.over.getContext("2d").clearRect(0, 0, this.over.width, this.over.height);
  }

  drawSizes(pen, from, to) {
    const {colours} = this.view;
    const step = 2 ** Math.max(0, Math.ceil(Math.log2((to - from) / (this.height / 34))));
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let bytes = Math.ceil(from / step) * step; bytes <= to; bytes += step) {
      const y = this.height * (1 - (bytes - from) / (to - from));
      pen.fillStyle = colours.line;
      pen.fillRect(LEFT, Math.round(Math.min(y, this.height - 1)), this.width - LEFT, 1);
      pen.fillStyle = colours.quiet;
      pen.fillText(bytes === 0 ? "0" : size(bytes).replace(/\.?0+ /, " "), LEFT - 7, Math.min(Math.max(y, 7), this.height));
    }
  }

  drawSteps(pen) {
    const {colours, from, to} = this.view;
    const rough = (to - from) / Math.max((this.width - LEFT) / 90, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, power * [1, 2, 5, 10].find((factor) => factor * power >= rough));
    pen.textBaseline = "top";
    for (let at = Math.ceil(from / step) * step; at < to; at += step) {
      const x = this.x(at), text = at === 0 ? "step 0" : grouped(at);
      const half = pen.measureText(text).width / 2;
      pen.textAlign = x - half < LEFT ? "left" : x + half > this.width ? "right" : "center";
      pen.fillStyle = colours.quiet;
      pen.fillText(text, x, this.height + 6);
      pen.fillStyle = colours.line;
      pen.fillRect(Math.round(x), this.height, 1, 4);
    }
  }

  // Shows the tip, and says the same to a screen reader.
  tell(value, title, rows, clientX, clientY) {
    tip.show(title, rows, clientX, clientY);
    this.element.setAttribute("aria-valuenow", value);
    this.element.setAttribute("aria-valuetext", `${title}: ${rows.map(([label, text]) => `${label} ${text}`).join(", ")}`);
  }

  // A line of time across the chart.
  drawCursor(time) {
    const pen = this.over.getContext("2d");
    pen.fillStyle = this.view.colours.text;
    pen.fillRect(Math.round(this.x(time)), 0, 1, this.height);
  }
}

const tip = {
  hide() {
    byId("tip").hidden = true;
  },

  // Rows are [label, text, class to show the colour of].
  show(title, rows, x, y) {
    const box = byId("tip");
    box.replaceChildren(make("b", {}, title), make("table", {}, make("tbody", {}, ...rows.map(([label, text, colour]) =>
      make("tr", {}, make("th", {}, colour ? swatch(colour) : null, label), make("td", {}, text))))));
    box.hidden = false;
    const {width, height} = box.getBoundingClientRect();
    const left = x + 16 + width > innerWidth - 8 ? x - 16 - width : x + 16;
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - 8 - width))}px`;
    box.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - 8 - height))}px`;
  },
};
