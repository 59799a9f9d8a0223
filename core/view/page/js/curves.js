// The page of charts: its controls, its sections, and the drawing of their cards.

class Curves {
  constructor(about) {
    this.height = 150;
    this.cards = new Map();
    this.sections = new Map();
    this.details = null;
    this.look = { axis: "iteration", mean: hasSeeds(about), weight: 0, hidden: new Set(), chosen: {} };
    this.look.units = () => this.units.filter((unit) => !this.look.hidden.has(unit.name));
    this.look.redraw = (key) => { const card = this.cards.get(key); card.draw(); this.redrawLarge(card); };
    this.zooms = { main: new Zoom((range) => this.showZoom(range)), step: new Zoom((range) => this.showZoom(range)) };
    this.large = new Large();
    this.listen();
    this.setData(about);
    new ResizeObserver(() => this.resize()).observe($("charts"));
  }

  listen() {
    $("find").addEventListener("input", () => this.find());
    $("smooth").addEventListener("input", () => this.smooth());
    $("axis").addEventListener("change", () => this.change({ axis: $("axis").value }));
    $("seeds").addEventListener("change", () => this.change({ mean: $("seeds").value === "mean" }));
    $("unzoom").addEventListener("click", () => Object.values(this.zooms).forEach((zoom) => zoom.set(null)));
  }

  /// Shows these runs: when the page opens, and whenever a served page has read them again.
  setData(about) {
    this.about = about;
    this.grid = [...new Set(about.runs.flatMap((run) => run.iterations))].sort((a, b) => a - b);
    const axes = knownAxes(about.runs);
    if (!axes.includes(this.look.axis)) this.look.axis = "iteration";
    $("axis").replaceChildren(...axes.map((key) => h("option", { value: key, selected: key === this.look.axis }, AXES[key].name)));
    $("overview").open = this.units ? $("overview").open : about.runs.length === 1 || innerWidth > 760;
    $("seeds-field").hidden = !hasSeeds(about);
    $("seeds").value = this.look.mean ? "mean" : "runs";
    $("overview").querySelector("div").replaceChildren(...overview(about));
    $("overview").querySelector("summary").textContent = overviewLine(about);
    showComparison(about.comparison);
    this.setUnits();
    this.buildSections();
  }

  /// Shows newer rows of the same runs.
  async update(about) {
    if (this.details) this.details = await Promise.all(about.runs.map((_, run) => loadDetails(run)));
    this.setData(about);
    if ($("curves").hidden) this.stale = true;
    else this.drawAll();
  }

  setUnits() {
    this.units = unitsOf(this.about, this.look.mean);
    this.whole = span(this.about.runs, this.look.axis);
    const chips = this.units.map((unit) => {
      const rows = unit.runs.map((run) => this.about.runs[run].iterations.length);
      const note = unit.runs.length > 1 ? `mean of n = ${unit.runs.length} seeds` : rows[0] ? plural(rows[0], "row") : "no rows yet";
      const chip = h("button.chip", { type: "button", "aria-pressed": !this.look.hidden.has(unit.name) ? "true" : "false", title: "show or hide" },
        swatch(unit), h("span.name", null, unit.name), h("span.muted", null, note));
      chip.addEventListener("click", () => this.toggle(unit, chip));
      return chip;
    });
    const band = this.units.some((unit) => unit.runs.length > 1) ? [h("span.muted.band-note", null, "band: lowest to highest seed")] : [];
    $("legend").replaceChildren(...chips, ...band);
  }

  buildSections() {
    const details = this.detailSpecs();
    const curve = details.some(({ key }) => key === "warm_start/steps/loss");
    const specs = [...specsOf(this.about, this.look).filter(({ key }) => !curve || key !== "warm_start/loss"), ...details];
    const places = new Map(SECTIONS.map(([title]) => [title, []]));
    for (const spec of specs.sort((a, b) => metricOrder(a.key, b.key))) {
      const quiet = isConstant(this.about.runs, spec.key);
      const own = sectionOf(spec.key);
      const title = quiet && spec.key !== "lr" && !["Results", "Time", "Memory"].includes(own) ? "Never changing" : own;
      let card = this.cards.get(spec.key);
      if (card) card.setSpec(spec);
      else this.cards.set(spec.key, card = new Card(spec, this));
      places.get(title).push(card);
    }
    const hasRows = this.grid.length > 0;
    for (const [title, cards] of places) {
      if (!this.sections.has(title)) this.sections.set(title, new Section(title, opensAtFirst(title, hasRows), (section) => this.opened(section)));
      const section = this.sections.get(title);
      section.setCards(cards);
      const promise = this.promised(title);
      if (!cards.length && promise) section.setPromise(promise);
    }
    const none = hasRows || this.promised("Warm start") ? [] : [h("p.empty", null, "No rows of metrics yet: the run has not finished its first iteration.")];
    const nothing = h("p.empty", { id: "nothing", hidden: true }, "No metric of that name.");
    const wanted = [...none, ...[...this.sections.values()].map((section) => section.element), nothing];
    if (wanted.length !== $("charts").children.length) $("charts").replaceChildren(...wanted);
    this.find();
  }

  /// The line of a section whose block has not been read yet.
  promised(title) {
    const key = { "Optimizer steps": "steps", "Warm start": "warm_start", Distributions: "histograms" }[title];
    const rows = key ? this.about.runs.reduce((sum, run) => sum + run.details[key], 0) : 0;
    return rows ? `${thousands(rows)} ${key === "histograms" ? "iterations" : "steps"}` : "";
  }

