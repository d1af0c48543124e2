// The page of `mantissa advise`: precisions by speed, or with a budget a plan. advice.cc and plan_report.cc write its
// figures.

const joules = withDefault((energy) => `${figure(energy)} J`);
const nats = (value) => withMinus(figure(value));

function drawVerdict(body) {
  const lines = textOf(figures.verdict).split('\n').filter(Boolean);
  if (lines.length === 0) return 'The file of this advice holds no verdict.';
  body.append(html('ul', {}, lines.map((line) => html('li', {}, line))));
}
const verdictPanel = panel('verdict', 'Verdict', 'Verdict', 'A summary of the figures below.', drawVerdict);

// Without a budget: `precisions`, the fastest first.
const precisions = recordsOf(figures.precisions);
const running = precisions.filter((one) => numberOf(one.step_seconds) !== null);
const noneRuns = 'No precision runs on this device: the table says why.';
const known = (key) => running.some((one) => numberOf(one[key]) !== null);

function drawTable(body) {
  if (precisions.length === 0) return 'The file of this advice holds no precision.';
  const columns = {
    'Precision': ({name, configured}) => keyed(configured ? `${name} *` : name, colorOf(name)),
    'Step': ({step_seconds: seconds}) => milliseconds(seconds),
    'Tokens/s': ({tokens_per_second: rate}) => count(numberOf(rate) && Math.round(rate)),
    'Times fp32': ({speedup}) => figure(speedup),
    'At best': ({speedup_bound: bound}) => figure(bound),
    'Memory': ({memory_bytes: memory}) => mebibytes((memory || {}).total),
  };
  body.append(figureTable(precisions, columns), note('* as configured'));
  for (const {name, reason} of precisions) body.append(note(html('strong', {}, `${name}: `), textOf(reason)));
}

function drawSpeed(body) {
  if (running.length === 0) return noneRuns;
  const bars = (title, key, scale, text) => barChart(
      title,
      running.map((one) => ({name: one.name, value: numberOf(one[key]) && scale * one[key], text: text(one[key])})));
  const charts = [bars('Time of a step, milliseconds', 'step_seconds', 1e3, milliseconds)];
  if (known('joules')) charts.push(bars('Energy of a rank in a step, joules, at least', 'joules', 1, joules));
  facetGrid(body, 420, charts);
}

function drawMemory(body, legend) {
  if (running.length === 0) return noneRuns;
  legend.append(...memoryLegend());
  const rows = running.map(({name, memory_bytes: memory}) => ({name, memory}));
  facetGrid(body, 420, [memoryChart('Memory of a rank, MiB', rows)]);
}

function drawOperations(body) {
  if (running.length === 0) return noneRuns;
  const {name, ops, step_seconds: total} = running[0];
  const rows = recordsOf(ops).slice(0, 16).map(({phase, op, format, seconds}) => {
    const text = `${milliseconds(seconds)}, ${wholePercent(seconds / total)}`;
    const fill = format ? colorOf(format) : 'var(--normal)';
    return {
      name: [op, format, phase].filter(Boolean).join(' '),
      value: 1e3 * seconds,
      text,
      parts: [{value: 1e3 * seconds, fill}]
    };
  });
  facetGrid(body, 420, [barChart(`Milliseconds of a step in ${name}`, rows)]);
}

const advicePanels = [
  panel(
      'table', 'Precisions', 'Precisions',
      'The fastest first; then those that do not fit or do not run, with the reason.', drawTable),
  panel(
      'speed', 'Speed', 'Speed',
      'By a data sheet, times are those of its roofline: no step is faster. On this device, kernels were measured.',
      drawSpeed),
  panel('memory', 'Memory', 'Memory', 'Memory that a rank holds for the training, by category.', drawMemory),
  panel(
      'operations', 'Operations', 'Where the time goes', 'The longest operations of a step in the fastest precision.',
      drawOperations),
];

// With a budget: `plan` beside the same precision throughout.
const uniform = recordsOf(figures.uniform);
const plans = recordsOf([...uniform, figures.plan]);

