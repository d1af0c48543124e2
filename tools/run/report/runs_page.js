// The page of `mantissa report`; run_report.h describes its figures.

const kRunColors = 6;
const runs = recordsOf(figures.runs).map((run, i) => ({
                                           ...run,
                                           name: textOf(run.name) || `run ${i + 1}`,
                                           color: `var(--run-${(i % kRunColors) + 1})`,
                                           dash: kDashes[Math.floor(i / kRunColors) % kDashes.length],
                                           series: run.series || {},
                                         }));
const ifRuns = (draw) => (body, legend) => runs.length ? draw(body, legend) : 'The file of this report holds no run.';
const runCell = ({name, color}) => keyed(name, color);
const runLegend = () => (runs.length > 1 ? lineLegend(runs) : []);

// ---- The horizontal axis

const compact = (value) => value.toLocaleString('en', {notation: 'compact', maximumSignificantDigits: 3});
const kAxes = {
  step: {title: 'step', text: compact},
  tokens: {title: 'tokens', text: compact},
  hours: {title: 'hours of steps', text: plain},
};
let axis = 'step';
function axisChoice() {
  const options = Object.entries(kAxes).map(([key, {title}]) => [key, title]);
  const choose = (key) => {
    axis = key;
    drawPanels();
  };
  return html('p', {class: 'controls'}, choice('Curves by', options, axis, choose, {id: 'axis'}));
}
const horizontal = () => ({xTitle: kAxes[axis].title, xText: kAxes[axis].text, edges: true});

// ---- Curves

// A figure of every run as a line, with a band from the least to the largest value of each part. `of` changes values.
function curvesOf(figure, of = (value) => value) {
  const valueOf = (value) => (numberOf(value) === null ? null : of(value));
  return runs
      .map((run) => {
        const {mean, low, high} = run.series[figure] || {};
        const points = listOf(run.series[axis]).map((x, i) => ({
                                                      x,
                                                      mean: valueOf(listOf(mean)[i]),
                                                      low: valueOf(listOf(low)[i]),
                                                      high: valueOf(listOf(high)[i]),
                                                    }));
        return {...run, points: points.filter((point) => numberOf(point.x) !== null)};
      })
      .filter((run) => run.points.some((point) => point.mean !== null));
}
const pointsOfEvaluations = (run) =>
    recordsOf(run.evaluations).map((one) => ({x: numberOf(one[axis]), mean: numberOf(one.loss)}));
// The curves of a chart, and the options of their form.
function formOf({series, log, zero, share: isShare, power_of_2: isPower}) {
  if (series === 'evaluations') {
    const curves = runs.map((run) => ({...run, points: pointsOfEvaluations(run)})).filter((run) => run.points.length);
    return {curves, dots: curves.every((run) => run.points.length <= 40) ? 'beside' : null};
  }
  if (!isPower)
    return {curves: curvesOf(textOf(series)), log, zero, text: isShare ? wholePercent : zero ? compact : undefined};
  const text = (exponent) => (Number.isInteger(exponent) ? power(exponent) : '');
  const isScaled = (run) => run.points.some(({mean}) => mean !== 0);
  return {curves: curvesOf(textOf(series), Math.log2).filter(isScaled), text, room: 1};
}
// The charts of a panel, by the table of metrics; those without a value are left out.
function chartsOf(name, more = {}) {
  return recordsOf(figures.charts).filter(({panel: of}) => of === name).flatMap((chart) => {
    const {curves, ...form} = formOf(chart);
    return curves.length ? [lineChart(textOf(chart.title), curves, {...horizontal(), ...form, ...more})] : [];
  });
}
const kNoSteps = 'No step is done yet.';

// ---- Panels

function drawVerdict(body) {
  const {kind, line: text, details} = figures.verdict || {};
  if (!text) return 'The file of this report holds no verdict.';
  document.getElementById('verdict').classList.add(['good', 'bad'].includes(kind) ? kind : 'attention');
  body.append(
      html('p', {class: 'level'}, textOf(text)), html('ul', {}, listOf(details).map((one) => html('li', {}, textOf(one)))));
}

// "2:17:30": hours, minutes, seconds.
const clock = withDefault((hours) => {
  const seconds = Math.round(3600 * hours);
  const two = (number) => String(number).padStart(2, '0');
  return `${Math.floor(seconds / 3600)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}`;
});
const loss = withDefault((value) => value.toFixed(4));
const kColumns = {
  'Run': runCell,
  'State': ({state}) => word(textOf(state)),
  'Steps': ({steps}) => count(steps),
  'Tokens': ({tokens}) => withDefault(compact)(tokens),
  'Time': ({hours}) => clock(hours),
  'Loss': (run) => loss(run.loss),
  'Validation: first': ({validation}) => loss((validation || {}).first),
  'last': ({validation}) => loss((validation || {}).last),
  'lowest': ({validation}) => loss((validation || {}).best),
  'Skipped': ({skipped}) => count(skipped),
};
for (const {series, column, share: isShare} of recordsOf(figures.charts).filter((chart) => chart.column))
  kColumns[column[0].toUpperCase() + column.slice(1)] = (run) => (isShare ? share : withDefault(compact))(run[series]);
