// Data blocks of the page: zlib in base64. The index is read when the page opens, the others when asked for: from the
// page, or from the server that gave it out.

/// True if a server gave out the page.
let served = false;

const unpack = (element) => unpackText(element.textContent);

async function unpackText(text) {
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/// Returns the content of a block; null if there is none. In a file, blocks are at the end, the newest first: the browser may
/// still be reading them.
async function loadBlock(id) {
  if (served) return unpackText(await request(`block/${id}`));
  for (;;) {
    const over = document.readyState !== "loading";
    // Content after a block, if only a line end, shows that the block is complete.
    const element = $(id);
    if (element && (over || element.nextSibling)) return unpack(element);
    if (over) return null;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const caches = [];

/// Forgets what was loaded: the runs have written more.
const forgetBlocks = () => caches.forEach((cache) => cache.clear());

/// Keeps the results of the last few calls.
function remembered(limit, load) {
  const known = new Map();
  caches.push(known);
  return (...key) => {
    const name = key.join("-");
    const value = known.get(name) || load(...key);
    known.delete(name);
    known.set(name, value);
    // A load that failed is tried again at the next request.
    if (value instanceof Promise) value.catch(() => known.get(name) === value && known.delete(name));
    if (known.size > limit) known.delete(known.keys().next().value);
    return value;
  };
}

/// Optimizer steps, warm start and histograms of a run.
const loadDetails = remembered(64, (run) => loadBlock(`d-${run}`));

/// The episodes of a file without their turns. `file` is an iteration, with an "e" before it for evaluations.
const loadSummary = remembered(8, async (run, file) => {
  const columns = await loadBlock(`s-${run}-${file}`);
  return columns.group.map((group, row) => ({
    row,
    group,
    episode: columns.episode[row],
    sample: columns.sample[row],
    task: columns.task[row],
    type: columns.task_type[row] < 0 ? null : columns.types[columns.task_type[row]],
    won: columns.won[row] === 1,
    return: columns.return[row],
    turns: columns.turns[row],
    tokens: columns.tokens[row],
    invalid: columns.invalid[row],
    failure: (columns.failures || {})[row] || null,
  }));
});

/// The outcome of an episode: an environment that failed gave it none.
const outcomeOf = (episode) => (episode.failure !== null ? "failed" : episode.won ? "won" : "lost");
const OUTCOME_MARKS = { won: "✓", lost: "✗", failed: "!" };
const markOf = (episode) => OUTCOME_MARKS[outcomeOf(episode)];

/// A group's turns by the episode's row in the summary; null if none are in the page.
const loadGroup = remembered(64, async (run, file, group) => {
  const block = await loadBlock(`t-${run}-${file}-${group}`);
  if (!block) return null;
  const byRow = new Map();
  let first = [];
  for (const episode of block.episodes) {
    let previous = first;
    const turns = episode.turns.map((turn, place) => {
      const read = readTurn(block, turn, previous);
      read.place = place;
      read.row = episode.row;
      previous = read.pieces;
      return read;
    });
    if (turns.length) first = turns[0].pieces;
    byRow.set(episode.row, { seed: episode.seed, turns });
  }
  return byRow;
});

function readTurn(block, turn, previous) {
  const [front, back, between] = turn.prompt;
  const pieces = [...previous.slice(0, front), ...between, ...previous.slice(previous.length - back)];
  const text = (id) => (id === null ? null : block.texts[id]);
  const tokens = turn.tokens && turn.tokens.map((id) => block.tokens[id]);
  return {
    ...turn,
    pieces,
    prompt: pieces.map(text),
    response: typeof turn.response === "number" ? tokens.slice(0, turn.response).join("") : turn.response,
    action: text(turn.action),
    admissible: turn.admissible === null ? null : block.lists[turn.admissible].map(text),
    anchor: text(turn.anchor),
    anchorKey: anchorKey(turn),
    tokens,
    logprobs: turn.logprobs === null ? null : Array.from(turn.logprobs, readLogprob),
    parts: turn.parts || {},
    images: (turn.images || []).map((id) => (id === null ? null : block.images[id])),
  };
}

/// An image as a PNG file in base64; null if the page lacks it. In a file, images come before the turns that show them.
function loadImage(run, key) {
  if (key === null) return null;
  return served ? servedImage(run, key) : ($(`i-${key}`)?.textContent ?? null);
}

const servedImage = remembered(64, async (run, key) => (await request(`block/i-${run}-${key}`)) || null);

/// Steps of a group with equal keys were taken in one state.
function anchorKey(turn) {
  const number = turn.parts && turn.parts.anchor_group;
  if (typeof number === "number") return `group ${number}`;
  return turn.anchor === null ? null : `text ${turn.anchor}`;
}

/// The reverse of `logprob_char` in src/turns.rs.
function readLogprob(char) {
  const code = char.codePointAt(0);
  if (code === 32) return null;
  const level = code - 35 - (code > 92 ? 1 : 0);
  return -0.005 * (Math.exp(level / 24) - 1);
}
