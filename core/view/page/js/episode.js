// One episode: its turns, the policy's responses, and their outcomes.

const PART_NAMES = { episode_advantage: "episode", step_advantage: "step", step_return: "step return" };
/// Nats of surprise at full colour.
const FULL = 5;

/// Groups the steps of a group by the state in which they were taken.
function anchorGroups(group) {
  const groups = new Map();
  for (const { turns } of group.values()) {
    for (const turn of turns) {
      if (turn.anchorKey === null) continue;
      if (!groups.has(turn.anchorKey)) groups.set(turn.anchorKey, []);
      groups.get(turn.anchorKey).push(turn);
    }
  }
  return groups;
}

/// Draws an episode. `view` has its summary (`episode`), `group` (turns by row), `siblings` (summaries), `link` (makes
/// the link of an episode and a turn), `previous` and `next` (links or null) and `list` (a link).
function episodeView(view) {
  const { episode, group, siblings } = view;
  const data = group && group.get(episode.row);
  const button = (href, text, title) => (href ? h("a.button", { href, title }, text) : h("span.button.off", { "aria-hidden": "true" }, text));
  const head = h("header.episode-head", null,
    h("div.row", null,
      h("a.button.back", { href: view.list }, "‹", h("span.word", null, " Episodes")),
      h("h2", null, view.evaluation ? `Task ${episode.task}` : `Group ${episode.group}`, h("span.muted", null, " · "),
        sampleOf(episode) || `episode ${episode.episode}`),
      h("span.push"), h("span.steps", null, button(view.previous, "←", "previous episode (left arrow)"), button(view.next, "→", "next episode (right arrow)"))),
    view.beside ? null : facts(episode, data),
    siblingStrip(view, siblings));
  if (!data) return [head, h("p.notice", null, "The turns of this episode are not in the page. ", view.howToGet)];

  if (view.beside) return [head, ...pairView(view)];

  const scale = scales(group);
  const anchors = anchorGroups(group);
  const missing = siblings.filter((sibling) => !group.has(sibling.row)).length;
  const strip = advantageStrip(view, data.turns, scale);
  const turns = data.turns.map((turn, place) =>
    turnView({ ...view, scale, anchors, missing }, turn, place ? data.turns[place - 1] : null));
  return [head, strip, ...turns, h("p.muted.keys", null, "Keys: ← → episodes, ↑ ↓ turns")];
}

function facts(episode, data) {
  const fact = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  return h("dl.facts", null,
    h("div", null, h("dt", null, "outcome"), h("dd", null, outcome(episode))),
    episode.failure === null ? null : fact("failure", episode.failure),
    fact("return", format(episode.return)),
    fact("turns", `${episode.turns}`),
    fact("tokens", thousands(episode.tokens)),
    episode.invalid ? fact("invalid", `${episode.invalid}`) : null,
    episode.type === null ? null : fact("task type", episode.type),
    fact("task", episode.task),
    data ? fact("seed", data.seed) : null);
}

const outcome = (episode) => h(`span.${outcomeOf(episode)}`, null, `${markOf(episode)} ${outcomeOf(episode)}`);

/// Names the play of an evaluation task that is played several times.
const sampleOf = (episode) => (typeof episode.sample === "number" ? `sample ${episode.sample + 1}` : "");

/// The group's episodes, which the estimator compares with each other, or the samples of an evaluation task.
function siblingStrip(view, siblings) {
  if (siblings.length < 2) return null;
  const name = (sibling) => sampleOf(sibling) || `episode ${sibling.episode}`;
  const chips = siblings.map((sibling) => h(
    `a.sibling.${outcomeOf(sibling)}`,
    {
      href: view.link(sibling, 0),
      title: `${name(sibling)}: ${outcomeOf(sibling)}, return ${format(sibling.return)}`,
      "aria-current": sibling.row === view.episode.row ? "true" : null,
    }, `${markOf(sibling)} ${format(sibling.return)}`));
  const others = siblings.filter((sibling) => sibling !== view.episode);
  const pick = h("select.pick", { "aria-label": "episode beside this one", onchange: (event) => {
    go(view.pairLink(others.find((sibling) => String(sibling.row) === event.target.value) || null));
  } }, h("option", { value: "" }, view.beside ? "this one alone" : "beside another …"),
  others.map((sibling) => h("option", { value: sibling.row, selected: sibling === view.beside },
    `${markOf(sibling)} ${name(sibling)}, ${format(sibling.return)}`)));
  return h("div.siblings", null, h("span.muted", null, view.evaluation ? "samples" : "group"), chips, pick);
}

/// Returns the largest size of each number over the group, so that bars of siblings compare.
function scales(group) {
  const largest = {};
  const note = (name, value) => { largest[name] = Math.max(largest[name] || 0, Math.abs(value || 0)); };
  for (const { turns } of group.values()) {
    for (const turn of turns) {
      note("advantage", turn.advantage);
      for (const [name, value] of Object.entries(turn.parts)) note(name.endsWith("advantage") ? "advantage" : name, value);
    }
  }
  return (name) => largest[name.endsWith("advantage") ? "advantage" : name] || 1;
}

