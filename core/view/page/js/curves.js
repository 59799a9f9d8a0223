// All metrics as small charts, grouped by the first part of their names.

const GROUPS = ["eval", "episode", "reward", "advantage", "anchor", "loss", "policy", "value", "grad", "lr", "prompt", "response",
  "rollout", "update", "warm_start", "time", "memory"];

const ABOUT_GROUPS = {
  eval: "fixed evaluation tasks", episode: "episodes trained on", advantage: "output of the estimator",
  anchor: "steps taken in the same state", policy: "change of the policy", value: "the critic", time: "seconds of each phase",
  rollout: "playing", update: "training", lr: "learning rate",
};

class Curves {
  constructor(about) {
    this.about = about;
    this.look = { weight: 0, hidden: new Set(), span: span(about.runs), height: 150 };
    this.cards = [];
    this.buildLegend();
    this.buildCards();
    $("find").addEventListener("input", () => this.find());
    $("smooth").addEventListener("input", () => this.smooth());
    new ResizeObserver(() => this.resize()).observe($("charts"));
  }

  buildLegend() {
    const chips = this.about.runs.map((run, place) => {
      const count = run.iterations.length;
      const chip = h("button.chip", { type: "button", "aria-pressed": "true", title: "show or hide this run" },
        h("span.line"), h("span.name", null, run.name), h("span.muted", null, count ? `${plural(count, "row")}` : "no rows yet"));
      chip.addEventListener("click", () => this.toggle(place, chip));
      return chip;
    });
    $("legend").replaceChildren(...chips);
  }

  buildCards() {
    const names = new Set(this.about.runs.flatMap((run) => Object.keys(run.series)));
    const groups = new Map();
    const ordered = [...names].sort((a, b) => groupRank(a.split("/")[0]) - groupRank(b.split("/")[0]) || metricOrder(a, b));
    for (const name of ordered) {
      const group = name.split("/")[0];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(this.card(name));
    }
    const sections = [...groups].map(([group, cards]) => h("section.group", null,
      h("h2", null, group, ABOUT_GROUPS[group] ? h("span.muted", null, ABOUT_GROUPS[group]) : null),
      h("div.grid", null, cards.map((card) => card.element))));
    if (!sections.length) sections.push(h("p.empty", null, "No rows of metrics yet: the run has not finished its first iteration."));
    sections.push(h("p.empty", { id: "nothing", hidden: true }, "No metric of that name."));
    $("charts").replaceChildren(...sections);
  }

  card(name) {
    const info = this.about.metrics[name] || { unit: "", meaning: "", formula: "" };
    const data = align(this.about.runs, name);
    const card = { name, info, data, log: false, plot: h("div.plot"), readings: h("span.readings") };
    const log = spansDecades(data.y)
      ? h("button.small", { type: "button", "aria-pressed": "false", title: "logarithmic scale", onclick: () => {
        card.log = !card.log;
        log.setAttribute("aria-pressed", card.log);
        this.draw(card);
      } }, "log")
      : null;
    const about = [info.meaning, info.formula && `Formula: ${info.formula}`, info.unit && `Unit: ${info.unit}`].filter(Boolean);
    const meaning = info.meaning
      ? h("details.meaning", null, h("summary", { title: about.join("\n") }, info.meaning),
        info.formula ? h("p", null, h("b", null, "Formula "), info.formula) : null,
        info.unit ? h("p", null, h("b", null, "Unit "), info.unit) : null)
      : null;
    card.element = h("figure.card", { "data-metric": name }, h("figcaption", null,
      h("div.title", null, h("span.metric", { title: [name, ...about].join("\n") }, breakable(name)),
        h("span.unit", null, info.unit), log), card.readings), card.plot, meaning);
    card.text = `${name} ${info.meaning}`.toLowerCase();
    card.plot.addEventListener("mousemove", (event) => this.tip(card, event));
    card.plot.addEventListener("mouseleave", hideTip);
    this.cards.push(card);
    return card;
  }

  draw(card) {
    if (card.chart) card.chart.destroy();
    const look = { ...this.look, log: card.log, unit: card.info.unit };
    card.chart = drawChart(card.plot, card.data, look, (_, place) => {
      card.place = place;
      this.showValues(card, place);
    });
    this.showValues(card, null);
  }

