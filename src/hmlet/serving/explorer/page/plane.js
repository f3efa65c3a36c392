// Many points on a canvas. One pass writes sprites into a pixel buffer; a grid finds the point under the pointer.

const CELLS = 128; // of the grid, along each side
const MOST_LABELS = 28;
const REACH = 10; // pixels around the pointer

/** A disc or a diamond: the places of its pixels beside the middle, in an image so wide, and how much each covers (0 to 256). */
function sprite(radius, diamond, width, strength) {
  const reach = Math.ceil(radius), places = [], covers = [];
  for (let y = -reach; y <= reach; y++) for (let x = -reach; x <= reach; x++) {
    const far = diamond ? (Math.abs(x) + Math.abs(y)) * 0.8 : Math.hypot(x, y);
    const cover = Math.round(256 * strength * Math.max(0, Math.min(1, radius + 0.5 - far)));
    if (cover > 0) { places.push(y * width + x); covers.push(cover); }
  }
  return { reach, places: Int32Array.from(places), covers: Int32Array.from(covers) };
}

export class Plane {
  /** Points by typed arrays x and y (0 to 1) and `users`, the number of points that are discs; the others are diamonds. */
  constructor(canvas, overlay, { x, y, users, weight }) {
    Object.assign(this, { canvas, overlay, x, y, users, weight, count: x.length });
    this.colour = new Uint8Array(this.count); // index into the palette
    this.palette = new Uint8Array(3 * 256);
    this.packed = new Int32Array(256);
    this.level = new Uint8Array(this.count).fill(1); // 0: hidden, 1: plain, 2: found
    this.camera = { x: 0.5, y: 0.5, zoom: 1 };
    this.selected = this.hovered = -1;
    this.near = [];
    this.label = () => "";
    this.frames = 0;
    this.byWeight = Int32Array.from(weight.keys()).sort((one, other) => weight[other] - weight[one]);
    this._index();
  }

  _index() {
    this.start = new Int32Array(CELLS * CELLS + 1);
    const cell = new Int32Array(this.count);
    for (let at = 0; at < this.count; at++) {
      cell[at] = Math.min(CELLS - 1, (this.y[at] * CELLS) | 0) * CELLS + Math.min(CELLS - 1, (this.x[at] * CELLS) | 0);
      this.start[cell[at] + 1]++;
    }
    for (let at = 0; at < CELLS * CELLS; at++) this.start[at + 1] += this.start[at];
    const next = this.start.slice(0, -1);
    this.inCell = new Int32Array(this.count);
    for (let at = 0; at < this.count; at++) this.inCell[next[cell[at]]++] = at;
  }

  /** Fit the canvases to the box. */
  resize() {
    this.ratio = Math.min(2, devicePixelRatio || 1);
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    for (const each of [this.canvas, this.overlay]) {
      each.width = Math.max(1, Math.round(this.width * this.ratio));
      each.height = Math.max(1, Math.round(this.height * this.ratio));
    }
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.draw();
  }

  get scale() { return Math.min(this.width, this.height) * 0.94 * this.camera.zoom; } // pixels of the unit square
  screenX(at) { return (this.x[at] - this.camera.x) * this.scale + this.width / 2; }
  screenY(at) { return (this.y[at] - this.camera.y) * this.scale + this.height / 2; }
  world(px, py) { return [(px - this.width / 2) / this.scale + this.camera.x, (py - this.height / 2) / this.scale + this.camera.y]; }

  pan(dx, dy) {
    this.camera.x -= dx / this.scale;
    this.camera.y -= dy / this.scale;
    this._keepInside();
  }

  zoomAt(px, py, factor) {
    const [wx, wy] = this.world(px, py);
    this.camera.zoom = Math.max(0.8, Math.min(400, this.camera.zoom * factor));
    this.camera.x = wx - (px - this.width / 2) / this.scale;
    this.camera.y = wy - (py - this.height / 2) / this.scale;
    this._keepInside();
  }

  _keepInside() {
    this.camera.x = Math.max(0, Math.min(1, this.camera.x));
    this.camera.y = Math.max(0, Math.min(1, this.camera.y));
  }