function advantageStrip(view, turns, scale) {
  if (!turns.some((turn) => typeof turn.advantage === "number")) return null;
  return h("figure.strip", null, h("figcaption", null, "Advantage by turn"),
    h("div.strip-bars", null, turns.map((turn) => h("a", {
      href: view.link(view.episode, turn.place),
      title: `turn ${turn.place + 1}: ${signed(turn.advantage)}`,
      "aria-label": `turn ${turn.place + 1}, advantage ${signed(turn.advantage)}`,
    }, h(`span.${turn.advantage < 0 ? "down" : "up"}`, { "--size": Math.abs(turn.advantage || 0) / scale("advantage") })))));
}

/// A turn. In a pair, `id` begins the ids of its side.
function turnView(view, turn, previous, id = "turn") {
  const fresh = previous ? changes(previous, turn).filter((run) => run.fresh).reduce((sum, run) => sum + run.text.length, 0) : 0;
  const size = turn.prompt.reduce((sum, piece) => sum + piece.length, 0);
  return h("article.turn", { id: `${id}-${turn.place}`, tabindex: "-1", "aria-label": `turn ${turn.place + 1}` },
    h("header", null,
      h("h3", null, h("a", { href: view.link(view.episode, turn.place) }, `Turn ${turn.place + 1}`)),
      turn.valid === false ? h("span.badge.bad", null, "✗ not valid") : turn.valid ? h("span.badge", null, "valid") : null,
      turn.reward ? h("span.badge.strong", null, `reward ${signed(turn.reward)}`) : h("span.badge", null, `reward ${format(turn.reward)}`),
      turn.terminated ? h("span.badge", null, "ended") : null,
      turn.truncated ? h("span.badge", null, "cut by a limit") : null),
    h("div.columns", null,
      h("div.words", null,
        imagesView(view, turn),
        labelled("Prompt", `${thousands(size)} characters${previous ? `, ${fresh ? `${thousands(fresh)} new` : "none new"}` : ""}`,
          promptText(previous, turn)),
        responseView(turn),
        actionsView(turn)),
      h("aside.numbers", null, numbersView(view, turn), anchorView(view, turn))));
}

const labelled = (title, note, content) => h("section.part", null,
  h("h4", null, title, h("span.muted", null, note)), content);

/// The images of a turn's observation.
function imagesView(view, turn) {
  const count = turn.images.length;
  if (!count) return null;
  const frames = turn.images.map((key, place) => {
    const frame = h("div.image");
    const put = (data) => frame.replaceChildren(data === null
      ? h("p.notice", null, "This image is not in the page. ", view.howToGet.cloneNode(true))
      : imageElement(data, `image ${place + 1} of turn ${turn.place + 1}`));
    const data = loadImage(view.run, key);
    if (data instanceof Promise) data.then(put, () => put(null));
    else put(data);
    return frame;
  });
  return labelled(count === 1 ? "Image" : "Images", count === 1 ? "of the observation" : `${count} of the observation`,
    h("div.images", null, frames));
}

/// Images are at most this high and wide, in pixels of the page. A smaller one is enlarged by a whole factor.
const IMAGE_HEIGHT = 240;
const IMAGE_WIDTH = 480;

function imageElement(data, name) {
  // Width and height are at the bytes 16 to 23 of a PNG file.
  const header = Uint8Array.from(atob(data.slice(0, 32)), (char) => char.charCodeAt(0));
  const [width, height] = [16, 20].map((place) => new DataView(header.buffer).getUint32(place));
  const room = Math.min(IMAGE_HEIGHT / height, IMAGE_WIDTH / width);
  const factor = room >= 1 ? Math.floor(room) : room;
  const size = (share) => ({ width: Math.max(1, Math.round(width * share)), height: Math.max(1, Math.round(height * share)) });
  const title = `${name}, ${width} × ${height} pixels`;
  const image = h(`img${factor > 1 ? ".pixels" : ""}`, { src: `data:image/png;base64,${data}`, alt: title, title, ...size(factor) });
  if (factor >= 1) return image;
  const button = h("button.enlarge", { type: "button", title: `${title}; enlarge`, onclick: () => {
    const whole = button.classList.toggle("whole");
    for (const [side, length] of Object.entries(size(whole ? 1 : factor))) image.setAttribute(side, length);
  } }, image);
  return button;
}

/// Colours each token by how much it surprised the policy that sampled it.
function responseView(turn) {
  const note = plural(turn.response_tokens, "token");
  if (!turn.tokens || !turn.logprobs) return labelled("Response", note, h("pre.text.response", null, turn.response));
  const tokens = turn.tokens.map((token, place) => {
    const value = turn.logprobs[place];
    return h("span.token", { "--share": share(value), "data-logprob": value === null || value === undefined ? "none" : value.toFixed(4) }, token);
  });
  const sum = turn.logprobs.reduce((sum, value) => sum + (value || 0), 0);
  // Tokens may lack characters of the response, if their pieces are cut within a character.
  const joined = turn.tokens.join("");
  const plain = joined.startsWith(turn.response) ? null : h("pre.text.response", null, turn.response);
  return labelled("Response", `${note}, log-prob ${signed(sum)}`, [h("pre.text.response.coloured", null, tokens), plain, legend()]);
}

