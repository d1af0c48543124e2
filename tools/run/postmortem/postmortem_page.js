// The page of `mantissa postmortem`; postmortem.h describes its figures.

const verdict = figures.verdict || {};
const ranks = recordsOf(figures.ranks);
const shown = recordsOf(figures.shown).map((one) => ({...one, spans: recordsOf(one.spans)}));
const hidden = numberOf(figures.hidden) ?? 0;
const others = hidden > 0 ? [note(`${counted(hidden, 'other rank')}: --rank R adds the events of rank R.`)] : [];

const signed = withDefault((seconds) => `${seconds < 0 ? '−' : '+'}${Math.abs(seconds).toFixed(3)} s`);

const kLevels = {done: 'good', stopped: 'good', running: 'good', failed: 'bad', gone: 'bad', hang: 'bad'};
function drawVerdict(body) {
  if (!verdict.line) return 'The file of this report holds no verdict.';
  document.getElementById('verdict').classList.add(kLevels[verdict.kind] || 'attention');
  body.append(html('p', {class: 'level'}, textOf(verdict.line)));
  const lines = [...listOf(verdict.details), figures.lost, `The first cause is at ${textOf(verdict.time)}.`];
  body.append(html(
      'ul', {}, lines.map(textOf).filter(Boolean).map((text) => html('li', {style: 'white-space: pre-line'}, text))));
}

const kColumns = {
  'Rank': (row) => textOf(row.rank),
  'Part': (row) => ({first: 'first cause', waited: 'waited'}[row.role] || ''),
  'Node': (row) => textOf(row.host),
  'Process': (row) => textOf(row.pid),
  'Exit code': (row) => textOf(row.end),
  'Step': (row) => textOf(row.step),
  'Phase': (row) => textOf(row.phase),
  'Waits in collective': (row) => textOf(row.collective),
  'Last event after the first cause': (row) => signed(row.last_event_s),
};
function drawRanks(body) {
  if (ranks.length === 0) return 'The file of this report holds no rank.';
  body.append(scrolling('ranks', figureTable(ranks, kColumns)));
}

// In the order of their colours.
const phases = inOrder(
    shown.flatMap((one) => one.spans.filter((span) => span.kind === 'phase').map((span) => textOf(span.name))),
    ['data', 'forward', 'backward', 'reduce', 'decide', 'update', 'step', 'wait']);
const phaseColor = (name) => shadeOf(phases.indexOf(name), phases.length);

// Seconds before the first cause that the chart shows: at first as few as hold some events of every rank.
const kWindows = [-2, -1, 0, 1, 2].flatMap((power) => [1, 2, 5].map((factor) => Number(`${factor}e${power}`)));
const kEnough = 20;
const lastOf = (one) => numberOf(one.seen_s) ?? 0;
const holdsEnough = (window) => shown.every(({events}) => {
  const inside = recordsOf(events).filter((event) => event.s >= -window).length;
  return inside >= Math.min(kEnough, recordsOf(events).length);
});
let shownSeconds = kWindows.find(holdsEnough) ?? kWindows.at(-1);

function timelineRow(one, from, to) {
  const marks = one.spans.flatMap((span) => {
    const begin = Math.max(from, numberOf(span.from) ?? from);
    const end = Math.min(to, numberOf(span.to) ?? Math.max(begin, lastOf(one)));
    if (end < from || begin > to) return [];
    const isPhase = span.kind === 'phase', isOpen = numberOf(span.to) === null;
    const length = isOpen ? 'did not end' : `${figure(1e3 * (span.to - span.from))} ms`;
    return [{
      kind: 'bar',
      style: 'mark',
      from: begin,
      to: end,
      lane: [isPhase ? 0 : 1, 2],
      fill: isPhase ? phaseColor(span.name) :
          isOpen    ? 'var(--bad)' :
                      'var(--normal)',
      least_px: isOpen ? 3 : 0.5,
      tip: `rank ${one.rank}, ${isPhase ? 'phase' : 'collective'} ${span.name}: ${signed(span.from)}, ${length}`,
    }];
  });
  return {name: `rank ${one.rank}`, marks, text: ''};
}

function drawTimeline(body, legend) {
  if (shown.every((one) => one.spans.length === 0)) return 'The boxes hold no phase and no collective.';
  legend.append(
      ...phases.map((name) => keyed(name, phaseColor(name))), keyed('collective', 'var(--normal)'),
      keyed('collective that did not end', 'var(--bad)'));
  const options = kWindows.map((seconds) => [String(seconds), `${seconds} s`]);
  const choose = (value) => {
    shownSeconds = Number(value);
    redraw('timeline');
  };
  const label = 'Before and after the first cause:';
  body.append(html('p', {class: 'controls'}, choice(label, options, String(shownSeconds), choose, {id: 'window'})));
  const from = -shownSeconds, to = Math.min(shownSeconds, Math.max(0.05 * shownSeconds, ...shown.map(lastOf)));
  const axis = (left, right) => linearScale(from, to, left, right, (right - left) / 90, (value) => `${plain(value)} s`);
  const rows = shown.map((one) => timelineRow(one, from, to));
  const title = 'Upper bars: phases; lower bars: collectives';
  body.append(...rowChart(title, rows, {axis, row_px: 34, zero: true}, body.clientWidth - 20));
  body.append(...others);
}

function drawEvents(body) {
  if (shown.length === 0) return 'The file of this report holds no event.';
  const columns = {
    'Time': (event) => signed(event.s),
    'Step': (event) => textOf(event.step),
    'Event': (event) => html('span', {class: 'sentence'}, textOf(event.text)),
  };
  for (const one of shown) {
    const events = recordsOf(one.events).toReversed();
    const name = `rank ${one.rank}`;
    body.append(html(
        'details', {open: shown.length <= 2 ? '' : null},
        html('summary', {}, `${name}: ${counted(events.length, 'event')}, the newest first`),
        scrolling(name, figureTable(events, columns))));
  }
  body.append(...others);
}

function drawStacks(body) {
  const stacks = recordsOf(figures.stacks);
  if (stacks.length === 0) return 'There are no stacks: the watchdog writes them when it ends a job.';
  for (const one of stacks) {
    const text = html('pre', {}, textOf(one.text));
    body.append(html(
        'details', {}, html('summary', {}, `rank ${one.rank}: ${textOf(one.path)}`),
        scrolling(`stacks of rank ${one.rank}`, text)));
  }
}

startPage(
    'postmortem', Object.fromEntries(['ranks', 'nodes', 'job', 'started'].map((key) => [key, textOf(setting[key])])), [
      panel('verdict', 'Verdict', 'Verdict', 'How the run ended, the first cause, and what was lost.', drawVerdict),
      panel(
          'ranks', 'Ranks', 'Ranks',
          'Where each rank was at its end. A rank without an end mark was killed, or its node was lost.', drawRanks),
      panel(
          'timeline', 'Timeline', 'Phases and collectives',
          'Time is relative to the first cause, by the clock of each node. A rank that waits is in a collective that does not ' +
              'end.',
          drawTimeline),
      panel('events', 'Events', 'Events', 'The last events in the black box of each rank.', drawEvents),
      panel(
          'stacks', 'Stacks', 'Stacks', 'The stacks of the threads of each rank when its watchdog ended it.',
          drawStacks),
    ]);