function drawFigures(body) {
  body.append(figureTable(runs, kColumns));
}

const drawCharts = (name) => (body, legend) => {
  const charts = chartsOf(name);
  if (!charts.length) return kNoSteps;
  legend.append(...runLegend());
  facetGrid(body, 420, charts);
};
function drawLoss(body, legend) {
  const reason = drawCharts('loss')(body, legend);
  if (!reason) body.prepend(axisChoice());
  return reason;
}

const kCauseColumns = {
  'Run': ({run}) => runCell(run),
  'Cause, numbers as *': ({cause}) => word(html('span', {class: 'sentence'}, textOf(cause))),
  'Steps': (row) => count(row.count),
  'First': ({first}) => count(first),
  'Last': ({last}) => count(last),
};
function drawScales(body, legend) {
  const causes = runs.flatMap((run) => recordsOf(run.causes).map((cause) => ({...cause, run})));
  const rug = runs.flatMap(
      ({name, color, skips}) => recordsOf(skips).map(
          (skip) => ({x: numberOf(skip[axis]), color, tip: `${name}, step ${skip.step}: ${textOf(skip.reason)}`})));
  const charts = chartsOf('scale', {rug});
  if (charts.length === 0 && causes.length === 0)
    return 'No run scaled its loss, and none skipped a step: their precisions need no loss scale.';
  legend.append(...runLegend(), causes.length ? word('short lines at the bottom: skipped steps') : '');
  if (!charts.length) {
    const {title} = recordsOf(figures.charts).find(({series}) => series === 'loss') || {};
    const name = textOf(title).replace(/,.*|$/, ', and skipped steps');
    charts.push(lineChart(name, curvesOf('loss'), {...horizontal(), rug}));
  }
  facetGrid(body, 420, charts);
  if (causes.length) body.append(scrolling('causes of skipped steps', figureTable(causes, kCauseColumns)));
}

function drawSpeed(body, legend) {
  const reason = drawCharts('speed')(body, legend);
  if (!reason && runs.every(({mfu}) => numberOf(mfu) === null))
    body.append(note('MFU is not known: no peak was measured (train.measure_peak), and no data sheet has one.'));
  return reason;
}

function drawMemory(body, legend) {
  const measured = runs.filter((run) => run.memory);
  if (!measured.length) return 'Runs record their memory at the end: none of these has ended yet.';
  legend.append(...memoryLegend());
  const rows = measured.flatMap(({name, memory}) => [
    {name: `${name}, predicted`, memory: memory.predicted},
    {name: `${name}, measured`, memory: memory.measured},
  ]);
  facetGrid(body, 420, [memoryChart('Memory of rank 0, MiB', rows)]);
}

const kPhases = [
  'forward', 'backward', 'reduce', 'update', 'data', 'decide', 'step', 'evaluate', 'sample', 'checkpoint', 'integrity',
  'calibrate', 'wait', 'other'
];
function drawPhases(body, legend) {
  const timed = runs.filter((run) => run.phases);
  if (!timed.length) return 'Runs record the time by phase with each checkpoint: these have none yet.';
  const phases = inOrder(timed.flatMap((run) => Object.keys(run.phases)), kPhases);
  const colorOfPhase = (phase) => shadeOf(phases.indexOf(phase), phases.length);
  legend.append(...phases.map((phase) => keyed(phase, colorOfPhase(phase))));
  const rows = timed.map(({name, phases: seconds}) => {
    const total = numbersOf(Object.values(seconds)).reduce((a, b) => a + b, 0);
    const parts = phases.map((phase) => {
      const part = (numberOf(seconds[phase]) ?? 0) / (total || 1);
      return {value: part, fill: colorOfPhase(phase), tip: `${name}, ${phase}: ${share(part)}`};
    });
    return {name, value: 1, text: clock(total / 3600), parts};
  });
  facetGrid(body, 640, [barChart('Time of rank 0 by phase, share of its time', rows, {most: 1, text: wholePercent})]);
  const columns = {'Run': runCell};
  for (const phase of phases) columns[phase] = ({phases: seconds}) => figure(numberOf(seconds[phase])) + ' s';
  body.append(figureTable(timed, columns));
}