  /// Draws all charts, visible ones first, a few at a time so that the page stays responsive.
  drawAll() {
    const chips = $("legend").children;
    this.about.runs.forEach((_, run) => {
      const line = chips[run].querySelector(".line");
      line.style.setProperty("--colour", colour(run));
      line.style.setProperty("--dash", ["solid", "dashed", "dotted"][Math.floor(run / 6) % 3]);
    });
    this.layOut();
    delete $("charts").dataset.drawn;
    const away = (card) => {
      const { top, bottom } = card.element.getBoundingClientRect();
      return bottom < 0 || top > innerHeight;
    };
    const places = new Map(this.cards.map((card) => [card, away(card)]));
    this.queue = [...this.cards].sort((a, b) => places.get(a) - places.get(b));
    clearTimeout(this.timer);
    this.drawNext();
  }

  drawNext() {
    const end = performance.now() + 40;
    while (this.queue.length && performance.now() < end) this.draw(this.queue.shift());
    if (this.queue.length) this.timer = setTimeout(() => this.drawNext());
    else $("charts").dataset.drawn = "true";
  }

  /// Uses as many columns as fit; groups of few metrics are placed side by side.
  layOut() {
    const gap = 12;
    const columns = Math.max(1, Math.floor(($("charts").clientWidth + gap) / (290 + gap)));
    const repeat = (count) => `repeat(${count}, minmax(0, 1fr))`;
    $("charts").style.gridTemplateColumns = repeat(columns);
    for (const group of document.querySelectorAll("#charts .group")) {
      const count = Math.min(columns, group.querySelectorAll("figure:not([hidden])").length);
      group.style.gridColumn = `span ${count || 1}`;
      group.lastChild.style.gridTemplateColumns = repeat(count || 1);
    }
  }

  /// Shows beside the name the values at the cursor, or the last ones.
  showValues(card, place) {
    const shown = this.about.runs.map((_, run) => run).filter((run) => !this.look.hidden.has(run)).slice(0, 4);
    card.readings.replaceChildren(...shown.map((run) => {
      const values = card.data.y[run];
      const value = place === null || place === undefined ? values.findLast((value) => value !== undefined) : values[place];
      return h("span", { "--colour": colour(run) }, format(value, card.info.unit));
    }));
  }

  tip(card, event) {
    if (card.place === null || card.place === undefined) return hideTip();
    const rows = this.about.runs.map((run, place) => {
      if (this.look.hidden.has(place)) return null;
      const values = card.data.y[place];
      const value = values[card.place];
      const text = value === null ? "not finite" : value === undefined ? "no value" : format(value, card.info.unit);
      const mean = this.look.weight > 0 && typeof value === "number"
        ? h("span.muted", null, ` smoothed ${format(smooth(values, this.look.weight)[card.place], card.info.unit)}`) : null;
      return h("div.tip-row", null, h("span.line", { "--colour": colour(place) }), h("span", null, run.name), h("b", null, text, mean));
    }).filter(Boolean);
    showTip(event.clientX, event.clientY, h("div.muted", null, `iteration ${card.data.x[card.place]}`), ...rows);
  }

  toggle(run, chip) {
    const hidden = this.look.hidden;
    if (!hidden.delete(run)) hidden.add(run);
    chip.setAttribute("aria-pressed", !hidden.has(run));
    this.drawAll();
  }

  smooth() {
    this.look.weight = Number($("smooth").value);
    $("smoothed").value = this.look.weight;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.drawAll());
  }

  find() {
    const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const card of this.cards) {
      card.element.hidden = !words.every((word) => card.text.includes(word));
      if (!card.element.hidden) found += 1;
    }
    for (const group of document.querySelectorAll("#charts .group")) {
      group.hidden = !group.querySelector("figure:not([hidden])");
    }
    $("nothing").hidden = found > 0;
    this.resize();
  }

  resize() {
    this.layOut();
    for (const card of this.cards) {
      const width = card.plot.clientWidth;
      if (card.chart && width && width !== card.chart.width) card.chart.setSize({ width, height: this.look.height });
    }
  }
}

/// Splits a name so that it may be broken after its slashes and underscores.
const breakable = (name) => name.split(/(?<=[/_])/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));

function groupRank(group) {
  const rank = GROUPS.indexOf(group);
  return rank < 0 ? GROUPS.length : rank;
}

/// Sorts success before return before the others.
function metricOrder(a, b) {
  const rank = (name) => {
    const [, first, ...rest] = name.split("/");
    return ["success", "return"].indexOf(first) < 0 ? 3 : first === "return" ? 1 : rest.length ? 2 : 0;
  };
  return a.split("/")[0].localeCompare(b.split("/")[0]) || rank(a) - rank(b)
    || a.localeCompare(b, "en", { numeric: true });
}
