// The head of the curves: what each run is, how far it is, and how well it did. Values that all runs share are shown once.

const STATES = { running: "▶ running", done: "✓ done", stopped: "■ stopped", failed: "✗ failed", interrupted: "! interrupted" };
const STATE_NOTES = {
  running: "a process holds the run's lock", done: "all iterations are there", stopped: "stopped by a signal, with a checkpoint",
  failed: "ended with an error: see log.txt", interrupted: "ended before its last iteration; no process holds its lock",
};

/// Returns the last value of a metric with its iteration; null if the run has none. The best value would be chosen by its own noise,
/// too: the section "Comparison" shows it beside its bias.
function last(run, metric) {
  const series = run.series[metric];
  const place = series ? series.values.findLastIndex((value) => value !== null) : -1;
  return place < 0 ? null : { value: series.values[place], iteration: run.iterations[series.at[place]] };
}

/// The columns: name, and the text or element of a run; null where the run does not tell.
const COLUMNS = [
  ["state", (run) => h(`span.state-${run.state}`, { title: STATE_NOTES[run.state] }, STATES[run.state])],
  ["last evaluation", (run) => {
    const found = last(run, "eval/success");
    return found && h("span", null, h("b", null, format(found.value, "share")), ` at ${found.iteration}`);
  }],
  ["iterations", (run) => (run.iterations.length || run.planned
    ? `${run.iterations.at(-1) ?? 0}${run.planned ? ` of ${run.planned}` : ""}` : null)],
  ["wall time", (run) => clockOf(run.info.seconds ?? run.axes.seconds.at(-1))],
  ["parameters", (run) => count(run.info.parameters)],
  ["adapters", (run) => count(run.info.adapters)],
  ["environment", (run) => run.info.environment],
  ["estimator", (run) => run.info.estimator],
  ["device", (run) => [run.info.device, run.info.dtype].filter(Boolean).join(", ")],
  ["ranks", (run) => run.info.ranks],
  ["started", (run) => time(run.info.started)],
  ["nestor", (run) => run.info.nestor],
  ["commit", (run) => run.info.commit && String(run.info.commit).slice(0, 10)],
  ["torch", (run) => run.info.torch],
];
/// Shown for every run, even if equal.
const ALWAYS = ["state", "last evaluation", "iterations", "wall time"];

const clockOf = (seconds) => (typeof seconds === "number" ? clock(seconds) : null);
const count = (number) => (typeof number === "number" ? metricPrefix(number) : null);
const time = (text) => { const date = new Date(text); return text && !Number.isNaN(date.getTime()) ? date.toISOString().slice(0, 16).replace("T", " ") + " UTC" : null; };
const plain = (cell) => (cell && cell.textContent !== undefined ? cell.textContent : `${cell ?? ""}`);

function overview(about) {
  const cells = COLUMNS.map(([name, of]) => [name, about.runs.map((run) => { const cell = of(run); return cell === undefined || cell === "" ? null : cell; })])
    .filter(([, values]) => values.some((value) => value !== null));
  const shared = ([name, values]) => about.runs.length === 1 || (!ALWAYS.includes(name) && values.every((value) => plain(value) === plain(values[0])));
  const facts = h("dl.facts", null, cells.filter(shared).map(([name, [value]]) => h("div", null, h("dt", null, name), h("dd", null, value))));
  if (about.runs.length === 1) return [facts];
  const own = cells.filter((cell) => !shared(cell));
  const table = h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Runs" }, h("table.runs", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "run"), own.map(([name]) => h("th", { scope: "col" }, name)))),
    h("tbody", null, about.runs.map((run, place) => h("tr", null, h("th", { scope: "row" }, run.name), own.map(([, values]) => h("td", null, values[place] ?? "–")))))));
  return [facts, table];
}

/// One line for a folded head: how many runs are in which state, and the last evaluations.
function overviewLine(about) {
  const states = Object.keys(STATES).map((state) => [state, about.runs.filter((run) => run.state === state).length]).filter(([, number]) => number);
  const word = states.map(([state, number]) => (about.runs.length === 1 ? state : `${number} ${state}`)).join(", ");
  const all = about.runs.map((run) => last(run, "eval/success")).filter(Boolean).sort((a, b) => a.value - b.value);
  const [low, high] = [all[0], all.at(-1)];
  if (!high) return word;
  const shown = (found) => format(found.value, "share");
  return all.length === 1 ? `${word} · last evaluation ${shown(high)} (iteration ${high.iteration})` : `${word} · last evaluations ${shown(low)} to ${shown(high)}`;
}
