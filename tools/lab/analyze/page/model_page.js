// The filters, and which panel is drawn by what. Everything else of the script stands before this file.

const filters = {
  text: '',
  role: '',
  checkpoint: '',
  order: 'model'
};

const matchesLayer = (layer) => layer.toLowerCase().includes(filters.text);
const matchesRole = (role) => filters.role === '' || role === filters.role;
const shownCheckpoints = () =>
    checkpoints.filter((checkpoint) => filters.checkpoint === '' || String(checkpoint.index) === filters.checkpoint);
const shownRecords = (item) => shownCheckpoints().map((checkpoint) => item.at[checkpoint.index]);
// How checkpoints are told apart in charts of one mark each: the first is hollow, the last is full.
const checkpointMark = (index) => (index === checkpoints.length - 1 ? 'last' : 'first');
const checkpointLegend = () => shownCheckpoints().map(
    (c) => swatch(checkpointMark(c.index), `${c.name}${numberOf(c.step) === null ? '' : ` (step ${count(c.step)})`}`));
const nothingMatches = (what) =>
    absent(`The filters leave no ${what}. Clear the layers' filter, or choose another role or checkpoint.`);

const byLayer = (items) => {
  const found = new Map();
  for (const item of items) found.set(item.layer, [...(found.get(item.layer) || []), item]);
  return found;
};
const tensorsByLayer = byLayer(tensors);
const productsByLayer = byLayer(products);

const kPanels = {
  layers: drawLayers,
  histograms: drawHistograms,
  drift: drawDrift,
  snr: drawSnr,
  stagnation: drawStagnation,
  underflow: drawUnderflow,
  noise: drawNoise,
  wire: drawWire,
};
const kFixedLegends =
    ['layers', 'histograms', 'drift', 'underflow'];  // written in the page; the others depend on the figures

function drawPanel(id) {
  const section = document.getElementById(id);
  const body = section.querySelector('.body');
  const legend = section.querySelector('.legend');
  const scrolled = [...body.querySelectorAll('.scroll')].map((window) => window.scrollLeft);
  const focused = body.contains(document.activeElement) ? document.activeElement.id : '';
  body.replaceChildren();
  if (!kFixedLegends.includes(id)) legend.replaceChildren();
  kPanels[id](body, legend);
  section.classList.toggle('nothing', [...body.children].every((child) => child.classList.contains('absent')));
  body.querySelectorAll('.scroll').forEach((window, i) => {
    window.scrollLeft = scrolled[i] || 0;
  });
  if (focused) document.getElementById(focused)?.focus();
}

function drawPanels() {
  const shown = layerNames.filter(matchesLayer).length;
  const all = `${count(layerNames.length)} layers`;
  document.getElementById('filter-result').textContent = filters.text ? `${count(shown)} of ${all}` : all;
  for (const id of Object.keys(kPanels)) drawPanel(id);
}

function startFilters() {
  const set = (name) => (event) => {
    filters[name] = name === 'text' ? event.target.value.trim().toLowerCase() : event.target.value;
    drawPanels();
  };
  document.getElementById('filters').addEventListener('submit', (event) => event.preventDefault());
  document.getElementById('filter-text').addEventListener('input', set('text'));
  const offer = (name, options) => {
    const select = document.getElementById(`filter-${name}`);
    for (const [value, text] of options) select.append(html('option', {value}, text));
    select.addEventListener('change', set(name));
  };
  offer('role', [['', 'all'], ...roles.map((role) => [role, role])]);
  offer('checkpoint', [['', 'all'], ...checkpoints.map((checkpoint) => [String(checkpoint.index), checkpoint.name])]);
  offer('order', []);
  const contents = document.getElementById('contents');
  for (const id of Object.keys(kPanels)) {
    contents.append(html('a', {href: `#${id}`}, document.getElementById(id).dataset.short));
  }
}

drawHead();
drawVerdict();
document.body.append(unknownPattern());
startFilters();
drawPanels();
redrawOnResize(drawPanels);
