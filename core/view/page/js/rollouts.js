// The episodes of one file, of training or of an evaluation: the list with filters, and the open episode.

const SORTS = {
  order: ["as played", (episode) => episode.row],
  "return-down": ["highest return", (episode) => -(episode.return ?? -Infinity)],
  "return-up": ["lowest return", (episode) => episode.return ?? Infinity],
  longest: ["longest", (episode) => -episode.turns],
  shortest: ["shortest", (episode) => episode.turns],
  tokens: ["most tokens", (episode) => -episode.tokens],
};

class Rollouts {
  constructor(index) {
    this.shown = [];
    this.setData(index);
    this.build();
  }

  /// Takes a new index. The open episode stays.
  setData(index) {
    this.index = index;
    this.files = index.rollouts.map((files) => new Map(files.map((file) => [fileKey(file), file])));
    if (!this.at) return;
    const all = this.iterations(this.at.run, isEvaluation(this.at.file));
    if (all.length) this.chooseIteration(all);
  }

  build() {
    const runs = this.index.about.runs;
    const option = (value, text) => h("option", { value }, text);
    const input = (properties) => h("input", { autocomplete: "off", oninput: () => this.list(), ...properties });
    this.run = h("select", { id: "run", onchange: () => go(this.iterationLink(Number(this.run.value), null, isEvaluation(this.at.file))) }, runs.map((run, place) => option(place, run.name)));
    this.kind = h("select", { id: "kind", onchange: () => go(this.iterationLink(this.at.run, null, this.kind.value === "evaluation")) },
      option("training", "training"), option("evaluation", "evaluation"));
    this.iteration = h("select", { id: "iteration", onchange: () => go(this.iterationLink(this.at.run, this.iteration.value)) });
    this.outcome = h("select", { id: "outcome", onchange: () => this.list() }, option("", "all"),
      option("won", "won"), option("lost", "lost"), option("failed", "failed"));
    this.type = h("select", { id: "type", onchange: () => this.list() });
    this.low = input({ id: "low", type: "number", step: "any", placeholder: "from", "aria-label": "return from" });
    this.high = input({ id: "high", type: "number", step: "any", placeholder: "to", "aria-label": "return to" });
    this.words = input({ id: "words", type: "search", placeholder: "text in prompts, responses, actions" });
    this.sort = h("select", { id: "sort", onchange: () => this.list() }, Object.entries(SORTS).map(([key, [text]]) => option(key, text)));
    this.only = h("input", { id: "only", type: "checkbox", onchange: () => this.list() });
    this.rows = h("div.episodes", { id: "episodes", role: "list" });
    this.count = h("p.muted", { id: "count", "aria-live": "polite" });
    this.note = h("p.notice", { id: "left-out", hidden: true });
    const field = (text, ...content) => h("label.field", null, h("span", null, text), content);
    const step = (by, text, title) => h("button.button", { type: "button", title, onclick: () => this.stepIteration(by) }, text);
    $("list-pane").replaceChildren(
      h("div.row", null, field("Run", this.run), field("Episodes of", this.kind)),
      h("div.row", null, field("Iteration", this.iteration), step(-1, "‹", "previous iteration"), step(1, "›", "next iteration")),
      h("div.filters", null, field("Outcome", this.outcome), field("Task type", this.type),
        h("div.field", null, h("span", null, "Return"), h("div.range", null, this.low, "–", this.high)),
        field("Sort", this.sort), h("div.wide", null, field("Search", this.words)),
        h("label.check.wide", null, this.only, "only episodes with turns in the page")),
      this.count, this.note, this.rows);
  }

  /// Returns the files of a run's training or evaluation episodes, the oldest first.
  iterations(run, evaluation) {
    const files = [...this.files[run].values()].filter((file) => file.evaluation === evaluation);
    return files.sort((a, b) => a.iteration - b.iteration).map(fileKey);
  }

  /// Returns a file that the run has: this one, or its newest of the kind, or its newest of the other kind.
  existing(run, file, evaluation = isEvaluation(file)) {
    if (this.files[run].has(file)) return file;
    return this.iterations(run, evaluation).at(-1) ?? this.iterations(run, !evaluation).at(-1);
  }

  iterationLink(run, file, evaluation) {
    const known = this.existing(run, file, evaluation);
    return known === undefined ? `#/rollouts/${run}` : `#/rollouts/${run}/${known}`;
  }

  /// The address of an episode, with another one beside it if there is one: `0+3`.
  link(episode, turn, beside) {
    const both = beside ? `${episode.episode}+${beside.episode}` : episode.episode;
    const base = `#/rollouts/${this.at.run}/${this.at.file}/${episode.group}/${both}`;
    return turn ? `${base}/${turn + 1}` : base;
  }

