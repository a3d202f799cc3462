// What happened: the events of the step replayed, before and after planning.
//
// Time is in steps: op number s of an order takes [s, s + 1), its events lie evenly within.

class Side {
  constructor(data, events, order) {
    const {tensors, classes, start} = data;
    const count = events.op.length, kinds = classes.length;
    const classOf = tensors.class.map((name) => classes.indexOf(name));
    const stepOf = new Int32Array(order.length);
    order.forEach((op, step) => { stepOf[op] = step; });
    Object.assign(this, {order, stepOf, count, kinds, peakEvent: events.peak_event, peakBytes: events.peak_bytes});

    // Bytes of each class after event e at [(e + 1) * kinds, ...); at 0 those at the start.
    this.stacks = new Float64Array((count + 1) * kinds);
    this.totals = new Float64Array(count + 1);
    for (const tensor of start) {
      this.stacks[classOf[tensor]] += tensors.size_bytes[tensor];
      this.totals[0] += tensors.size_bytes[tensor];
    }
    // Events of step s are [firstEvent[s], firstEvent[s + 1]). Where threads alternate, an op that began waits for those
    // that began after it: its further events count as theirs.
    this.firstEvent = new Int32Array(order.length + 1);
    let latest = 0;
    for (const op of events.op) {
      latest = Math.max(latest, stepOf[op]);
      ++this.firstEvent[latest + 1];
    }
    for (let step = 0; step < order.length; ++step) this.firstEvent[step + 1] += this.firstEvent[step];

    const steps = order.length;
    this.at = new Float64Array(count);
    this.live = new Float64Array(steps);
    this.allocated = new Float64Array(steps);
    this.freed = new Float64Array(steps);
    for (let step = 0; step < steps; ++step) {
      const first = this.firstEvent[step], end = this.firstEvent[step + 1];
      this.live[step] = this.totals[first];
      for (let event = first; event < end; ++event) {
        const change = events.change_bytes[event], next = (event + 1) * kinds;
        this.at[event] = step + (event - first + 1) / (end - first + 1);
        this.stacks.copyWithin(next, event * kinds, next);
        this.stacks[next + classOf[events.tensor[event]]] += change;
        this.totals[event + 1] = this.totals[event] + change;
        this.live[step] = Math.max(this.live[step], this.totals[event + 1]);
        if (change > 0) this.allocated[stepOf[events.op[event]]] += change;
        else this.freed[stepOf[events.op[event]]] -= change;
      }
    }
  }

  // The place in totals at which most is live within [from, to) of time.
  highest(from, to) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at[middle] <= from) low = middle + 1;
      else high = middle;
    }
    let best = low;  // what is live at `from`: after the events up to it
    for (let place = low + 1; place <= this.count && this.at[place - 1] < to; ++place) {
      if (this.totals[place] > this.totals[best]) best = place;
    }
    return best;
  }

  stack(place) {
    return this.stacks.subarray(place * this.kinds, (place + 1) * this.kinds);
  }

  get peakTime() {
    return this.peakEvent < 0 ? 0 : this.at[this.peakEvent];
  }
}

class Model {
  constructor(data) {
    this.data = data;
    this.programOrder = data.ops.name.map((_, op) => op);
    this.before = new Side(data, data.before, this.programOrder);
    this.after = data.after ? new Side(data, data.after, data.order) : null;
    this.last = this.after ?? this.before;
    this.steps = this.programOrder.length;
    this.moved = new Set(data.moved);
    this.slots = data.slots ? this.#slots(data.slots) : [];
    this.offsets = new Map(this.slots.map((slot) => [slot.tensor, slot.offset]));
  }

  // Rectangles: [begin, end) of time, [offset, offset + size) of the arena; in order of time.
  #slots(columns) {
    const time = (event, otherwise) => event === null ? otherwise : this.after.at[event];
    return columns.tensor.map((tensor, slot) => ({
      tensor,
      offset: columns.offset_bytes[slot],
      size: columns.size_bytes[slot],
      begin: time(columns.begin[slot], 0),
      end: time(columns.end[slot], this.steps),
    })).sort((one, other) => one.begin - other.begin || one.offset - other.offset);
  }

  tensorName(tensor) {
    return this.data.tensors.name[tensor] || `tensor ${tensor}`;
  }

  opName(op) {
    const {kind, name} = this.data.ops;
    return op === null ? "-" : `${op} ${kind[op]} '${name[op]}'`;
  }

  place(op) {
    const {scope, source} = this.data.ops;
    return op === null ? "" : [scope[op], source[op]].filter(Boolean).join(" at ");
  }
}
