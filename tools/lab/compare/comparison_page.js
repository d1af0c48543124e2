// The page of `mantissa compare`; precision_comparison.h describes its figures.

// A precision that was not trained has no runs.
const precisions = styled(recordsOf(figures.precisions), (one) => one.name)
                       .map((one) => ({...one, summary: one.summary || {}, runs: recordsOf(one.runs)}));
const baseline = precisions.find((one) => one.name === textOf(figures.baseline)) || null;
const trained = precisions.filter((one) => one.runs.length > 0);
const others = trained.filter((one) => one !== baseline);
const ifTrained = (draw) => (body, legend) =>
    trained.length ? draw(body, legend) : 'The file of this comparison holds no run.';

const stepsOf = (run, series) => listOf((run.steps || {})[series]);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
// Over the numbers among the values; {mean: null} if there is none.
function spread(values) {
  const numbers = numbersOf(values);
  const mean = numbers.length ? sum(numbers) / numbers.length : null;
  return {mean, low: smallest(numbers), high: largest(numbers)};
}

// A series of every run as a line of at most kMostPoints points: means of `every` steps, with their spread over seeds.
const kMostPoints = 160;
function curveOf({name, color, dash}, runs) {
  const length = Math.max(0, ...runs.map((run) => run.length));
  const every = Math.max(1, Math.ceil(length / kMostPoints));
  const points = Array.from({length: Math.ceil(length / every)}, (_, i) => {
    const [first, last] = [i * every, Math.min((i + 1) * every, length)];
    return {x: (first + 1 + last) / 2, ...spread(runs.map((run) => spread(run.slice(first, last)).mean))};
  });
  return {name, color, dash, points, every};
}
const curves = (series) => trained.map((one) => curveOf(one, one.runs.map((run) => stepsOf(run, series))));

// Losses minus the baseline's losses, for the seeds with which both runs succeeded.
const pairedLosses = (precision) => precision.runs.flatMap((run) => {
  const twin = baseline.runs.find((other) => other.seed === run.seed);
  if (!twin || run.failure || twin.failure) return [];
  const theirs = stepsOf(twin, 'loss');
  const difference = (value, i) => (numbersOf([value, theirs[i]]).length === 2 ? value - theirs[i] : null);
  return [stepsOf(run, 'loss').slice(0, theirs.length).map(difference)];
});

// Loss scales are usually powers of two.
const scaleText = withDefault(
    (scale) => (scale >= 1024 && Number.isInteger(Math.log2(scale)) ? power(Math.log2(scale)) : plain(scale)));

const rowOf = ({name}, value, text, more) => ({name, value, text: value === null ? '–' : text, ...more});

const margin = numberOf(setting.margin) ?? 0;
function verdictHow() {
  const level = numberOf(setting.level) === null ? '' : `${figure(100 * setting.level, 2)} % `;
  return 'The final loss of each precision minus that of the baseline with the same seed, in nats per token, with its ' +
      `${level}interval: to the left is better. Losses within ±${figure(margin, 2)} (shaded) count as equal: ` +
      `${textOf(setting.margin_text)}. ${textOf(setting.equal_text)} Power is the chance that so many seeds call ` +
      'precisions equal that do not differ; 0 if the runs are too short for that.';
}

function badge(precision) {
  const signs = {better: '▲ better', equal: '≈ equal', worse: '▼ worse', inconclusive: '? inconclusive'};
  const {verdict} = precision.summary;
  const kind = precision === baseline ? 'baseline' : Object.hasOwn(signs, verdict) ? verdict : 'inconclusive';
  if (precision.runs.length === 0) return html('span', {class: 'badge'}, '– not trained');
  return html('span', {class: `badge ${kind}`}, signs[kind] || kind);
}

function remarksOf({refusal, summary: {runs, succeeded, failure, why, outlier}}) {
  if (refusal) return textOf(refusal);
  const failures = failure ? `${count(runs - succeeded)} of ${counted(runs, 'run')} failed: ${textOf(failure)}` : why;
  return [failures, outlier && outlier.text].map(textOf).filter(Boolean).join('; ');
}