function drawPlans(body) {
  if (plans.length === 0) return 'The file of this advice holds no plan.';
  const [, low = plans[0]] = uniform;
  const columns = {
    'Precision': nameCell,
    'Step': ({seconds}) => milliseconds(seconds),
    [`Of ${textOf(low.name)}`]: ({seconds}) => figure(seconds / low.seconds),
    'Memory of a rank': ({bytes}) => mebibytes(bytes),
    'Sent a step': ({sent_bytes: bytes}) => (bytes > 0 ? mebibytes(bytes) : '0'),
    'Loss above fp32, nats': ({damage}) => nats(damage),
    'Of it backward': ({backward_damage: damage}) => nats(damage),
    'Fits into memory': ({fits}) => (fits === false ? 'no' : 'yes'),
    'Budget': ({budget}) => textOf(budget),
  };
  if (plans.some((plan) => numberOf(plan.joules) !== null)) columns['Energy'] = (plan) => joules(plan.joules);
  body.append(figureTable(plans, columns));
}

function drawPlaces(body) {
  const places = recordsOf(figures.places);
  if (places.length === 0) return 'The plan decides about nothing.';
  const chosen = ({name}) => textOf((figures.choices || {})[name]);
  body.append(scrolling('The plan', figureTable(places, {
                          'Place': ({name}) => word(name),
                          'Precision': (place) => keyed(chosen(place), colorOf(chosen(place))),
                          'Why': ({reason}) => html('span', {class: 'sentence'}, reason),
                        })));
}

function drawFront(body, legend) {
  const front = recordsOf(figures.front);
  if (front.length === 0) return 'No plan was priced as a whole.';
  // Over what the budget limits. Under a budget of loss, time is the least quantity.
  const axes = {memory: ['memory of a rank, MiB', 'bytes', 2 ** -20], energy: ['energy of a rank, joules', 'joules', 1]};
  const time = ['time of a step, milliseconds', 'seconds', 1e3];
  const [xTitle, key, scale] = axes[textOf((figures.budget || {}).kind)] || time;
  const pointOf = (plan) => ({x: scale * plan[key], mean: plan.damage});
  const others = {name: 'other plans that none beats', color: 'var(--quiet)', points: front.map(pointOf)};
  const named = plans.map((plan) => ({name: plan.name, color: colorOf(plan.name), points: [pointOf(plan)]}));
  legend.append(...[...named, others].map(({name, color}) => keyed(name, color)));
  const options = {xTitle, text: nats, zero: true, dots: 'alone'};
  facetGrid(body, 600, [lineChart('Loss above fp32, nats', [others, ...named], options)]);
}

function drawValidation(body) {
  const against = Object.entries((figures.validation || {}).against || {});
  if (against.length === 0) return 'The plan was not trained: --seeds says how often.';
  const ratios = ({mean, interval}) =>
      (interval ? [mean, interval.low, interval.high] : [mean]).map((log) => figure(Math.exp(log))).join(', ');
  body.append(figureTable(against, {
    'Beside': ([name]) => keyed(name, colorOf(name)),
    'Loss, nats': ([, one]) => withError(one.loss, '+'),
    'Verdict': ([, one]) => textOf(one.loss_verdict),
    'Step time: mean, from, to': ([, one]) => (one.log_time ? ratios(one.log_time) : '–'),
    'Its verdict': ([, one]) => textOf(one.time_verdict),
  }));
  body.append(note(`Over ${counted(figures.validation.seeds, 'seed')} of ${counted(figures.validation.steps, 'step')}.`));
}

const planPanels = [
  panel(
      'plans', 'Plans', 'The plan beside one precision throughout',
      'Predicted for the whole step, which the budget is for; the loss is the mean plus one standard error. Backward ' +
          'products count with one update, which is no evidence about training. A plan that is measured to take more than a budget of time misses it.',
      drawPlans),
  panel(
      'places', 'Choices', 'Choices of the plan',
      'The precision of each place, and the effect of the nearest other choice.', drawPlaces),
  panel(
      'front', 'Pareto front', 'Pareto front',
      'To the left is less of what the budget limits (time, for a loss), below is more exact. By time, memory and loss at ' +
          'once, no plan here is beaten by another.',
      drawFront),
  panel(
      'validation', 'Validation', 'Trained to validate it', 'The plan minus the same seed in this precision.',
      drawValidation),
];

const budget = figures.budget ? {budget: `${textOf(figures.budget.kind)} ${textOf(figures.budget.text)}`} : {};
const about = {
  device: textOf(figures.device),
  ranks: textOf(figures.ranks),
  'tokens a step': textOf(figures.tokens_per_step)
};
startPage(
    'advice on precision', {...about, ...budget}, [verdictPanel, ...(figures.plan ? planPanels : advicePanels)],
    textOf(figures.model));
