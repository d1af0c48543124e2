// The page of `mantissa analyze model`; analyze_verbs.h describes its figures.

const formats = recordsOf(figures.formats).filter((format) => numberOf(format.max) !== null);
const checkpoints = recordsOf(figures.checkpoints).map((one, index) => {
  const steps = listOf(one.steps).map((step, i) => (numberOf(step) === null ? `#${i + 1}` : String(step)));
  return {...one, index, name: textOf(one.name) || `checkpoint ${index + 1}`, steps};
});

// Items of one list of all checkpoints: {key, ...identity, at(checkpoint): its record or null}. Equals match in order.
function matched(list, identify) {
  const items = new Map();
  for (const checkpoint of checkpoints) {
    const seen = new Map();
    for (const record of recordsOf(checkpoint[list])) {
      const identity = identify(record);
      const name = JSON.stringify(Object.values(identity));
      seen.set(name, (seen.get(name) || 0) + 1);
      const key = `${name} ${seen.get(name)}`;
      if (!items.has(key)) items.set(key, {key, ...identity, records: new Map()});
      items.get(key).records.set(checkpoint, record);
    }
  }
  const at = (records) => (checkpoint) => records.get(checkpoint) || null;
  return [...items.values()].map((item) => ({...item, at: at(item.records), all: [...item.records.values()]}));
}
const tensors = matched('tensors', (t) => ({role: textOf(t.role) || 'no role', layer: textOf(t.layer) || 'no name'}));
const products = matched('products', (p) => ({product: textOf(p.product), layer: textOf(p.layer) || 'no name'}));
const wireParameters = matched('wire', (w) => ({layer: textOf(w.parameter) || 'no name'}));

const kRoles = ['activation', 'weight', 'gradient', 'parameter gradient', 'update', 'wire'];
const roles = inOrder(tensors.map((tensor) => tensor.role), kRoles);
const productKinds = inOrder(products.map((product) => product.product), ['fprop', 'dgrad', 'wgrad']);
const stagnantOf = (record) => record.stagnant || {};
const allStagnant = tensors.flatMap((tensor) => tensor.all.flatMap((record) => Object.keys(stagnantOf(record))));
const stagnationFormats = inOrder(allStagnant, ['fp32', 'bf16', 'fp16']);
const layerNames = [...new Set([...tensors, ...products].map((item) => item.layer))];

// The reader's choices.
const filters = Object.seal({text: '', role: '', checkpoint: '', order: 'model'});
const histogram = Object.seal({key: null, log: true});
const layersTable = Object.seal({view: 'layer', column: null, descending: true});

const isNamed = (layer) => layer.toLowerCase().includes(filters.text);
const isChosen = ({role, layer}) => isNamed(layer) && (filters.role === '' || role === filters.role);
const shownCheckpoints = () =>
    checkpoints.filter((c) => filters.checkpoint === '' || String(c.index) === filters.checkpoint);
const shownRecords = (item) => recordsOf(shownCheckpoints().map(item.at));
const nothingMatches = (what) =>
    `The filters leave no ${what}. Clear the layers' filter, or choose another role or checkpoint.`;

// The mark of a checkpoint if several share a row; the last one's is full.
const markOf = (checkpoint) => (checkpoint.index === checkpoints.length - 1 ? 'last' : 'first');
const stepOf = (checkpoint) => (numberOf(checkpoint.step) === null ? '' : ` (step ${count(checkpoint.step)})`);
const checkpointLegend =
    (text) => [...shownCheckpoints().map((c) => swatch(markOf(c), `${c.name}${stepOf(c)}`)), word(text)];

// The items that the filters leave, in the chosen order. `badness` of a record: larger is worse; null comes last.
function shownRows(items, badness) {
  const rows = items.filter((item) => isNamed(item.layer) && shownRecords(item).length);
  const rank = new Map(rows.map((item) => [item, largest(shownRecords(item).map(badness)) ?? -Infinity]));
  return filters.order === 'worst' ? rows.sort((a, b) => rank.get(b) - rank.get(a) || 0) : rows;
}