function drawVerdict(body) {
  const differenceOf = (precision) => {
    const found = precision === baseline ? null : precision.summary.loss_difference;
    return found && numberOf(found.mean) !== null ? found : null;
  };
  const endsOf = ({mean, interval}) => (interval ? [interval.low, interval.high] : [mean, mean]);
  const ends = recordsOf(precisions.map(differenceOf)).flatMap(endsOf);
  const reach = 1.08 * Math.max(1e-9, 1.2 * margin, ...ends.map(Math.abs));
  const textFor = (precision) => withError(differenceOf(precision), '+');
  // The rest of the table's width: names and differences, and what has the same width in every comparison.
  const texts_px = 1.1 * (widest_px(precisions.map((one) => one.name)) + widest_px(precisions.map(textFor)));
  const width = Math.max(200, Math.min(720, body.clientWidth - texts_px - 360));
  const x = linearScale(-reach, reach, 8, width - 8, width / 90, (value) => withMinus(figure(value, 2)));
  const interval = (precision, found) => {
    const marks = [{kind: 'bar', style: 'margin', from: -margin, to: margin}];
    const fill = precision.color;
    if (found) {
      const [from, to] = endsOf(found);
      marks.push({kind: 'line', style: 'whisker', from, to, fill});
      marks.push({kind: 'dot', style: 'mark', from: found.mean, radius: 5, fill});
    }
    return svg(
        'svg', {width, height: 30, role: 'img', 'aria-label': 'interval'}, line('zero', x.place(0), x.place(0), 0, 30),
        marks.map((mark) => rowMark(mark, x, 0, 30)));
  };
  const rows = precisions.map((precision) => {
    const found = differenceOf(precision);
    const power = precision === baseline ? null : precision.summary.power;
    const cells = [textFor(precision), interval(precision, found), share(numberOf(power))].map(
        (content) => html('td', {}, content));
    return html(
        'tr', {}, html('td', {class: 'text'}, nameCell(precision)), html('td', {class: 'text'}, badge(precision)),
        cells);
  });
  const axis = svg('svg', {width, height: 18}, bottomLabels(x, 12, width));
  const head =
      [['text', 'Precision'], ['text', 'Verdict'], ['', 'Difference of the final loss'], ['', axis], ['', 'Power']];
  body.append(
      html('div', {class: 'table'}, table(head.map(([kind, title]) => html('th', {class: kind}, title)), rows)));
  if (figures.utility) body.append(note(html('strong', {}, textOf(figures.utility.sentence))));
  for (const precision of precisions.filter(remarksOf))
    body.append(note(html('strong', {}, `${precision.name}: `), remarksOf(precision)));
}

const kColumns = {
  'Success': (s) => `${count(s.succeeded)} of ${count(s.runs)}`,
  'Skipped': (s) => share(sum(numbersOf([s.overflow_share, s.fault_share]))),
  'Trained again': (s) => share(s.undone_share),
  'Final loss': (s) => withError(s.final_loss),
  'Step': (s) => milliseconds(s.step_seconds && s.step_seconds.mean),
  'Times baseline': ({time_ratio: times}) => !times || numberOf(times.mean) === null ?
      '–' :
      `${times.mean.toFixed(2)} (${times.low.toFixed(2)} to ${times.high.toFixed(2)})`,
  'Tokens/s': (s) => count(numberOf(s.tokens_per_second) && Math.round(s.tokens_per_second)),
  'Grad norm': (s) => figure(s.grad_norm),
  'Loss scale: least, last': (s) => `${scaleText(s.smallest_scale)}, ${scaleText(s.last_scale)}`,
  'Scale changes': (s) => figure(s.scale_changes, 2),
  'Peak memory': (s) => mebibytes(s.peak_memory_bytes),
  'Sent a step': (s) => (s.sent_bytes === 0 ? '0' : mebibytes(s.sent_bytes)),
};

const drawFigures = (body) => body.append(
    figureTable(trained.map(({name, summary}) => ({...summary, name})), {'Precision': nameCell, ...kColumns}));

