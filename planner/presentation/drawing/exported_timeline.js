// Starts the interactive timeline in an exported HTML file.  planner/presentation/drawing/html.py inlines this
// module after the modules of web/charts that it uses.

const seen = (id) => document.getElementById(id);

/* The drawn parts of a TimelineAnswer, from the file's gaps and lengths in whole ticks. */
function unpacked({ ticks, ranks, ...answer }) {
  const tick_s = answer.makespan_s / ticks;
  const [actions, waits] = [[], []];
  for (const flat of ranks) {
    const rows = { actions: [], waits: [] };
    let now = 0;
    for (let i = 0; i < flat.length; i += 5) {
      const [kind, micro_batch, chunk, gap, length] = flat.slice(i, i + 5);
      const start = now + gap;
      now = start + length;
      const times = { start_s: start * tick_s, end_s: now * tick_s };
      if (kind === WAIT) rows.waits.push(times);
      else rows.actions.push({ kind: LETTERS[kind], micro_batch, chunk, ...times });
    }
    actions.push(rows.actions);
    waits.push(rows.waits);
  }
  return { ...answer, actions, waits };
}

const data = timelineData(unpacked(JSON.parse(seen("data").textContent)));
const heights = timelineHeights(data);
seen("scroll").style.maxHeight = `${heights.visible}px`;
seen("lanes").style.height = `${heights.all}px`;
seen("canvas").style.height = `${heights.visible}px`;
seen("figure").classList.add("moving"); // shows the canvas below the heading of the picture

const [says, zoomed, notes] = [seen("says"), seen("zoom"), document.querySelector(".timeline .notes")];
const drawnNotes = notes.textContent;
const view = new TimelineView(
  seen("canvas"), seen("scroll"), data, new Set(),
  ({ text }) => { says.textContent = text; },
  ({ zoom, dense }) => {
    zoomed.textContent = zoomText(zoom);
    notes.textContent = seen("figure").dataset[dense ? "columns" : "actions"];
  },
);
addEventListener("beforeprint", () => { notes.textContent = drawnNotes; }); // prints the static picture
for (const button of document.querySelectorAll("button[data-key]")) {
  button.addEventListener("click", () => view.press(button.dataset.key));
}
seen("tools").hidden = false;