  stepIteration(by) {
    const all = this.iterations(this.at.run, isEvaluation(this.at.file));
    const next = all[all.indexOf(this.at.file) + by];
    if (next !== undefined) go(this.iterationLink(this.at.run, next));
  }

  /// Shows the address: run, file, group, episode, turn, of which the later ones may be missing.
  async open([run = 0, file, group, episode, turn]) {
    run = this.files[run] ? Number(run) : 0;
    file = this.existing(run, file);
    const changed = !this.at || this.at.run !== run || this.at.file !== file;
    const at = { run, file };
    this.at = at;
    this.run.value = run;
    if (changed) {
      this.summary = file === undefined ? [] : await loadSummary(run, file);
      if (this.at !== at) return;
      this.chooseIteration(this.iterations(run, isEvaluation(file)));
      await this.list();
    }
    if (this.at !== at) return;
    const [first, second] = (episode || "").split("+");
    const find = (name) => this.summary.find((one) => one.group === Number(group) && one.episode === Number(name)) || null;
    const chosen = group === undefined ? null : find(first);
    await this.show(chosen, chosen && second !== undefined ? find(second) : null, turn === undefined ? 0 : Number(turn) - 1, at);
  }

  chooseIteration(all) {
    const { run, file } = this.at;
    this.kind.value = isEvaluation(file) ? "evaluation" : "training";
    for (const option of this.kind.options) option.disabled = !this.iterations(run, option.value === "evaluation").length;
    this.iteration.replaceChildren(...[...all].reverse().map((key) => {
      const { iteration, episodes, won, kept } = this.files[run].get(key);
      const none = Object.keys(kept).length ? "" : " · no turns";
      return h("option", { value: key }, `${iteration} · ${Math.round((100 * won) / Math.max(1, episodes))}% of ${episodes} won${none}`);
    }));
    this.iteration.value = file;
    const types = [...new Set(this.summary.map((episode) => episode.type).filter((type) => type !== null))].sort();
    const before = this.type.value;
    this.type.replaceChildren(h("option", { value: "" }, "all"), ...types.map((type) => h("option", { value: type }, type)));
    this.type.value = types.includes(before) ? before : "";
    this.type.disabled = !types.length;
    this.say();
  }

  file() {
    return this.files[this.at.run].get(this.at.file);
  }

  /// Explains which turns of this iteration are not in the page, and how to get them.
  say() {
    const file = this.file();
    this.note.hidden = true;
    if (!file) return;
    const kept = Object.values(file.kept).reduce((sum, count) => sum + count, 0);
    const parts = [];
    if (kept < file.episodes) {
      parts.push(kept ? `Turns of ${kept} of ${file.episodes} episodes are in the page. ` : "No turns of this iteration are in the page. ", this.howToGet());
    }
    if (file.damaged) parts.push(` ${plural(file.damaged, "line")} of this iteration's file could not be read (damaged, cut, or being written).`);
    this.note.replaceChildren(...parts);
    this.note.hidden = !parts.length;
  }

  howToGet() {
    const { iteration } = this.file();
    return h("span", null, "For more, make the page with a larger ", h("code", null, "--max-mib"), ` (now ${this.index.max_mib}) or with `,
      h("code", null, `--iterations ${iteration}..${iteration}`), ".");
  }

  async list() {
    const { run, file } = this.at;
    const wanted = (episode) => {
      const inRange = (this.low.value === "" || episode.return >= Number(this.low.value))
        && (this.high.value === "" || episode.return <= Number(this.high.value));
      return inRange && (!this.outcome.value || outcomeOf(episode) === this.outcome.value)
        && (!this.type.value || episode.type === this.type.value) && (!this.only.checked || this.has(episode));
    };
    let episodes = this.summary.filter(wanted);
    const words = this.words.value.trim().toLowerCase();
    if (words) {
      const rows = await this.search(words);
      if (this.words.value.trim().toLowerCase() !== words || this.at.run !== run || this.at.file !== file) return;
      episodes = episodes.filter((episode) => rows.has(episode.row));
    }
    const key = SORTS[this.sort.value][1];
    this.shown = episodes.sort((a, b) => key(a) - key(b) || a.row - b.row);
    this.rows.replaceChildren(...this.shown.map((episode) => this.row(episode)));
    const all = this.summary.length;
    this.count.textContent = !all ? "No episodes: the run has written no rollouts yet (checkpoint.rollouts_every)."
      : `${this.shown.length} of ${plural(all, "episode")}${words ? " (search looks at those with turns in the page)" : ""}`;
    this.mark();
  }

  has(episode) {
    return this.groupKept(episode.group) > 0 && (this.groupKept(episode.group) === this.siblings(episode).length || this.keptFirst(episode));
  }