// The steps of the shown checkpoints, `lengthAt` each at least, side by side with gaps between: columns {checkpoint, i,
// x, step} of width 1, and a scale for them.
function stepColumns(lengthAt) {
  const columns = [];
  for (const checkpoint of shownCheckpoints()) {
    const start = columns.length ? columns[columns.length - 1].x + 1.6 : 0;
    for (let i = 0; i < Math.max(checkpoint.steps.length, lengthAt(checkpoint)); ++i)
      columns.push({checkpoint, i, x: start + i, step: checkpoint.steps[i] || `#${i + 1}`});
  }
  const total = columns.length ? columns[columns.length - 1].x + 1 : 1;
  const axis = (left, right) => {
    const place = (x) => left + (x / total) * (right - left);
    const starts = columns.filter(({i}) => i === 0);
    const room = (right - left) / starts.length;
    const labels = starts.map(({checkpoint, x}) => ({at: place(x), text: checkpoint.name, room}));
    return {place, ticks: columns.map(({x, step}) => ({at: place(x + 0.5), text: step})), labels};
  };
  return {columns, axis};
}

// One row for each item, with a bar or dot for the value of each checkpoint; dots are joined. options: kind,
// describe(record), axis of (values, left, right).
function checkpointRows(title, items, value, {kind, describe, axis}, width) {
  const shown = shownCheckpoints();
  const rows = items.map(({layer, at}) => {
    const marks = shown.filter((c) => at(c) && numberOf(value(at(c))) !== null).map((c) => {
      const [to, lane] = [value(at(c)), [shown.indexOf(c), shown.length]];
      const tip = `${layer}, ${c.name}: ${describe(at(c))}`;
      return {kind, from: kind === 'bar' ? 0 : to, to, lane, style: `mark ${markOf(c)}`, tip};
    });
    const values = marks.map((mark) => mark.to);
    const joint = {kind: 'line', style: 'axis', from: smallest(values), to: largest(values)};
    return {name: layer, marks: kind === 'dot' && marks.length > 1 ? [joint, ...marks] : marks};
  });
  const values = numbersOf(items.flatMap((item) => shownRecords(item).map(value)));
  return rowChart(title, rows, {axis: (left, right) => axis(values, left, right)}, width);
}
const ticksFor = (left, right) => Math.max(2, Math.floor((right - left) / 60));
const logAxis = (text) => (values, left, right) => logScale(values, left + 6, right, ticksFor(left, right), text);
const rangeAxis = (least, most, text) => (_, left, right) =>
    linearScale(least, most, left, right, ticksFor(left, right), text);

function drawVerdict(body) {
  const levels = {
    good: '✓ Good: nothing here asks for a change',
    attention: '! Attention: something here deserves a look',
    bad: '✕ Bad: this setting loses what training needs',
  };
  const {level, lines} = figures.verdict || {};
  const texts = listOf(lines).map(textOf).filter(Boolean);
  if (!level && texts.length === 0) return 'The file of this analysis holds no verdict.';
  const isKnown = Object.hasOwn(levels, level);
  if (isKnown) document.getElementById('verdict').classList.add(level);
  body.append(html('p', {class: 'level'}, isKnown ? levels[level] : 'No level was given'));
  body.append(html('ul', {}, texts.map((text) => html('li', {}, text))));
}

// Changes a panel's state and draws it again.
const changer = (id, state) => (change) => {
  Object.assign(state, change);
  redraw(id);
};

// The largest over the smallest positive amax; 1 if there are fewer than two.
const amaxesOf = (record) => listOf(record && record.amax_by_step);
function movement(tensor) {
  const values = shownRecords(tensor).flatMap(amaxesOf).filter((value) => value > 0);
  return values.length ? Math.max(...values) / Math.min(...values) : 1;
}

function driftChart(role, drawn, width) {
  const {columns, axis} =
      stepColumns((checkpoint) => Math.max(0, ...drawn.map(({at}) => amaxesOf(at(checkpoint)).length)));
  const movers =
      [...drawn].sort((a, b) => movement(b) - movement(a)).filter((tensor) => movement(tensor) > 1).slice(0, 5);
  const styleOf = (tensor) =>
      movers.includes(tensor) ? {color: 'var(--ink)', dash: kDashes[movers.indexOf(tensor)]} : {};
  const linesOf = (tensor) =>
      shownCheckpoints().filter((c) => numbersOf(amaxesOf(tensor.at(c))).length).map((checkpoint) => {
        const own = columns.filter((column) => column.checkpoint === checkpoint);
        const points = own.map(({x, i}) => ({x: x + 0.5, mean: amaxesOf(tensor.at(checkpoint))[i]}));
        return {name: `${tensor.layer}, ${checkpoint.name}`, ...styleOf(tensor), points};
      });
  const series = [...drawn.filter((one) => !movers.includes(one)), ...[...movers].reverse()].flatMap(linesOf);
  const names = movers.map((tensor) => {
    const name = `× ${figure(movement(tensor), 2)}  ${shortened(tensor.layer, width - 100)}`;
    return html('li', {title: tensor.layer}, lineSample(styleOf(tensor)), name);
  });
  const options = {axis, log: true, height: 222};
  return [lineChart(`${role} (${count(drawn.length)})`, series, options)(width), html('ul', {class: 'movers'}, names)];
}

