// A table of any length: only the rows in sight are elements.

const ROW = 28, SPARE = 8;  // pixels; rows beyond those in sight

class VirtualTable {
  // Columns: {title, width in pixels, isNumber, values: one a row, text: value -> string}; quantities have
  // the largest first, places and texts the least. `open(row)` is for Enter and click.
  constructor(parent, {label, columns, rows, open}) {
    Object.assign(this, {columns, open, all: Int32Array.from({length: rows}, (_, row) => row), sorted: null, isUp: true});
    this.shown = this.all;
    this.current = -1;
    this.heads = columns.map((column, index) => make("th", {scope: "col", class: column.isNumber ? "number" : null},
      make("button", {type: "button", onclick: () => this.sort(index)}, column.title, make("span", {"aria-hidden": "true"}))));
    this.body = make("tbody");
    this.table = make("table", {role: "grid", tabindex: 0, "aria-label": label, "aria-readonly": "true",
      onkeydown: (event) => this.#key(event)},
    make("colgroup", {}, ...columns.map((column) => {
      const col = make("col");
      col.style.width = `${column.width}px`;
      return col;
    })), make("thead", {}, make("tr", {"aria-rowindex": 1}, ...this.heads)), this.body);
    this.table.style.width = `${columns.reduce((sum, column) => sum + column.width, 0)}px`;
    this.scroller = make("div", {class: "rows", onscroll: () => this.draw()}, this.table);
    parent.append(this.scroller);
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    this.id = `${label.toLowerCase()}-row`;
  }

  // Rows for which all words are in one of its texts, and `keeps(row)`.
  filter(text, keeps) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.texts ??= Array.from(this.all, (row) => this.columns.map((column) => column.isNumber ? "" : column.values[row] ?? "")
      .join("\n").toLowerCase());
    this.keep = (row) => keeps(row) && words.every((word) => this.texts[row].includes(word));
    this.#arrange();
  }

  sort(index) {
    this.isUp = this.sorted === index ? !this.isUp : !this.columns[index].isNumber || this.columns[index].isPlace;
    this.sorted = index;
    this.heads.forEach((head, at) => {
      const direction = at !== index ? null : this.isUp ? "ascending" : "descending";
      if (direction) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
      head.querySelector("span").textContent = at !== index ? "" : this.isUp ? " ▲" : " ▼";
    });
    this.#arrange();
  }

  #arrange() {
    this.shown = this.keep ? this.all.filter(this.keep) : this.all.slice();
    if (this.sorted !== null) {
      const {values, isNumber} = this.columns[this.sorted], sign = this.isUp ? 1 : -1;
      const compare = isNumber ? (one, other) => (one ?? -1) - (other ?? -1)
        : (one, other) => one < other ? -1 : one > other ? 1 : 0;
      this.shown.sort((one, other) => sign * compare(values[one], values[other]) || one - other);
    }
    this.scroller.scrollTop = 0;
    this.draw();
  }

  draw() {
    const {scrollTop, clientHeight} = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - SPARE);
    const end = Math.min(this.shown.length, Math.ceil((scrollTop + clientHeight) / ROW) + SPARE);
    const rows = [];
    for (let at = first; at < end; ++at) rows.push(this.#row(this.shown[at], at));
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    this.body.replaceChildren(this.#spacer(first), ...rows, this.#spacer(this.shown.length - end));
    const id = `${this.id}-${this.current}`;
    if (byId(id)) this.table.setAttribute("aria-activedescendant", id);
    else this.table.removeAttribute("aria-activedescendant");
  }

  #spacer(count) {
    const cell = make("td", {colspan: this.columns.length});
    cell.style.height = `${count * ROW}px`;
    return make("tr", {class: "spacer", "aria-hidden": "true"}, cell);
  }

  #row(row, at) {
    return make("tr", {id: `${this.id}-${row}`, "aria-rowindex": at + 2, "aria-current": row === this.current ? "true" : null,
      onclick: () => { this.mark(row); this.open(row); }},
    ...this.columns.map(({values, text, isNumber}) => {
      const value = values[row], shown = text ? text(value) : String(value ?? "");
      return make("td", {class: isNumber ? "number" : null, title: isNumber ? null : shown || null}, shown);
    }));
  }

  mark(row) {
    this.current = row;
    this.draw();
  }

  // Brings the row into sight; one that the filter hides is not there to be seen.
  reveal(row) {
    const at = this.shown.indexOf(row);
    if (at < 0) return false;
    const {scrollTop, clientHeight} = this.scroller, top = at * ROW, head = 34;
    if (top < scrollTop || top + ROW > scrollTop + clientHeight - head) {
      this.scroller.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.mark(row);
    return true;
  }

  #key(event) {
    if (event.target !== this.table || this.shown.length === 0) return;
    const at = this.shown.indexOf(this.current), page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW) - 2);
    const last = this.shown.length - 1;
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: last};
    if (event.key === "Enter" && at >= 0) this.open(this.current);
    else if (event.key in to) this.reveal(this.shown[Math.min(Math.max(to[event.key], 0), last)]);
    else return;
    event.preventDefault();
  }
}
