// The layout: time x address, a rectangle for each slot.

const TINTS = 3;

class Layout extends Chart {
  constructor(parent, view, {arena, height}) {
    super(parent, view, {label: "Layout: tensors by the time and the addresses they take", height,
      values: view.model.slots.length});
    Object.assign(this, {arena: arena || 1, slots: this.model.slots});
    this.showAll();
  }

  showAll() {
    this.low = 0;
    this.high = this.arena;
  }

  y(address) {
    return this.height * (1 - (address - this.low) / (this.high - this.low));
  }

  address(y) {
    return this.low + (1 - y / this.height) * (this.high - this.low);
  }

  #rectangle(slot) {
    const left = Math.max(this.x(slot.begin), LEFT), top = Math.max(this.y(slot.offset + slot.size), 0);
    return {left, top, width: Math.min(this.x(slot.end), this.width) - left,
      height: Math.min(this.y(slot.offset), this.height) - top};
  }

  draw() {
    const pen = this.begin(), {view, model} = this, {ops, tensors} = model.data;
    const styles = Object.fromEntries(model.data.classes.map((name) => [name, tints(view.colours[name])]));
    this.drawSizes(pen, this.low, this.high);
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const slot of this.slots) {
      const {left, top, width, height} = this.#rectangle(slot), kind = tensors.class[slot.tensor];
      if (width <= 0 || height <= 0) continue;
      const gap = width > 4 && height > 4 ? 0.6 : 0;
      const {fill, ink} = styles[kind][slot.tensor % TINTS];
      pen.fillStyle = fill;
      pen.fillRect(left, top, Math.max(width - gap, 0.5), Math.max(height - gap, 0.4));
      if (width > 40 && height > 15) {
        const made = tensors.made_by[slot.tensor], scope = made === null ? "" : ops.scope[made];
        const name = fitting(pen, model.tensorName(slot.tensor) + (scope && ` in ${scope}`), width - 10);
        pen.fillStyle = ink;
        pen.fillText(name, left + 5, top + height / 2);
      }
    }
    this.#drawPeakTime(pen);
    this.drawSteps(pen);
  }

  #drawPeakTime(pen) {
    const time = this.model.last.peakTime;
    if (time < this.view.from || time > this.view.to) return;
    pen.strokeStyle = this.view.colours.text;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(Math.round(this.x(time)) + 0.5, 0);
    pen.lineTo(Math.round(this.x(time)) + 0.5, this.height);
    pen.stroke();
    pen.setLineDash([]);
  }

  // The slot at that place, or one so near that a finger may have meant it.
  #find(x, y) {
    const time = this.time(x), address = this.address(y);
    const reach = 2 * (this.view.to - this.view.from) / (this.width - LEFT);
    let near = -1;
    for (let index = 0; index < this.slots.length; ++index) {
      const slot = this.slots[index];
      if (slot.begin > time + reach || slot.end < time - reach || address < slot.offset || address >= slot.offset + slot.size) {
        continue;
      }
      if (slot.begin <= time && time < slot.end) return index;
      near = index;
    }
    return near;
  }

  hover(x, y, event) {
    const found = x < LEFT ? -1 : this.#find(x, y);
    if (found < 0) return this.leave();
    this.#show(found, event.clientX, event.clientY);
  }

  point(index) {
    if (this.slots.length === 0) return;
    const slot = this.slots[index], middle = slot.offset + slot.size / 2;
    this.view.reveal(Math.min(Math.max(slot.begin, this.view.from), Math.max(slot.end, slot.begin)));
    if (middle < this.low || middle > this.high) this.showAll(), this.draw();
    const box = this.element.getBoundingClientRect(), {left, top, width, height} = this.#rectangle(slot);
    this.#show(index, box.left + left + width / 2, box.top + top + height / 2);
  }

  visitTensor(tensor) {
    const index = this.slots.findIndex((slot) => slot.tensor === tensor);
    if (index < 0) return;
    this.element.scrollIntoView({block: "center"});
    this.point(index);
  }

  #show(index, clientX, clientY) {
    this.cursor = index;
    const {model} = this, slot = this.slots[index], pen = this.over.getContext("2d");
    const {left, top, width, height} = this.#rectangle(slot);
    this.clearOver();
    pen.strokeStyle = this.view.colours.card;
    pen.lineWidth = 5;
    pen.strokeRect(left, top, Math.max(width, 1), Math.max(height, 1));
    pen.strokeStyle = this.view.colours.text;
    pen.lineWidth = 2;
    pen.strokeRect(left, top, Math.max(width, 1), Math.max(height, 1));
    this.tell(index, model.tensorName(slot.tensor), slotRows(model, slot), clientX, clientY);
  }

  cursorTime() {
    const slot = this.slots[this.cursor];
    return slot ? (slot.begin + slot.end) / 2 : 0;
  }

  keys() {
    const go = (index) => () => this.point(Math.min(Math.max(index, 0), this.slots.length - 1));
    const peak = () => {
      const time = this.model.last.peakTime;
      go(this.slots.findIndex((slot) => slot.begin <= time && time < slot.end))();
    };
    return {ArrowLeft: go(this.cursor - 1), ArrowRight: go(this.cursor + 1), ArrowUp: go(this.#above(1)),
      ArrowDown: go(this.#above(-1)), PageUp: go(this.cursor + 20), PageDown: go(this.cursor - 20), Home: go(0),
      End: go(this.slots.length - 1), p: peak, P: peak};
  }

  // The next slot above (or below, -1) that lives at a time with the one under the cursor.
  #above(sign) {
    const here = this.slots[this.cursor];
    let best = this.cursor, distance = Infinity;
    this.slots.forEach((slot, index) => {
      const apart = (slot.offset - here.offset) * sign;
      if (apart > 0 && apart < distance && slot.begin < here.end && here.begin < slot.end) [best, distance] = [index, apart];
    });
    return best;
  }

  open(isWanted) {
    if (this.slots.length > 0) this.view.openTensor(this.slots[this.cursor].tensor, isWanted);
  }

  drawSelection(from, to) {
    const pen = this.over.getContext("2d");
    pen.globalAlpha = 0.25;
    pen.fillStyle = this.view.colours.accent;
    pen.fillRect(Math.min(from.x, to.x), Math.min(from.y, to.y), Math.abs(to.x - from.x), Math.abs(to.y - from.y));
    pen.globalAlpha = 1;
  }

  select(from, to) {
    this.leave();
    if (Math.abs(from.y - to.y) > DRAG) {
      const low = this.address(Math.max(from.y, to.y)), high = this.address(Math.min(from.y, to.y));
      this.low = Math.max(low, 0);
      this.high = Math.min(Math.max(high, this.low + 64), this.arena);
    }
    this.view.show(this.time(Math.min(from.x, to.x)), this.time(Math.max(from.x, to.x)));
  }
}

