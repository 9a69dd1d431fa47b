// All charts have the same horizontal axis, so the pointer in one of them shows the values of all of them there.
"use strict";
const charts = [...document.querySelectorAll(".chart:not([data-empty])")].map((figure) => {
  const series = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const values = [...figure.querySelectorAll(".legend b")];
  const cross = figure.querySelector(".cross");
  const dots = series.map((_, index) => {
    const dot = cross.appendChild(document.createElement("u"));
    dot.className = [...figure.querySelector(`.legend .entry:nth-child(${index + 1}) i`).classList].pop();
    return dot;
  });
  return { drawing: figure.querySelector(".drawing"), series, values, cross, dots, atRest: values.map((b) => b.textContent) };
});

function nearest(positions, position) {
  let low = 0, high = positions.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (positions[middle] < position) low = middle + 1; else high = middle;
  }
  return low > 0 && position - positions[low - 1] < positions[low] - position ? low - 1 : low;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const inWords = (samples) => compact.format(samples).replace("K", "k").replace(/[a-z]$/i, " $&");

function show(position) {
  for (const { drawing, series, values, cross, dots } of charts) {
    cross.hidden = false;
    cross.dataset.samples = inWords((position / 1000) * drawing.dataset.end);
    cross.style.left = `${position / 10}%`;
    series.forEach(([positions, heights, texts], index) => {
      const found = nearest(positions, position);
      values[index].textContent = texts[found];
      dots[index].style.top = `${heights[found] / 10}%`;
      dots[index].style.marginLeft = `${((positions[found] - position) / 1000) * drawing.clientWidth}px`;
    });
  }
}

function rest() {
  for (const { values, cross, atRest } of charts) {
    cross.hidden = true;
    values.forEach((value, index) => { value.textContent = atRest[index]; });
  }
}

for (const { drawing } of charts) {
  const point = (event) => {
    const box = drawing.getBoundingClientRect();
    show(Math.min(1000, Math.max(0, (1000 * (event.clientX - box.left)) / box.width)));
  };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerdown", point);
  drawing.addEventListener("pointerleave", rest);
}
document.documentElement.dataset.ready = "true";