  groupKept(group) {
    return this.file().kept[group] || 0;
  }

  siblings(episode) {
    return this.summary.filter((other) => other.group === episode.group);
  }

  /// If a group is not kept whole, its first episodes are.
  keptFirst(episode) {
    return this.siblings(episode).indexOf(episode) < this.groupKept(episode.group);
  }

  row(episode) {
    const left = !this.has(episode);
    return h(`a.episode${left ? ".left-out" : ""}`, {
      href: this.link(episode, 0), role: "listitem", "data-row": episode.row,
      title: left ? "its turns are not in the page" : null,
    },
    h(`span.mark.${outcomeOf(episode)}`, { title: outcomeOf(episode) }, markOf(episode)),
    h("span.name", null, `${episode.group}·${episode.episode}`),
    h("span.type", null, [episode.type === null ? `task ${episode.task}` : episode.type, sampleOf(episode)].filter(Boolean).join(" · ")),
    h("span.number", { title: "return" }, format(episode.return)),
    h("span.number.muted", { title: "turns" }, plural(episode.turns, "turn")));
  }

  /// Returns the rows of the iteration's episodes that contain the words.
  async search(words) {
    const { run, file } = this.at;
    const rows = new Set();
    for (const group of Object.keys(this.file().kept)) {
      const block = await loadGroup(run, file, group);
      for (const [row, { turns }] of block || []) {
        const holds = (turn) => [turn.prompt.join(""), turn.response, turn.action || ""].some((text) => text.toLowerCase().includes(words));
        if (turns.some(holds)) rows.add(row);
      }
    }
    return rows;
  }

  async show(episode, beside, turn, at) {
    const same = episode && this.current && this.current.episode === episode && this.current.beside === beside;
    $("rollouts").classList.toggle("reading", episode !== null);
    if (!episode) {
      this.current = null;
      $("episode-pane").replaceChildren(h("p.empty", null, this.summary.length ? "Choose an episode to read its turns." : ""));
    } else if (!same) {
      const group = await loadGroup(at.run, at.file, episode.group);
      if (this.at !== at) return;
      this.current = { episode, beside, turn: 0, turns: this.turnsOf(group, [episode, beside]) };
      $("episode-pane").replaceChildren(...episodeView(this.viewOf(episode, beside, group, at)).filter(Boolean));
    }
    this.mark();
    if (episode) this.goTurn(turn, same);
  }

  viewOf(episode, beside, group, at) {
    const place = this.shown.indexOf(episode);
    const link = (other) => (other ? this.link(other, 0) : null);
    return {
      run: at.run, episode, beside, group, siblings: this.siblings(episode), link: (other, number) => this.link(other, number, other === episode ? beside : null),
      pairLink: (other) => this.link(episode, 0, other), evaluation: isEvaluation(at.file),
      previous: link(this.shown[place - 1]), next: place < 0 ? null : link(this.shown[place + 1]),
      list: this.iterationLink(at.run, at.file), howToGet: this.howToGet(),
    };
  }

  /// Returns the number of turns of the longer of two episodes.
  turnsOf(group, episodes) {
    const counts = episodes.map((episode) => (episode && group && group.get(episode.row) ? group.get(episode.row).turns.length : 0));
    return Math.max(...counts);
  }

  mark() {
    for (const row of this.rows.children) {
      const open = this.current && row.dataset.row === String(this.current.episode.row);
      if (open) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
      if (open) row.scrollIntoView({ block: "nearest" });
    }
  }

  goTurn(turn, same) {
    this.current.turn = Math.max(0, Math.min(turn, this.current.turns - 1));
    document.querySelectorAll(".turn.open").forEach((element) => element.classList.remove("open"));
    const element = $(`turn-${this.current.turn}`);
    if (element) element.classList.add("open");
    if (turn > 0 && element) element.scrollIntoView({ block: "start" });
    else if (!same || turn === 0) $("episode-pane").scrollIntoView({ block: "start" });
  }

  /// Handles the arrow keys.
  key(name) {
    if (!this.current) return false;
    const place = this.shown.indexOf(this.current.episode);
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[name];
    const along = { ArrowUp: -1, ArrowDown: 1 }[name];
    const turn = this.current.turn + (along || 0);
    if (sideways && this.shown[place + sideways]) go(this.link(this.shown[place + sideways], 0));
    else if (along && turn >= 0 && turn < this.current.turns) go(this.link(this.current.episode, turn, this.current.beside));
    else return false;
    return true;
  }
}

/// Names a file of episodes as in addresses and blocks.
const fileKey = ({ iteration, evaluation }) => `${evaluation ? "e" : ""}${iteration}`;

const isEvaluation = (file) => typeof file === "string" && file.startsWith("e");
