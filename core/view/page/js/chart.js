// One metric of all runs, drawn by uPlot.

/// Colours by theme: hues of Okabe and Ito, distinct for the colour-blind, in lightnesses that contrast with the page.
const COLOURS = {
  light: ["#0068a8", "#c4480a", "#00795c", "#a23b7f", "#806000", "#454545"],
  dark: ["#5ab4f0", "#ff9a57", "#38c9a0", "#ee9acb", "#e3c04a", "#d8d8d8"],
};
const DASHES = [[], [8, 4], [2, 3]];

const theme = () => document.documentElement.dataset.theme;
const colour = (run) => COLOURS[theme()][run % 6];
const dash = (run) => DASHES[Math.floor(run / 6) % 3];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// Values of one metric: iterations of all runs, and for each run its values there. Undefined if the run has no value
/// (the line continues), null if the value was not finite (the line breaks).
function align(runs, metric) {
  const all = new Set();
  for (const run of runs) {
    const series = run.series[metric];
    if (series) series.at.forEach((place) => all.add(run.iterations[place]));
  }
  const x = [...all].sort((a, b) => a - b);
  const places = new Map(x.map((iteration, place) => [iteration, place]));
  const y = runs.map((run) => {
    const values = new Array(x.length).fill(undefined);
    const series = run.series[metric];
    if (series) series.at.forEach((place, i) => { values[places.get(run.iterations[place])] = series.values[i]; });
    return values;
  });
  return { x, y };
}

/// Exponential mean of the values so far, each step back counting `weight` times as much; not pulled to 0 at the start.
function smooth(values, weight) {
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/// Returns true if a logarithmic scale shows more: positive values over two decades.
function spansDecades(y) {
  const values = y.flat().filter((value) => typeof value === "number");
  if (!values.length) return false;
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return low > 0 && high / low >= 100;
}

/// Draws into `host`. `look` has weight, log, hidden runs, unit, height and span; `onCursor` gets the place under the cursor, or null.
function drawChart(host, { x, y }, look, onCursor) {
  const raw = look.weight > 0;
  const series = [{}];
  const data = [x];
  y.forEach((values, run) => {
    const show = !look.hidden.has(run);
    const line = { stroke: colour(run), dash: dash(run), show };
    const points = { size: 4, fill: colour(run) };
    // Sparse metrics, such as evaluations, have points at the measured iterations.
    if (values.filter((value) => typeof value === "number").length <= 40) points.show = true;
    if (raw) {
      series.push({ ...line, alpha: 0.25, width: 1, points: { show: false } }, { ...line, width: 1.75, points: { show: false } });
      data.push(values, smooth(values, look.weight));
    } else {
      series.push({ ...line, width: 1.5, points });
      data.push(values);
    }
  });
  const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return new uPlot({
    width: Math.max(120, host.clientWidth),
    height: look.height,
    legend: { show: false },
    cursor: { sync: { key: "iteration" }, points: { size: 6 }, drag: { x: true, y: false } },
    padding: [8, 10, 0, 0],
    scales: { x: { time: false, range: look.span }, y: { distr: look.log ? 3 : 1, range: look.log ? undefined : yRange } },
    axes: [
      { ...axis, size: 24, gap: 2, space: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] },
      { ...axis, size: 54, gap: 4, space: 30, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick, look.unit))) },
    ],
    series,
    hooks: { setCursor: [(self) => onCursor(self, self.cursor.idx)] },
  }, data, host);
}

/// The iterations of all runs, the same axis for all metrics.
function span(runs) {
  const all = runs.flatMap((run) => [run.iterations[0], run.iterations.at(-1)]).filter((iteration) => iteration !== undefined);
  const [low, high] = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

/// A little air above and below, and a band for values that are all the same.
function yRange(_, low, high) {
  if (low === null) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  // Smoothing leaves rounding errors, which are not worth zooming into.
  const air = (high - low > size * 1e-9 ? high - low : size || 1) * 0.06;
  return [low - air, high + air];
}