function validationOf({name, color, dash, runs}) {
  const all = runs.flatMap((run) => recordsOf(run.validation));
  const steps = [...new Set(numbersOf(all.map((one) => one.step)))].sort((a, b) => a - b);
  const lossesAt = (step) => all.filter((one) => one.step === step).map((one) => one.loss);
  return {name, color, dash, points: steps.map((x) => ({x, ...spread(lossesAt(x))}))};
}

function drawCurves(body, legend) {
  const losses = curves('loss');
  const every = Math.max(1, ...losses.map((one) => one.every));
  legend.append(...lineLegend(trained), every > 1 ? word(`a point of a line: ${every} steps`) : '');
  const drawn = (series) => series.filter((one) => one.points.length);
  const charts = [lineChart('Training loss, nats per token', losses, {xTitle: 'step'})];
  if (baseline && others.length) {
    const paired = drawn(others.map((precision) => curveOf(precision, pairedLosses(precision))));
    const title = `Difference to ${baseline.name} with the same seed, nats`;
    charts.push(lineChart(title, paired, {xTitle: 'step', zero: true}));
  }
  const validation = drawn(trained.map(validationOf));
  const options = {xTitle: 'steps done', dots: 'beside'};
  if (validation.length) charts.push(lineChart('Validation loss, nats per token', validation, options));
  facetGrid(body, 380, charts);
}

function drawSuccess(body, legend) {
  legend.append(keyed('faults', 'var(--bad)'));
  const success = trained.map((precision) => {
    const {succeeded, runs} = precision.summary;
    return rowOf(precision, numberOf(succeeded / runs), `${count(succeeded)} of ${count(runs)}`);
  });
  const skipped = trained.map((precision) => {
    const {overflow_share: overflow, fault_share: fault} = precision.summary;
    const parts = [
      {value: numberOf(overflow) ?? 0, fill: precision.color, tip: `overflow: ${share(overflow)}`},
      {value: numberOf(fault) ?? 0, fill: 'var(--bad)', tip: `faults: ${share(fault)}`},
    ];
    const text = fault > 0 ? `${share(overflow)} overflow, ${share(fault)} faults` : share(overflow);
    return rowOf(precision, parts[0].value + parts[1].value, text, {parts});
  });
  const most = Math.max(0.01, ...skipped.map((row) => row.value));
  facetGrid(body, 420, [
    barChart('Runs that succeeded, share of runs', success, {most: 1, text: wholePercent}),
    barChart('Steps that were skipped, share of steps', skipped, {most, text: share}),
  ]);
}

function drawScales(body, legend) {
  legend.append(...lineLegend(trained));
  const scaled = trained.filter((one) => one.runs.some((run) => stepsOf(run, 'scale').some((scale) => scale !== 1)));
  const exponentsOf = (run) => stepsOf(run, 'scale').map((scale) => (scale > 0 ? Math.log2(scale) : null));
  const exponents = scaled.map((precision) => curveOf(precision, [exponentsOf(precision.runs[0])]));
  const text = (exponent) => (Number.isInteger(exponent) ? power(exponent) : '');
  const charts = [lineChart('Gradient norm', curves('grad_norm'), {xTitle: 'step', log: true})];
  if (scaled.length) charts.unshift(lineChart('Loss scale', exponents, {xTitle: 'step', text, room: 1}));
  facetGrid(body, 420, charts);
  if (scaled.length === 0) body.append(note('No run scaled its loss: none of these precisions needs a loss scale.'));
}

function drawCost(body, legend) {
  legend.append(...memoryLegend());
  const time = trained.map((precision) => {
    const {step_seconds: seconds, time_ratio: ratio} = precision.summary;
    const times = precision === baseline || !ratio ? '' : `, ${ratio.mean.toFixed(2)} times`;
    const runs = numbersOf(precision.runs.map((run) => run.median_step_seconds)).map((one) => 1e3 * one);
    return rowOf(
        precision, seconds ? 1e3 * seconds.mean : null, `${milliseconds(seconds && seconds.mean)}${times}`, {runs});
  });
  const memory = trained.map(({name, runs}) => ({name, memory: runs[0].memory}));
  facetGrid(body, 420, [barChart('Step time, milliseconds', time), memoryChart('Memory of a rank, MiB', memory)]);
}