const share = (value) => (typeof value === "number" ? Math.min(1, Math.sqrt(-Math.min(value, 0) / FULL)).toFixed(3) : "0");

function legend() {
  return h("div.token-legend", { "aria-label": "colours of log-probs" }, h("span", null, "log-prob"),
    [0, -0.1, -0.5, -1, -2, -FULL].map((value) => h("span.token", { "--share": share(value) },
      value === -FULL ? `≤ −${FULL}` : signed(value))));
}

// An entry such as `search[<your query>]` describes every action with some text in place of the brackets.
function describes(entry, action) {
  const [, before, after] = entry.match(/^([^<]*)<[^>]*>(.*)$/s) ?? [];
  return before !== undefined && action !== null && action.length > before.length + after.length
    && action.startsWith(before) && action.endsWith(after);
}

function actionsView(turn) {
  if (turn.admissible === null) {
    return turn.action === null ? null : labelled("Action", "", h("div.actions", null, h("span.action.chosen", null, turn.action)));
  }
  const fits = turn.admissible.find((entry) => entry === turn.action) ?? turn.admissible.find((entry) => describes(entry, turn.action));
  const known = fits !== undefined;
  const chips = turn.admissible.map((entry) => (entry === fits
    ? h("span.action.chosen", { "aria-label": `${turn.action}, chosen` }, `✓ ${turn.action}`)
    : h("span.action", null, entry)));
  const note = `${turn.admissible.length} admissible`;
  const odd = known || turn.action === null ? null
    : h("p.odd", null, "Sent, but not admissible: ", h("span.action.chosen.bad", null, turn.action || "(nothing)"));
  return labelled("Actions", note, [odd, h("div.actions", null, chips)]);
}

function numbersView(view, turn) {
  const bar = (name, value) => [h("dt", null, name), h(`dd.bar.${value < 0 ? "down" : "up"}`, {
    "--size": Math.abs(value || 0) / view.scale(name.startsWith("step return") ? "step_return" : "advantage") },
  h("i"), h("span", null, signed(value)))];
  const rows = [h("dt", null, "reward"), h("dd", null, format(turn.reward))];
  const parts = Object.entries(turn.parts).filter(([name]) => name !== "anchor_group");
  for (const [name, value] of parts.filter(([name]) => !name.endsWith("advantage"))) {
    rows.push(h("dt", null, partName(name)), h("dd", { "data-part": name }, format(value)));
  }
  const advantages = parts.filter(([name]) => name.endsWith("advantage"));
  for (const [name, value] of advantages) {
    const [title, cell] = bar(partName(name), value);
    cell.dataset.part = name;
    rows.push(title, cell);
  }
  const [title, cell] = bar(advantages.length ? "total" : "advantage", turn.advantage);
  title.classList.add("total");
  cell.classList.add("total");
  cell.dataset.part = "advantage";
  return h("div.part", null, h("h4", null, advantages.length ? "Returns and advantages" : "Reward and advantage"),
    h("dl.values", null, rows, title, cell));
}

const partName = (name) => PART_NAMES[name] || name.replaceAll("_", " ");

/// Lists the steps taken in the same state, with which the step's return is compared.
function anchorView(view, turn) {
  if (turn.anchorKey === null) return null;
  const members = view.anchors.get(turn.anchorKey);
  const episodes = new Map(view.siblings.map((sibling) => [sibling.row, sibling]));
  const rows = members.map((member) => {
    const episode = episodes.get(member.row);
    const here = member === turn;
    const place = `${episode.episode} · ${member.place + 1}`;
    return h("tr", { "aria-current": here ? "true" : null }, h("td", null, here ? h("b", null, place)
      : h("a", { href: view.link(episode, member.place), title: member.action || "" }, place)),
    h("td", null, markOf(episode)),
    h("td", null, format(member.parts.step_return ?? episode.return)),
    h("td", null, signed(member.parts.step_advantage ?? member.advantage)));
  });
  const stepReturns = members.some((member) => typeof member.parts.step_return === "number");
  const stepAdvantages = members.some((member) => typeof member.parts.step_advantage === "number");
  const table = h("table.members", null, h("thead", null, h("tr", null, ["episode · turn", "", stepReturns ? "step return" : "return",
    stepAdvantages ? "step adv." : "advantage"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, rows));
  const size = members.length;
  const title = `${plural(size, "step")} ${size === 1 ? "(alone in its state)" : `of ${plural(new Set(members.map((m) => m.row)).size, "episode")}`}`;
  return h("div.part.anchor", { "data-size": size }, h("h4", null, "Anchor group", h("span.muted", null, title)),
    turn.anchor ? h("details.state", null, h("summary", null, turn.anchor.slice(0, 300)), h("pre.text", null, turn.anchor)) : null,
    size > 12 ? h("details.many", null, h("summary", null, "members"), table) : size > 1 ? table : null,
    view.missing ? h("p.muted", null, `${plural(view.missing, "episode")} of this group not in the page`) : null);
}
