// Charts in sections that fold. Time, memory and metrics that never change are folded at first; a folded section shows the
// last values in one line.

/// By title: the first parts of metric names, and where the section is open at first ("always", "wide" windows, "never").
const SECTIONS = [
  ["Results", ["success", "eval", "episode"], "always"],
  ["Environment", ["env"], "wide"],
  ["Advantages", ["reward", "advantage", "anchor", "estimator"], "wide"],
  ["Distributions", ["histogram"], "wide"],
  ["Update", ["loss", "policy", "value", "grad", "lr"], "wide"],
  ["Generation and speed", ["prompt", "response", "rollout", "update", "perf", "tokens"], "wide"],
  ["Other", [], "wide"],
  ["Optimizer steps", ["steps"], "never"],
  ["Warm start", ["warm_start"], "never"],
  ["Time", ["time"], "never"],
  ["Memory", ["memory"], "never"],
  ["Never changing", ["constant"], "never"],
];
const TOTALS = ["episode/total", "tokens/total"];

const sectionOf = (name) => (SECTIONS.find(([, groups]) => groups.includes(name.split("/")[0])) || SECTIONS.find(([title]) => title === "Other"))[0];

class Section {
  /// `onOpen` is called when the section opens; it may load its cards.
  constructor(title, open, onOpen) {
    this.title = title;
    this.cards = [];
    this.line = h("span.muted.last", null, "");
    this.grid = h("div.grid");
    this.element = h("details.group", { "data-section": title, open },
      h("summary", null, h("h2", null, title), this.line), this.grid);
    this.element.addEventListener("toggle", () => { if (this.element.open) onOpen(this); this.describe(); });
  }

  setCards(cards) {
    const same = cards.length === this.cards.length && cards.every((card, place) => card === this.cards[place]);
    this.cards = cards;
    if (!same) this.grid.replaceChildren(...cards.map((card) => card.element));
    this.element.hidden = !cards.length;
    this.describe();
  }

  /// Text for a section whose cards are not read yet.
  setPromise(text) {
    this.promise = text;
    this.element.hidden = false;
    this.describe();
  }

  describe() {
    const shown = this.cards.slice(0, 12).map((card) => card.summary(this.title === "Never changing"));
    this.line.textContent = this.element.open ? "" : shown.join(" · ") || this.promise || "";
  }

  get open() {
    return this.element.open;
  }
}

/// Returns true if a section is open when the page opens.
function opensAtFirst(title, hasRows) {
  const rule = SECTIONS.find(([name]) => name === title)[2];
  if (!hasRows && title === "Warm start") return true;
  return rule === "always" || (rule === "wide" && innerWidth > 760);
}

/// Sorts success before return before the others.
function metricOrder(a, b) {
  const groups = SECTIONS.flatMap(([, names]) => names);
  const rank = (name) => {
    const [group, first, ...rest] = name.split("/");
    const inner = TOTALS.includes(name) ? 9 : ["success", "return"].indexOf(first) < 0 ? 3 : first === "return" ? 2 : rest.length ? 1 : 0;
    return 10 * groups.indexOf(group) + (name === "time/iteration_s" ? 0 : inner);
  };
  return rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true });
}
