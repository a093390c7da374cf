// The map of a report: draws points on a canvas, and shows the one that is pointed at, or reached by keyboard.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const stage = document.querySelector(".stage");
  const base = stage.querySelector(".points"), over = stage.querySelector(".over");
  const tip = stage.querySelector(".tip"), picture = tip.querySelector(".picture");
  const [kind, text] = [tip.querySelector(".kind"), tip.querySelector(".text")];
  const spoken = document.querySelector(".spoken");
  const { groups, sheets } = data;
  const NEAR = 22, CELL = 24, MOST = 64; // how near a pointer must come, and a cell of the grid, in CSS pixels

  let first = 0; // of a group's pictures among all
  for (const group of groups) {
    group.shown = true;
    group.first = first;
    if (group.pictures) first += group.x.length;
  }
  const links = groups.map(() => new Map()); // of each point, what belongs to it
  const link = (g, i, h, j) => {
    if (!links[g].has(i)) links[g].set(i, []);
    links[g].get(i).push([h, j]);
  };
  for (const [g, h, rows] of data.links) {
    for (let k = 0; k < rows.length; k += 2) {
      link(g, rows[k], h, rows[k + 1]);
      link(h, rows[k + 1], g, rows[k]);
    }
  }

  const bounds = () => {
    const at = { left: Infinity, right: -Infinity, low: Infinity, high: -Infinity };
    const take = (x, y) => {
      at.left = Math.min(at.left, x); at.right = Math.max(at.right, x);
      at.low = Math.min(at.low, y); at.high = Math.max(at.high, y);
    };
    for (const group of groups) group.x.forEach((x, i) => take(x, group.y[i]));
    if (data.root) take(...data.root);
    return at;
  };
  const around = bounds();
  const home = {
    x: (around.left + around.right) / 2,
    y: (around.low + around.high) / 2,
    half: 0.55 * Math.max(around.right - around.left, around.high - around.low, 1e-9),
  };
  if (data.disk && home.half > 0.6) Object.assign(home, { x: 0, y: 0, half: 1.02 });
  let view = { ...home };
  let side = 0; // of the stage in CSS pixels
  const across = (x) => ((x - view.x) / view.half + 1) * side / 2;
  const down = (y) => (1 - (y - view.y) / view.half) * side / 2;

  // ---- drawing
  const many = groups.reduce((sum, group) => sum + group.x.length, 0);
  const size = () => Math.max(2, Math.min(5, 130 / Math.sqrt(many))) * Math.min(2, Math.sqrt(home.half / view.half));
  const outline = (ctx, shape, x, y, r) => {
    ctx.beginPath();
    if (shape === "circle") ctx.arc(x, y, r, 0, 2 * Math.PI);
    else if (shape === "square") ctx.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
    else {
      const corners = shape === "triangle" ? [[0, -1.15], [1.15, 0.9], [-1.15, 0.9]] : [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]];
      corners.forEach(([dx, dy], k) => ctx[k ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
    }
    ctx.closePath();
  };
  const stamp = (group, r, scale) => { // drawn once, and then copied
    const made = document.createElement("canvas");
    made.width = made.height = Math.ceil(scale * (3 * r + 2));
    const ctx = made.getContext("2d");
    ctx.scale(scale, scale);
    outline(ctx, group.shape, 1.5 * r + 1, 1.5 * r + 1, r);
    ctx.globalAlpha = 0.7;
    ctx.fillStyle = group.colour;
    ctx.fill();
    return made;
  };
  let grid = new Map();
  const draw = () => {
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [base, over]) canvas.width = canvas.height = Math.round(side * scale);
    const ctx = base.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    if (data.disk) {
      ctx.beginPath();
      ctx.arc(across(0), down(0), side / 2 / view.half, 0, 2 * Math.PI);
      ctx.fillStyle = "#fafafa"; ctx.strokeStyle = "#999";
      ctx.fill(); ctx.stroke();
    }
    const r = size();
    grid = new Map();
    groups.forEach((group, g) => {
      if (!group.shown) return;
      const image = stamp(group, r, scale), half = image.width / scale / 2;
      for (let i = 0; i < group.x.length; i++) {
        const x = across(group.x[i]), y = down(group.y[i]);
        if (x < -r || y < -r || x > side + r || y > side + r) continue;
        ctx.drawImage(image, x - half, y - half, 2 * half, 2 * half);
        const cell = Math.floor(x / CELL) * 4096 + Math.floor(y / CELL);
        if (!grid.has(cell)) grid.set(cell, []);
        grid.get(cell).push([g, i, x, y]);
      }
    });
    if (data.root) {
      const [x, y] = [across(data.root[0]), down(data.root[1])];
      ctx.strokeStyle = "#333"; ctx.fillStyle = "#333"; ctx.lineWidth = 1.5;
      ctx.beginPath();
      ctx.moveTo(x - 7, y); ctx.lineTo(x + 7, y); ctx.moveTo(x, y - 7); ctx.lineTo(x, y + 7);
      ctx.stroke();
      ctx.font = "600 12px system-ui, sans-serif";
      ctx.lineWidth = 3; ctx.strokeStyle = "#fff";
      ctx.strokeText("origin", x + 9, y - 6);
      ctx.fillText("origin", x + 9, y - 6);
    }
    mark();
  };

  // ---- the point that is shown
  let chosen = null; // group and row
  const mark = () => {
    const scale = window.devicePixelRatio || 1, ctx = over.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, side, side);
    for (const name of ["group", "row", "x", "y"]) delete stage.dataset[name];
    tip.hidden = !chosen;
    if (!chosen) return;
    const [g, i] = chosen, x = across(groups[g].x[i]), y = down(groups[g].y[i]), r = size() + 2;
    const related = shownLinks(g, i).slice(0, MOST);
    ctx.strokeStyle = "#333"; ctx.lineWidth = 1.2;
    for (const [h, j] of related) {
      ctx.beginPath();
      ctx.moveTo(x, y); ctx.lineTo(across(groups[h].x[j]), down(groups[h].y[j]));
      ctx.stroke();
    }
    for (const [h, j] of [...related, chosen]) {
      outline(ctx, groups[h].shape, across(groups[h].x[j]), down(groups[h].y[j]), r);
      ctx.fillStyle = groups[h].colour; ctx.lineWidth = 2;
      ctx.fill(); ctx.stroke();
    }
    Object.assign(stage.dataset, { group: g, row: i, x, y });
    fill(g, i);
    const wide = tip.offsetWidth, tall = tip.offsetHeight;
    const left = x + 14 + wide > side ? x - 14 - wide : x + 14;
    tip.style.left = `${Math.max(0, Math.min(side - wide, left))}px`;
    tip.style.top = `${Math.max(0, Math.min(side - tall, y - tall / 2))}px`;
  };
  const shownLinks = (g, i) => (links[g].get(i) || []).filter(([h]) => groups[h].shown);
  const fill = (g, i) => {
    const group = groups[g];
    kind.textContent = group.kind + (group.radius ? `, radius ${group.radius[i].toFixed(3)}` : "");
    text.textContent = group.text[i];
    picture.hidden = !group.pictures;
    if (group.pictures) show(group.first + i);
  };
  const decoded = new Map(); // sheet to image
  const show = (n) => {
    const per = sheets.columns * sheets.columns, sheet = Math.floor(n / per), at = n % per;
    const [w, h] = [data.sizes[2 * n], data.sizes[2 * n + 1]], times = (side < 500 ? 88 : 128) / Math.max(w, h);
    picture.width = Math.max(1, Math.round(w * times)); picture.height = Math.max(1, Math.round(h * times));
    picture.dataset.picture = "";
    if (!decoded.has(sheet)) {
      const image = new Image();
      image.src = "data:image/jpeg;base64," + sheets.urls[sheet];
      decoded.set(sheet, image.decode().then(() => image));
    }
    decoded.get(sheet).then((image) => {
      if (!chosen || groups[chosen[0]].first + chosen[1] !== n || !groups[chosen[0]].pictures) return; // gone on by now
      const left = at % sheets.columns * sheets.side, top = Math.floor(at / sheets.columns) * sheets.side;
      picture.getContext("2d").drawImage(image, left, top, w, h, 0, 0, picture.width, picture.height);
      picture.dataset.picture = n;
    });
  };
  const choose = (point, aloud) => {
    if (point === chosen || (point && chosen && point[0] === chosen[0] && point[1] === chosen[1])) return;
    chosen = point;
    mark();
    if (aloud) spoken.textContent = point ? `${kind.textContent}: ${text.textContent}` : "";
  };

  // ---- pointer
  const nearest = (x, y) => {
    let best = null, least = NEAR * NEAR;
    const [column, row] = [Math.floor(x / CELL), Math.floor(y / CELL)];
    for (let a = column - 1; a <= column + 1; a++) {
      for (let b = row - 1; b <= row + 1; b++) {
        for (const [g, i, px, py] of grid.get(a * 4096 + b) || []) {
          const apart = (px - x) ** 2 + (py - y) ** 2;
          if (apart < least) { least = apart; best = [g, i]; }
        }
      }
    }
    return best;
  };
  const zoom = (times, x = side / 2, y = side / 2) => {
    const half = Math.min(home.half, Math.max(home.half / 200, view.half / times));
    const [fx, fy] = [2 * x / side - 1, 1 - 2 * y / side];
    view = { x: view.x + fx * (view.half - half), y: view.y + fy * (view.half - half), half };
    settle();
  };
  const settle = () => { // never beyond what there is
    const room = home.half - view.half;
    view.x = Math.max(home.x - room, Math.min(home.x + room, view.x));
    view.y = Math.max(home.y - room, Math.min(home.y + room, view.y));
    stage.classList.toggle("zoomed", view.half < home.half);
    draw();
  };
  const place = (event) => {
    const box = over.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let held = null; // where a drag began
  over.addEventListener("pointerdown", (event) => {
    held = { at: place(event), view: { ...view } };
    if (event.pointerType !== "mouse") choose(nearest(...held.at), true);
  });
  over.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (held && event.buttons && view.half < home.half && Math.hypot(x - held.at[0], y - held.at[1]) > 4) {
      over.setPointerCapture(event.pointerId);
      view.x = held.view.x - (x - held.at[0]) * 2 * view.half / side;
      view.y = held.view.y + (y - held.at[1]) * 2 * view.half / side;
      settle();
    } else if (event.pointerType === "mouse") choose(nearest(x, y));
  });
  for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, () => { held = null; });
  over.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") choose(null); });
  over.addEventListener("dblclick", (event) => zoom(2, ...place(event)));
  over.addEventListener("wheel", (event) => { // a pinch on a touchpad; plain scrolling scrolls the page
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 100), ...place(event));
  }, { passive: false });
  for (const button of stage.querySelectorAll("[data-zoom]")) {
    const times = { in: 2, out: 0.5, all: 0 }[button.dataset.zoom];
    button.addEventListener("click", () => zoom(times || 1e-9));
  }

  // ---- keyboard
  const every = (visit) => groups.forEach((group, g) => {
    if (group.shown) for (let i = 0; i < group.x.length; i++) visit(g, i, group.x[i], group.y[i]);
  });
  const toward = (dx, dy) => { // the nearest point within 45 degrees of the direction
    const [x, y] = [groups[chosen[0]].x[chosen[1]], groups[chosen[0]].y[chosen[1]]];
    let best = null, least = Infinity;
    every((g, i, px, py) => {
      const along = (px - x) * dx + (py - y) * dy, beside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      const cost = along + 2 * beside;
      if (along > 1e-9 && beside <= along && cost < least) { least = cost; best = [g, i]; }
    });
    return best;
  };
  let hub = null, turn = 0; // whose belongings Enter goes through
  const belonging = () => {
    const of = hub ? [...shownLinks(...hub), hub] : [];
    const last = of[turn];
    if (!last || last[0] !== chosen[0] || last[1] !== chosen[1]) {
      hub = chosen;
      turn = -1;
      return shownLinks(...hub)[++turn];
    }
    return of[++turn % of.length];
  };
  const middle = () => {
    let best = null, least = Infinity;
    every((g, i, x, y) => {
      const apart = (x - view.x) ** 2 + (y - view.y) ** 2;
      if (apart < least) { least = apart; best = [g, i]; }
    });
    return best;
  };
  const inView = () => { // the map follows
    const [x, y] = [groups[chosen[0]].x[chosen[1]], groups[chosen[0]].y[chosen[1]]];
    if (Math.abs(x - view.x) > 0.92 * view.half || Math.abs(y - view.y) > 0.92 * view.half) {
      view.x = x; view.y = y;
      settle();
    }
  };
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  over.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (ways[key]) {
      const next = chosen ? toward(...ways[key]) : middle();
      if (next) choose(next, true);
    } else if (key === "Enter") {
      const next = chosen ? belonging() : middle();
      if (next) choose(next, true);
    } else if (key === "Escape") choose(null, true);
    else if (key === "+" || key === "=") zoomAt(2);
    else if (key === "-") zoomAt(0.5);
    else if (key === "0") zoom(1e-9);
    else return;
    event.preventDefault();
    if (chosen) inView();
  });
  const zoomAt = (times) => {
    if (chosen) zoom(times, across(groups[chosen[0]].x[chosen[1]]), down(groups[chosen[0]].y[chosen[1]]));
    else zoom(times);
  };
  over.addEventListener("blur", () => choose(null));
  for (const box of document.querySelectorAll(".legend input")) {
    box.addEventListener("change", () => {
      groups[box.dataset.group].shown = box.checked;
      chosen = null;
      draw();
    });
    groups[box.dataset.group].shown = box.checked; // a browser may remember boxes over a reload
  }
  new ResizeObserver(() => { side = stage.clientWidth; draw(); }).observe(stage);
  stage.dataset.ready = "";
})();