function drawDrift(body) {
  const known = (record) => numbersOf(amaxesOf(record)).length > 0;
  const moving = tensors.filter((tensor) => tensor.all.some(known));
  if (moving.length === 0)
    return 'No amax was recorded by step: the analysis saw no step, or no tensor with a number in it.';
  const left = moving.filter((tensor) => isChosen(tensor) && shownRecords(tensor).some(known));
  if (left.length === 0) return nothingMatches('tensor');
  const ofRole = (role) => left.filter((tensor) => tensor.role === role);
  const shown = roles.filter((role) => ofRole(role).length);
  facetGrid(body, 340, shown.map((role) => (width) => driftChart(role, ofRole(role), width)));
}

// From dark blue over grey to yellow with evenly rising lightness, so that it reads without colour as well.
const kRamp = ['#00204d', '#2d4270', '#60626e', '#857f77', '#afa070', '#dcc45b', '#ffea46'];
function rampColor(part) {
  const place = Math.min(1, Math.max(0, part)) * (kRamp.length - 1);
  const low = Math.min(kRamp.length - 2, Math.floor(place));
  return `color-mix(in srgb, ${kRamp[low + 1]} ${Math.round(100 * (place - low))}%, ${kRamp[low]})`;
}

// The fill of cells without a figure.
const unknownPattern = () => svg(
    'svg', {width: 0, height: 0, style: 'position:absolute', 'aria-hidden': 'true'},
    svg('pattern', {id: 'unknown', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
        svg('rect', {width: 1, height: 5, fill: 'currentColor', opacity: 0.4})));

const isFp32 = setting.compute === 'fp32' && ['', 'none', 'off'].includes(textOf(setting.recipe));
const noProducts = isFp32 ?
    'No product was compared: this model computes in fp32, so that its operands are not rounded.' :
    'No product was compared: the analysis met no linear layer whose operands are rounded.';

// Facets by product, in a scrolling window; draw(kind, items, width) gives one.
function productFacets(body, items, badness, name, draw) {
  const rowsOf = (kind) => shownRows(items.filter((one) => one.product === kind), badness);
  const filled = productKinds.filter((kind) => rowsOf(kind).length);
  if (filled.length === 0) return nothingMatches('product');
  facetGrid(body, 340, filled.map((kind) => (width) => draw(kind, rowsOf(kind), width)), name);
}

function drawSnr(body, legend) {
  const series = (record) => listOf(record && record.snr_db);
  const values = numbersOf(products.flatMap((product) => product.all.flatMap(series)));
  if (products.length === 0) return noProducts;
  if (values.length === 0)
    return 'Products were met, but their ratio was measured at no step: there was no noise, or no signal.';
  const least = Math.floor(Math.min(...values) / 5) * 5;
  const most = Math.max(least + 5, Math.ceil(Math.max(...values) / 5) * 5);
  const ramp = html('i', {class: 'ramp', style: `background: linear-gradient(90deg, ${kRamp.join(',')})`});
  legend.append(
      word(`${least} dB`, ramp, `${most} dB`), swatch('unknown', 'no figure: not measured, or no error at all'),
      word('horizontal: training step; +20 dB: a tenth of the error'));
  const badness = (record) => (numbersOf(series(record)).length ? -median(series(record)) : null);
  return productFacets(body, products, badness, 'Signal-to-noise ratios', (kind, items, width) => {
    const {columns, axis} =
        stepColumns((checkpoint) => Math.max(0, ...items.map(({at}) => series(at(checkpoint)).length)));
    const rows = items.map((item) => {
      const marks = columns.map(({checkpoint, i, x, step}) => {
        const value = numberOf(series(item.at(checkpoint))[i]);
        const tip =
            `${item.layer}, ${checkpoint.name}, step ${step}: ${value === null ? 'no figure' : `${decibel(value)} dB`}`;
        const fill = value === null ? 'url(#unknown)' : rampColor((value - least) / (most - least));
        return {kind: 'cell', from: x, to: x + 1, least_px: 1, style: value === null ? 'unknown' : 'mark', fill, tip};
      });
      return {name: item.layer, marks, text: decibel(median(shownRecords(item).flatMap(series)))};
    });
    return rowChart(kind, rows, {axis, column: 'median'}, width);
  });
}

function drawNoise(body, legend) {
  const value = (record) => record.equivalent_batch_loss;
  const measured = products.filter((product) => numbersOf(product.all.map(value)).length);
  const batches = numberOf(setting.batches) ?? 2;
  if (products.length === 0) return noProducts;
  if (measured.length === 0 && batches < 2)
    return `The noise of mini-batches shows in how gradients differ between batches; this analysis saw ${
        batches}. Give it two or more.`;
  if (measured.length === 0)
    return 'The noise was estimated for no product: it needs gradients of several batches, and operands that are rounded.';
  legend.append(...checkpointLegend('horizontal: equivalent loss of batch size, % (logarithmic)'));
  const describe = (record) => `${share(value(record))} of the batch, noise ratio ${figure(record.noise_ratio)}`;
  const options = {kind: 'dot', describe, axis: logAxis(share)};
  const draw = (kind, items, width) => checkpointRows(kind, items, value, options, width);
  return productFacets(body, measured, value, 'Quantisation noise', draw);
}

function drawStagnation(body, legend) {
  const measured =
      tensors.filter((tensor) => tensor.all.some((record) => numbersOf(Object.values(stagnantOf(record))).length));
  if (measured.length === 0) return 'No update was compared with its weight: the analysis made no optimizer step.';
  if (shownRows(measured, () => null).length === 0) return nothingMatches('update');
  legend.append(...checkpointLegend('horizontal: share of updates, %'));
  facetGrid(
      body, 340, stagnationFormats.map((format) => (width) => {
        const value = (record) => stagnantOf(record)[format];
        const describe = (record) => `${share(value(record))} of the updates are lost in ${format}`;
        const options = {kind: 'bar', describe, axis: rangeAxis(0, 1, share)};
        return checkpointRows(`weights in ${format}`, shownRows(measured, value), value, options, width);
      }),
      'Stagnant updates');
}

function drawUnderflow(body) {
  const compute = textOf(setting.compute);
  if (checkpoints.some((checkpoint) => checkpoint.loss_scale && listOf(checkpoint.loss_scale.exponents).length))
    return facetGrid(
        body, 420, shownCheckpoints().map((c) => (width) => lossScaleChart(c.name, 'fp16', c.loss_scale, width)));
  return compute && compute !== 'fp16' ?
      `There is no curve: a loss scale is for gradients in fp16, and this model computes in ${
          compute}, which has the range of fp32.` :
      'There is no curve: the analysis recorded no gradient that a loss scale would act on.';
}

function drawWire(body, legend) {
  const measured =
      wireParameters.filter(({all}) => numbersOf(all.flatMap((record) => [record.snr_db, record.cosine])).length);
  if (measured.length === 0 && numberOf(setting.ranks) === 1)
    return 'There is no wire: one rank has all gradients and sends none.';
  if (measured.length === 0 && setting.wire === 'fp32')
    return 'Nothing is rounded: gradients go over the wire in fp32.';
  if (measured.length === 0) return 'The reduction was not compared: the analysis holds no parameter that was sent.';
  const items = shownRows(measured, (record) => (numberOf(record.snr_db) === null ? null : -record.snr_db));
  if (items.length === 0) return nothingMatches('parameter');
  legend.append(...checkpointLegend('SNR in dB; 1 − cosine has no unit (logarithmic)'));
  const snrs = items.flatMap(({all}) => all.map((record) => record.snr_db));
  const [least, most] = [smallest(snrs) ?? 0, largest(snrs) ?? 60];
  const snrAxis = rangeAxis(Math.floor(least / 5) * 5, Math.ceil(most / 5) * 5, String);
  const describe = ({snr_db: snr, cosine}) => `${decibel(snr)} dB, cosine ${numberOf(cosine) === null ? '–' : cosine}`;
  const angle = ({cosine}) => (numberOf(cosine) === null ? null : Math.max(0, 1 - cosine));
  const dots = (title, value, axis) => (width) =>
      checkpointRows(title, items, value, {kind: 'dot', describe, axis}, width);
  const charts = [dots('SNR, dB', (record) => record.snr_db, snrAxis), dots('1 − cosine', angle, logAxis(plain))];
  facetGrid(body, 400, charts, 'Error of the reduction');
}

function startFilters() {
  const result = html('output', {id: 'filter-result'});
  const show = () => {
    const all = counted(layerNames.length, 'layer');
    result.textContent = filters.text ? `${count(layerNames.filter(isNamed).length)} of ${all}` : all;
  };
  const change = (name) => (value) => {
    filters[name] = value;
    show();
    drawPanels();
  };
  const filter = (name, label, options) => choice(label, options, '', change(name), {id: `filter-${name}`});
  const all = ['', 'all'];
  const oninput = (event) => change('text')(event.target.value.trim().toLowerCase());
  const hint = {placeholder: 'all; e.g. blocks.3 or mlp', autocomplete: 'off'};
  const order = choice(
      'Order ', [['model', 'as in the model'], ['worst', 'worst first']], 'model', change('order'),
      {id: 'filter-order'});
  document.getElementById('bar').prepend(html(
      'form', {class: 'controls', 'aria-label': 'What the panels show', onsubmit: (event) => event.preventDefault()},
      html('label', {}, 'Layers ', html('input', {id: 'filter-text', type: 'search', oninput, ...hint})),
      filter('role', 'Role ', [all, ...roles.map((role) => [role, role])]),
      filter('checkpoint', 'Checkpoint ', [all, ...checkpoints.map((c) => [String(c.index), c.name])]), order, result));
  show();
}

startFilters();
document.body.append(unknownPattern());
const kAbout = ['compute', 'recipe', 'wire', 'ranks', 'batches', 'model'];
startPage('precision analysis', Object.fromEntries(kAbout.map((key) => [key, textOf(setting[key])])), [
  panel('verdict', 'Verdict', 'Verdict', 'What the figures below come to, the most important first.', drawVerdict),
  panel(
      'layers', 'Layers', 'Layers',
      'Each row is one tensor, or one layer with the worst of its tensors. Click a heading to sort by it, and a layer to see ' +
          'its histogram.',
      drawLayers,
      [
        'Shares are per cent of elements, with a bar of that size: underflow becomes 0, subnormal keeps fewer bits, ' +
            'saturated is beyond the largest number, stagnant updates are below half an ulp, batch loss is what the noise of ' +
            'rounding costs. SNR is in dB, the median of the steps.',
      ]),
  panel(
      'histograms', 'Histogram', 'Exponent histogram',
      'A bar is the share of elements whose magnitude lies between 2^e and 2^(e + 1). Its colour shows what becomes of them ' +
          'in the tensor’s format; the bands below show each format at the scale in use.',
      drawHistograms,
      [
        swatch('normal', 'normal range: full precision'),
        swatch('subnormal', 'subnormal range: fewer bits'),
        swatch('lost', 'too small: becomes 0'),
        swatch('beyond', 'beyond the largest number'),
        'horizontal: exponent e (power of two); vertical: % of elements',
      ]),
  panel(
      'drift', 'Drift', 'Drift of the largest magnitude',
      'Each line is the largest magnitude (amax) of one tensor by step; a format with a fixed scale needs room for its whole ' +
          'height. The tensors that moved most are dark, the others pale.',
      drawDrift, ['horizontal: training step', 'vertical: amax, no unit, logarithmic']),
  panel(
      'snr', 'SNR of products', 'Signal-to-noise ratio of the products',
      'Each cell compares a product of a linear layer with the same product of unrounded operands, at one step: brighter is ' +
          'nearer to exact.',
      drawSnr),
  panel(
      'stagnation', 'Stagnation', 'Stagnant updates',
      'The share of updates below half an ulp of a weight in this format: half the distance to its neighbours. Rounding to ' +
          'nearest without a master weight loses them.',
      drawStagnation),
  panel(
      'underflow', 'Loss scale', 'Underflow and overflow against the loss scale',
      'To the left gradients vanish, to the right they overflow. A good scale lies in the valley between, with room for ' +
          'gradients to grow.',
      drawUnderflow, kLossScaleLegend),
  panel(
      'noise', 'Quantisation noise', 'Quantisation noise against the noise of mini-batches',
      'Gradients differ from batch to batch, and rounding adds noise: it costs as much as a batch that is smaller by this share.',
      drawNoise),
  panel(
      'wire', 'Wire', 'The reduction over ranks',
      'How near the gradients that were summed over ranks in the wire’s format are to the sum in fp32, by parameter. Better ' +
          'is to the right for the ratio (SNR) and to the left for the angle (1 − cosine).',
      drawWire),
]);
