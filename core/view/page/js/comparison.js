// The comparison of groups of runs: the tables and sentences of `nestor compare`, or the reason that there are none.

function comparedTable({ title, columns, rows, notes }) {
  const head = h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)));
  const body = rows.map(([name, ...cells]) => h("tr", null, h("th", { scope: "row" }, name), cells.map((cell) => h("td", null, cell))));
  const table = h("table.runs.compared", null, h("thead", null, head), h("tbody", null, body));
  return [h("h3", null, title), h("div.scroll", { tabindex: "0", role: "region", "aria-label": title }, table),
    notes.map((note) => h("p.muted", null, note))].flat();
}

const sentences = (list) => (list.length ? [h("ul", null, list.map((text) => h("li", null, text)))] : []);

/// Shows the comparison of the index; null if the runs are of one group.
function showComparison(comparison) {
  const place = $("comparison");
  place.hidden = !comparison;
  if (!comparison) return;
  const { refusals, report } = comparison;
  const content = report
    ? [...sentences(report.verdicts), ...report.tables.flatMap(comparedTable), ...sentences(report.notes)]
    : [h("p", null, "The runs are not comparable:"), ...sentences(refusals)];
  place.querySelector("div").replaceChildren(...content);
  const more = report && report.verdicts.length > 1 ? ` · ${report.verdicts.length - 1} more` : "";
  place.querySelector("summary").textContent = report ? `Comparison: ${report.verdicts[0]}${more}` : "Comparison: the runs are not comparable";
}