function drawSettings(body) {
  const {reason, rows} = figures.settings || {};
  if (reason) return `The settings cannot be compared: ${textOf(reason)}`;
  const list = recordsOf(rows);
  if (!list.length) return runs.length > 1 ? 'All settings are the same.' : 'All settings are at their defaults.';
  const names = runs.length > 1 ? runs.map((run) => run.name) : ['this run', 'default'];
  const columns = {'Setting': ({setting: path}) => word(html('code', {}, textOf(path)))};
  names.forEach((name, i) => {
    columns[name] = ({values}) => word(html('span', {class: 'sentence'}, textOf(listOf(values)[i])));
  });
  body.append(scrolling('settings', figureTable(list, columns)));
}

function drawEvents(body) {
  const events = runs.flatMap((run) => recordsOf(run.events).map((event) => ({...event, run})));
  if (!events.length) return 'No run changed its precision, returned to a checkpoint or was stopped early.';
  body.append(scrolling('events', figureTable(events, {
    'Run': ({run}) => runCell(run),
    'Step': ({step}) => count(step),
    'Event': ({kind}) => word(textOf(kind)),
    'Cause': ({text}) => word(html('span', {class: 'sentence'}, textOf(text))),
  })));
}

function drawScores(body) {
  const scores = runs.flatMap((run) => recordsOf(run.scores).map((score) => ({...score, run})));
  if (!scores.length) return 'No run has scored tasks or texts (train.evaluations).';
  const columns = {
    'Run': ({run}) => runCell(run),
    'Evaluation': ({name}) => word(textOf(name)),
    'Step': ({step}) => count(step),
  };
  const fields = {'acc': 'acc', 'acc_norm': 'acc_norm', 'loss': 'Loss', 'bits_per_byte': 'Bits a byte'};
  for (const [field, title] of Object.entries(fields)) {
    if (scores.some((score) => numberOf(score[field]) !== null)) columns[title] = (score) => figure(numberOf(score[field]));
  }
  body.append(figureTable(scores, columns));
}

function drawSamples(body) {
  const samples = runs.flatMap((run) => recordsOf(run.samples).map((sample) => ({...sample, run})));
  if (!samples.length) return 'No run has written a sample (train.sample_interval, train.sample_tokens).';
  for (const {run, step, prompt, text} of samples) {
    body.append(
        html('h3', {}, runCell(run), ` step ${count(step)}, after “${textOf(prompt)}”`), html('pre', {}, textOf(text)));
  }
}

const kCurvesHow = 'A point of a line is the mean of some steps; its band reaches from their smallest value to their largest.';
startPage(
    'report on runs', {runs: runs.length > 1 ? runs.map((run) => run.name).join(', ') : textOf((runs[0] || {}).path)}, [
      panel('verdict', 'Verdict', 'Verdict', 'How the runs stand, and what to look at first.', drawVerdict),
      panel(
          'figures-table', 'Figures', 'Figures',
          'Losses are in nats per token; tokens per second and MFU are medians of the steps; the time is that of all steps.',
          ifRuns(drawFigures)),
      panel('loss', 'Loss', 'Loss', kCurvesHow, ifRuns(drawLoss)),
      panel(
          'gradients', 'Gradients', 'Gradient norm and learning rate',
          'The norm is that of the unscaled gradient before clipping, on a logarithmic scale.', ifRuns(drawCharts('gradients'))),
      panel(
          'scale', 'Loss scale', 'Loss scale and skipped steps',
          'A step whose gradients or loss are not finite is skipped: it costs time and changes nothing. An overflow halves a ' +
              'dynamic loss scale.',
          ifRuns(drawScales)),
      panel(
          'speed', 'Speed', 'Throughput and utilisation',
          'Tokens of all ranks, and the arithmetic of the model over the measured peak, or else that of the data sheet.',
          ifRuns(drawSpeed)),
      panel(
          'memory', 'Memory', 'Memory, predicted and measured',
          'Tensors and buffers of rank 0, by prediction before the start and as measured at the end.', ifRuns(drawMemory)),
      panel(
          'phases', 'Time', 'Time by phase',
          'Time that rank 0 spent in each phase, up to the last checkpoint or the end. On a GPU it is the host’s: the ' +
              'device’s work shows as waiting. Other: waits for other ranks, and the rest.',
          ifRuns(drawPhases)),
      panel(
          'settings', 'Settings', runs.length > 1 ? 'Settings that differ' : 'Settings that are not at their defaults',
          'From config.yaml in the run folder.', ifRuns(drawSettings)),
      panel(
          'events', 'Events', 'Events', 'Changes of precision, returns to a checkpoint, and early stops.', ifRuns(drawEvents)),
      panel(
          'scores', 'Scores', 'Scores', 'The newest result of each evaluation: shares of right answers, losses in nats per token.',
          ifRuns(drawScores)),
      panel('samples', 'Samples', 'Samples', 'The last texts that each run generated.', ifRuns(drawSamples)),
    ]);