  /// Cards of optimizer steps, warm start and histograms, once their blocks are read.
  detailSpecs() {
    if (!this.details) return [];
    const specs = [];
    for (const [kind, group] of [["steps", "steps"], ["warm_start", "warm_start/steps"]]) {
      const tables = this.details.map((details) => details[kind]);
      const names = [...new Set(tables.flatMap((table) => Object.keys(table.series)))].filter((name) => name !== "iteration");
      for (const name of names) {
        const info = this.about.metrics[kind === "steps" ? name : `warm_start/${name}`] || NO_INFO;
        const meaning = kind === "steps" ? `${info.meaning || name}; by optimizer step` : "negative log-prob of the expert's tokens, by warm-start step";
        specs.push({ key: `${group}/${name}`, title: name, axis: "step", table: kind, short: name, info: { ...info, meaning },
          lines: () => this.look.units().map((unit) => lineOf(tables, unit, name, "step")) });
      }
    }
    return [...specs, ...this.heatSpecs()];
  }

  heatSpecs() {
    const units = this.about.runs.map((run, place) => ({ name: run.name, place, hue: (this.units.find((unit) => unit.runs.includes(place)) || { hue: 0 }).hue }))
      .filter(({ place }) => this.details[place].histograms.length);
    if (!units.length) return [];
    return Object.keys(HISTOGRAMS).filter((kind) => units.some(({ place }) => this.details[place].histograms.some((row) => row[kind]))).map((kind) => {
      const key = `histogram/${kind}`;
      const unit = units.find(({ name }) => name === this.look.chosen[key]) || units[0];
      const spec = heatSpec(kind, this.details[unit.place].histograms, this.about.runs[unit.place], unit, this.look.axis);
      const select = units.length < 2 ? null : h("select.pick", { "aria-label": `run of ${spec.title}`, onchange: (event) => {
        this.look.chosen[key] = event.target.value;
        this.buildSections();
        this.drawAll();
      } }, units.map(({ name }) => h("option", { value: name, selected: name === unit.name }, name)));
      return { ...spec, tools: select };
    });
  }

  /// Reads the blocks of a section's cards if needed, and draws them.
  async opened(section) {
    if (!this.details && this.promised(section.title)) await this.readDetails();
    this.drawAll();
  }

  async readDetails() {
    this.details = await Promise.all(this.about.runs.map((_, run) => loadDetails(run)));
    this.buildSections();
  }

  zoomOf(card) {
    return this.zooms[card.spec.axis === "step" ? "step" : "main"];
  }

  /// The parts of the look that charts share.
  lookOf(card) {
    const step = card.spec.axis === "step";
    const axis = step ? "step" : this.look.axis;
    const whole = step ? span(this.details.map((details) => details[card.spec.table]), "step") : this.whole;
    const snap = axis === "iteration" ? (x) => nearest(this.grid, x) : step ? Math.round : (x) => x;
    return { axis, whole, weight: this.look.weight, zoom: this.zoomOf(card), snap };
  }

  /// Draws the cards of open sections, visible ones first, a few at a time so that the page stays responsive.
  drawAll() {
    delete $("charts").dataset.drawn;
    const away = (card) => {
      const { top, bottom } = card.element.getBoundingClientRect();
      return bottom < 0 || top > innerHeight;
    };
    const shown = [...this.sections.values()].filter((section) => section.open).flatMap((section) => section.cards);
    for (const section of this.sections.values()) {
      section.describe();
      if (section.open && !this.details && !this.reading && this.promised(section.title)) {
        this.reading = true;
        this.opened(section);
      }
    }
    const places = new Map(shown.map((card) => [card, away(card)]));
    this.queue = shown.sort((a, b) => places.get(a) - places.get(b));
    clearTimeout(this.timer);
    this.drawNext();
  }

  drawNext() {
    const end = performance.now() + 40;
    while (this.queue.length && performance.now() < end) this.queue.shift().draw();
    if (this.queue.length) this.timer = setTimeout(() => this.drawNext());
    else {
      $("charts").dataset.drawn = "true";
      this.redrawLarge(this.large.card);
    }
  }

  enlarge(card) {
    this.large.open(card);
  }

  redrawLarge(card) {
    this.large.redraw(card);
  }

  showZoom(range) {
    $("unzoom").hidden = !range && Object.values(this.zooms).every((zoom) => !zoom.range);
  }

  /// Another axis, or means instead of runs.
  change(how) {
    Object.assign(this.look, how);
    if (how.axis) this.zooms.main.range = null;
    this.showZoom(null);
    this.setUnits();
    this.buildSections();
    this.drawAll();
  }

  toggle(unit, chip) {
    const hidden = this.look.hidden;
    if (!hidden.delete(unit.name)) hidden.add(unit.name);
    chip.setAttribute("aria-pressed", !hidden.has(unit.name));
    this.buildSections();
    this.drawAll();
  }

  smooth() {
    this.look.weight = Number($("smooth").value);
    $("smoothed").value = this.look.weight;
    delete $("charts").dataset.drawn;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.drawAll());
  }

  /// Shows the metrics that hold all words, and opens their sections while there are words.
  find() {
    const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const section of this.sections.values()) {
      for (const card of section.cards) card.element.hidden = !words.every((word) => card.text.includes(word));
      const found = section.cards.filter((card) => !card.element.hidden).length;
      section.element.hidden = !found && (words.length > 0 || !this.promised(section.title));
      if (words.length && section.before === undefined) section.before = section.open;
      if (words.length && found) section.element.open = true;
      else if (section.before !== undefined) section.element.open = section.before;
      if (!words.length) delete section.before;
    }
    const found = [...this.sections.values()].some((section) => !section.element.hidden);
    if ($("nothing")) $("nothing").hidden = found || !words.length;
    this.resize();
  }

  resize() {
    for (const card of this.cards.values()) card.resize();
  }
}