function slotRows(model, slot) {
  const {tensors, ops} = model.data, {tensor} = slot;
  const made = tensors.made_by[tensor], used = tensors.last_use[tensor], scope = made === null ? "" : ops.scope[made];
  return [["size", size(tensors.size_bytes[tensor])],
    ["class", tensors.class[tensor], tensors.class[tensor]],
    ...(tensors.shape[tensor] ? [["shape", `${tensors.dtype[tensor]} ${tensors.shape[tensor]}`]] : []),
    ...(scope ? [["module", scope]] : []),
    ["made by", model.opName(made)],
    ...(made !== null && ops.source[made] ? [["at", ops.source[made]]] : []),
    ["last used by", model.opName(used)],
    ["address", `${grouped(slot.offset)} B`],
    ["steps", `${grouped(Math.floor(slot.begin))} to ${grouped(Math.ceil(slot.end))}`]];
}

// Shades of a class's colour, that neighbours may be told apart, each with black or white to be read on it.
function tints(colour) {
  const base = colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  return Array.from({length: TINTS}, (_, tint) => {
    const parts = base.map((part) => Math.round(part + (255 - part) * 0.13 * tint));
    const [red, green, blue] = parts.map((part) => {
      const level = part / 255;
      return level <= 0.04045 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4;
    });
    const ink = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
    return {fill: `rgb(${parts.join(" ")})`, ink};
  });
}

function fitting(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const length = Math.floor(text.length * width / pen.measureText(text).width) - 1;
  return length < 4 ? "" : `${text.slice(0, length)}…`;
}