function drawSaving(body, legend) {
  if (!baseline || others.length === 0) return 'There is nothing beside the baseline to compare with it.';
  legend.append(word(`100 %: nothing is left of what ${baseline.name} takes`));
  const saved = (title, key) => barChart(
      title, others.map((precision) => {
        const [ours, theirs] = [numberOf(precision.summary[key]), numberOf(baseline.summary[key])];
        const value = ours === null || !theirs ? null : 1 - ours / theirs;
        return rowOf(precision, value, `${wholePercent(value)} (${mebibytes(ours)} of ${mebibytes(theirs)})`);
      }),
      {text: wholePercent});
  const charts = [saved('Memory of a rank, saved', 'peak_memory_bytes')];
  const sends = baseline.summary.sent_bytes > 0;
  if (sends) charts.push(saved('Bytes that a rank sends in a step, saved', 'sent_bytes'));
  facetGrid(body, 420, charts);
  if (!sends) body.append(note('One rank sends nothing.'));
}

const gradients = figures.gradients || {};
function underflowHow() {
  const how = 'To the left gradients vanish, to the right they overflow; a good loss scale lies in the valley between.';
  if (numberOf(gradients.steps) === null) return how;
  const steps = counted(gradients.steps, 'step'), elements = count(gradients.elements);
  return `${how} These are the gradients of activations of the first ${steps} in fp32 (${elements} numbers), ` +
      'with one scale for all; recipes that scale each tensor or block by itself lose fewer.';
}
function drawUnderflow(body) {
  const list = recordsOf(gradients.formats);
  if (list.length === 0) return 'The gradients of the model were not counted.';
  facetGrid(
      body, 380,
      list.map((format) => (width) => lossScaleChart(textOf(format.format), textOf(format.format), format, width)));
}

const deviceFormats = figures.device_formats || {};
startPage(
    'comparison of precisions', {
      model: textOf(setting.model),
      steps: numberOf(setting.steps) === null ? '' : count(setting.steps),
      seeds: listOf(setting.seeds).map(textOf).join(', '),
      ranks: textOf(setting.ranks),
      device: textOf(setting.device),
    },
    [
      panel('verdict', 'Verdict', 'Verdict', verdictHow(), ifTrained(drawVerdict)),
      panel(
          'figures-table', 'Figures', 'Figures',
          'One row for each precision. Losses have their interval over seeds. Times are means over seeds of a run’s median step, ' +
              'and of its ratio to the baseline with the same seed, with the range. Skipped steps had overflow or a fault. Loss ' +
              'scales: the smallest of any run, the last of the first run, and changes in a run.',
          ifTrained(drawFigures)),
      panel(
          'curves', 'Loss', 'Loss',
          'Lines are means over seeds; bands reach from the lowest seed to the highest. The difference is taken seed by seed, so ' +
              'that what the seed alone changes is not in it.',
          ifTrained(drawCurves)),
      panel(
          'success', 'Success', 'Success and skipped steps',
          'A run succeeds if it reaches its last step with a finite loss. Steps whose gradients or loss are not finite are ' +
              'skipped: they cost time and change nothing.',
          ifTrained(drawSuccess)),
      panel(
          'scales', 'Loss scale', 'Loss scale and gradient norm',
          'The factor that multiplies the loss, in the run of the first seed; and the norm of the gradients, unscaled and before ' +
              'clipping, as the mean over seeds.',
          ifTrained(drawScales)),
      panel(
          'cost', 'Time and memory', 'Step time and memory',
          'Bars of time are means over seeds of a run’s median step, dots the runs. Memory is what one rank held for the ' +
              'training, by category.',
          ifTrained(drawCost)),
      panel(
          'saving', 'Saving', 'Saving against the baseline',
          'How much less a precision takes than the baseline: to the right is better.', ifTrained(drawSaving)),
      formatErrorPanel(deviceFormats),
      panel(
          'underflow', 'Underflow', 'Underflow of this model’s gradients by format', underflowHow(), drawUnderflow,
          kLossScaleLegend),
      gemmPanel(deviceFormats),
    ]);
