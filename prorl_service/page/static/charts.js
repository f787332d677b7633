// Charts: lines over time or versions (uPlot), and histograms whose bars can be clicked.
import { html, useEffect, useLayoutEffect, useRef } from "./vendor/htm-preact.js";
import { clock } from "./ui.js";

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4"];
const HEIGHT = 150;

const WHOLE = [1, 2, 5].flatMap((one) => [0, 1, 2, 3, 4, 5].map((zeros) => one * 10 ** zeros)).sort((a, b) => a - b);

// At least the last minute: one sample alone has no width.
const aMinute = (_, low, high) => {
  const right = high ?? Date.now() / 1000;
  return [Math.min(low ?? right, right - 60), right];
};

const withZero = (_, low, high) => {
  const bottom = Math.min(0, low ?? 0);
  return [bottom * 1.05, Math.max(0, high ?? 1) * 1.05 || (bottom < 0 ? 0 : 1)];
};

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function options(title, names, isTime, width, format) {
  const axis = { stroke: css("--soft"), grid: { stroke: css("--edge"), width: 1 }, ticks: { show: false } };
  const series = names.map((name, at) => ({
    label: name, stroke: css(COLOURS[at]), width: 1.5, spanGaps: !isTime, points: { show: !isTime, size: 5 },
    value: (_, value) => (value === null || value === undefined ? "–" : format(value)),
  }));
  return {
    title, width, height: HEIGHT, cursor: { y: false }, legend: { show: names.length > 1 },
    scales: { x: { time: isTime, range: isTime ? aMinute : null }, y: { range: withZero } },
    axes: [{ ...axis, space: isTime ? 70 : 40, size: 24, incrs: isTime ? undefined : WHOLE, values: (_, ticks) => ticks.map((at) => (isTime ? clock(at) : at)) }, { ...axis, size: 48, values: (_, ticks) => ticks.map(format) }],
    series: [{ label: isTime ? "at" : "version", value: (_, at) => (at === null ? "–" : isTime ? clock(at) : at) }, ...series],
  };
}

function short(value) {
  const rounded = +value.toPrecision(3);
  return rounded !== 0 && Math.abs(rounded) < 1e-3 ? rounded.toExponential() : String(rounded);
}

// `data`: the values of x, then those of each line; null where there is none: a gap in time.
export function Lines({ title, names, data, isTime = true, format = short }) {
  const place = useRef(null);
  const plot = useRef(null);
  useLayoutEffect(() => {
    const element = place.current;
    plot.current = new uPlot(options(title, names, isTime, element.clientWidth, format), data, element);
    const resized = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      plot.current.destroy();
    };
  }, [title, names.join()]);
  useEffect(() => plot.current.setData(data));
  return html`<div class="chart" ref=${place}></div>`;
}

const BINS = 10;

// Rewards in bins of equal width between the least and the greatest, at least [0, 1]. `choose` takes
// the bounds of the clicked bin, or null for the one that is chosen already.
export function Histogram({ values, chosen, choose }) {
  if (values.length === 0) return html`<p class="soft">no rewards yet</p>`;
  const low = Math.min(0, ...values);
  const high = Math.max(1, ...values);
  const width = (high - low) / BINS;
  const counts = Array(BINS).fill(0);
  for (const value of values) counts[Math.min(BINS - 1, Math.floor((value - low) / width))] += 1;
  const most = Math.max(...counts);
  return html`<div class="histogram" role="group" aria-label="Rewards">
    ${counts.map((n, at) => {
      const bounds = [low + at * width, low + (at + 1) * width].map((one) => +one.toFixed(6));
      const isChosen = chosen !== null && chosen[0] === bounds[0] && chosen[1] === bounds[1];
      return html`<button type="button" class=${isChosen ? "current" : ""} disabled=${n === 0 && !isChosen}
        title="${n} with a mean reward of ${bounds[0]} to ${bounds[1]}" onClick=${() => choose(isChosen ? null : bounds)}>
        <span class="soft">${n || ""}</span><i style=${{ height: `${most ? Math.ceil((60 * n) / most) : 0}px` }}></i>
        <span class="soft">${bounds[0]}</span></button>`;
    })}
  </div>`;
}
