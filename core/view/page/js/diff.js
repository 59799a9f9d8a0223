// Finds the new text in a prompt, and shows only that.

/// Returns for each piece of `now` whether it also occurs, in order, in `before` (a longest common subsequence).
function kept(before, now) {
  const marks = new Array(now.length).fill(false);
  let front = 0;
  while (front < before.length && front < now.length && before[front] === now[front]) marks[front++] = true;
  let back = 0;
  while (back < before.length - front && back < now.length - front && before.at(-1 - back) === now.at(-1 - back)) {
    back += 1;
    marks[now.length - back] = true;
  }
  const a = before.slice(front, before.length - back);
  const b = now.slice(front, now.length - back);
  // Very long changes are shown as all new: comparing them would take too long.
  if (a.length * b.length > 4e6) return marks;
  const width = b.length + 1;
  const best = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1
        : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { marks[front + j] = true; i += 1; j += 1; }
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return marks;
}

/// Runs of pieces that are all new or all known: [{text, fresh}].
function changes(previous, turn) {
  const marks = previous ? kept(previous.pieces, turn.pieces) : turn.pieces.map(() => false);
  const runs = [];
  turn.prompt.forEach((text, place) => {
    const fresh = !marks[place];
    if (runs.length && runs.at(-1).fresh === fresh) runs.at(-1).text += text;
    else runs.push({ text, fresh });
  });
  return runs;
}

const FOLD = 160;
const LONG = 1800;

/// Renders the prompt's text: parts shared with the previous one folded, new parts marked.
function promptText(previous, turn) {
  const runs = changes(previous, turn);
  const box = h("pre.text", null);
  for (const run of runs) {
    if (!previous) box.append(run.text);
    else if (run.fresh) box.append(h("mark", null, run.text));
    else if (run.text.length <= FOLD) box.append(run.text);
    else box.append(fold(run.text));
  }
  if (!previous && box.textContent.length > LONG) {
    box.classList.add("clipped");
    const more = h("button.more", { type: "button", onclick: () => { box.classList.remove("clipped"); more.remove(); } },
      `show all ${thousands(box.textContent.length)} characters`);
    return [box, more];
  }
  return [box];
}

/// A button that is replaced with the text it hides.
function fold(text) {
  const lines = text.split("\n").length - 1;
  const size = lines > 1 ? plural(lines, "line") : `${thousands(text.length)} characters`;
  const button = h("button.fold", { type: "button", title: "show what the previous prompt has too", onclick: () => {
    button.replaceWith(h("span.same", null, text));
  } }, `⋯ ${size} as before`);
  return button;
}