  /** Draw soon, once, however often it is asked for. */
  draw() {
    if (!this.pixels) return; // not yet in the page
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.frames++; this._points(); this._names(); });
  }

  _points() {
    const { pixels, ratio, palette } = this, width = this.canvas.width;
    for (let at = 0; at < 256; at++) this.packed[at] = (palette[3 * at + 2] << 16) | (palette[3 * at + 1] << 8) | palette[3 * at];
    pixels.fill(this.paper);
    const grown = Math.min(2.2, 0.8 + 0.35 * Math.log2(1 + this.camera.zoom)) * (this.count > 20000 ? 0.8 : 1.15) * ratio;
    const searching = this.found > 0 || this.near.length > 0, strength = searching ? 0.24 : 0.75;
    this._pass(1, sprite(1.1 * grown, false, width, strength), 0, this.users);
    this._pass(1, sprite(1.7 * grown, true, width, strength), this.users, this.count);
    if (searching) {
      this._pass(2, sprite(2.2 * grown, false, width, 1), 0, this.users);
      this._pass(2, sprite(2.8 * grown, true, width, 1), this.users, this.count);
    }
    this.context.putImageData(this.image, 0, 0);
  }

  /** Blend a sprite over the image at the points from `start` to `end` that have a level. */
  _pass(wanted, { reach, places, covers }, start, end) {
    const { pixels, x, y, colour, level, packed } = this, [width, height] = [this.canvas.width, this.canvas.height], size = places.length;
    const scale = this.scale * this.ratio, left = width / 2 - this.camera.x * scale + 0.5, top = height / 2 - this.camera.y * scale + 0.5;
    for (let at = start; at < end; at++) {
      if (level[at] !== wanted) continue;
      const px = (x[at] * scale + left) | 0, py = (y[at] * scale + top) | 0;
      if (px < reach || py < reach || px >= width - reach || py >= height - reach) continue;
      const base = py * width + px, ink = packed[colour[at]], redBlue = ink & 0xff00ff, green = ink & 0xff00;
      for (let k = 0; k < size; k++) { // red and blue are blended in one number, green in another
        const to = base + places[k], old = pixels[to], cover = covers[k], rest = 256 - cover;
        pixels[to] = 0xff000000
          | (((Math.imul(redBlue, cover) + Math.imul(old & 0xff00ff, rest)) >>> 8) & 0xff00ff)
          | (((Math.imul(green, cover) + Math.imul(old & 0xff00, rest)) >>> 8) & 0xff00);
      }
    }
  }

  /** Names of the most popular points in view, as far as they do not overlap; rings around what is chosen. */
  _names() {
    const pen = this.overlay.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const ring = (at, radius) => { pen.beginPath(); pen.arc(this.screenX(at), this.screenY(at), radius, 0, 7); pen.stroke(); };
    pen.strokeStyle = this.ink;
    pen.lineWidth = 1.5;
    if (this.selected >= 0) {
      pen.globalAlpha = 0.35;
      for (const at of this.near) { pen.beginPath(); pen.moveTo(this.screenX(this.selected), this.screenY(this.selected)); pen.lineTo(this.screenX(at), this.screenY(at)); pen.stroke(); }
      pen.globalAlpha = 1;
      pen.lineWidth = 2.5;
      ring(this.selected, 9);
    }
    if (this.moving) return;
    pen.font = "600 12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const taken = [];
    const write = (at, always) => {
      const text = this.label(at), x = this.screenX(at) + 9, y = this.screenY(at), box = [x - 4, y - 9, x + pen.measureText(text).width + 4, y + 9];
      if (!text || (!always && (box[2] > this.width || taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])))) return false;
      taken.push(box);
      pen.lineWidth = 3;
      pen.strokeStyle = this.paperCss;
      pen.strokeText(text, x, y);
      pen.fillStyle = this.ink;
      pen.fillText(text, x, y);
      return true;
    };
    const first = [this.hovered, this.selected, ...this.near].filter((at) => at >= 0);
    for (const at of first) write(at, at === this.hovered || at === this.selected);
    let written = first.length;
    for (const at of this.byWeight) {
      if (written >= MOST_LABELS) break;
      if (at < this.users || !this.level[at] || ((this.found > 0 || this.near.length) && this.level[at] < 2) || !this._inView(at)) continue;
      if (write(at, false)) written++;
    }
    if (this.hovered >= 0) { pen.strokeStyle = this.ink; pen.lineWidth = 2; ring(this.hovered, 7); }
  }

  _inView(at) {
    const [x, y] = [this.screenX(at), this.screenY(at)];
    return x >= 0 && y >= 0 && x <= this.width && y <= this.height;
  }

  /** The visible point nearest to a place on the screen; -1 if none is near. */
  at(px, py) {
    const reach = REACH / this.scale, [wx, wy] = this.world(px, py);
    const cell = (value) => Math.max(0, Math.min(CELLS - 1, (value * CELLS) | 0));
    let best = -1, least = reach * reach;
    for (let row = cell(wy - reach); row <= cell(wy + reach); row++) for (let column = cell(wx - reach); column <= cell(wx + reach); column++) {
      for (let k = this.start[row * CELLS + column]; k < this.start[row * CELLS + column + 1]; k++) {
        const at = this.inCell[k], far = (this.x[at] - wx) ** 2 + (this.y[at] - wy) ** 2;
        if (this.level[at] && far < least) [best, least] = [at, far];
      }
    }
    return best;
  }

  /** The most popular visible points in view, and how many there are. */
  inView(most) {
    const shown = [];
    let total = 0;
    for (const at of this.byWeight) {
      if (this.level[at] && (!this.found || this.level[at] === 2) && this._inView(at) && ++total <= most) shown.push(at);
    }
    return { shown, total };
  }
}
