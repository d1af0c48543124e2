'use strict';
// Shared by all pages: access to figures, any of which may be missing, elements, numbers as text, and panels.

const figures = JSON.parse(document.getElementById('figures').textContent) || {};
const setting = figures.setting || {};

// Lists, numbers and texts as they are, with harmless values for missing ones.
const listOf = (value) => (Array.isArray(value) ? value : []);
const numberOf = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : null);
const textOf = (value) => (value === null || value === undefined ? '' : String(value));
const numbersOf = (values) => listOf(values).map(numberOf).filter((value) => value !== null);
const recordsOf = (values) => listOf(values).filter(Boolean);

const largest = (values) => (numbersOf(values).length ? Math.max(...numbersOf(values)) : null);
const smallest = (values) => (numbersOf(values).length ? Math.min(...numbersOf(values)) : null);
function median(values) {
  const sorted = numbersOf(values).sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) return null;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
// The values that occur: known values first, in their order.
const inOrder = (values, known) => [...new Set([...known.filter((value) => values.includes(value)), ...values])];

// Elements. All text becomes text nodes, so that names cannot become markup.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on'))
      node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined)
      node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => ![null, undefined, false, ''].includes(child)));
  return node;
}
// Long words, as of paths and names, may be broken after these characters.
const breakable = (child) => typeof child !== 'string' ?
    child :
    child.split(/(?<=\S{12}[/_.])(?=\w{2})/)
        .flatMap((part, i) => (i > 0 ? [document.createElement('wbr'), part] : [part]));
const html = (tag, attributes, ...children) =>
    fill(document.createElement(tag), attributes, children.flat(Infinity).map(breakable));
const svg = (tag, attributes, ...children) =>
    fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const absent = (text) => html('p', {class: 'absent'}, text);  // instead of a chart
const note = (...text) => html('p', {class: 'note'}, ...text);
const tooltip = (text) => svg('title', {}, text);
const word = (...content) => html('span', {}, ...content);
const swatch = (kind, text) => word(html('i', {class: `swatch ${kind}`}), text);

function choice(label, options, chosen, onchange, attributes) {
  const select = html('select', {...attributes, onchange: () => onchange(select.value)});
  for (const [value, text] of options) select.append(html('option', {value}, text));
  select.value = chosen;
  return html('label', {}, label, select);
}

const table = (head, rows) => html('table', {}, html('thead', {}, html('tr', {}, head)), html('tbody', {}, rows));

// columns: {heading: cell of a row}. Elements are on the left, texts, which are numbers, on the right.
function figureTable(rows, columns) {
  const place = (cell) => (cell instanceof Node ? 'text' : null);
  const cells = rows.map((row) => Object.values(columns).map((cellOf) => cellOf(row)));
  const head = Object.keys(columns).map((heading, i) => {
    const style = heading.length > 20 ? 'min-width: 7rem' : null;  // not a line for each word
    return html('th', {class: place((cells[0] || [])[i]), style}, heading);
  });
  const lines = cells.map((line) => html('tr', {}, line.map((cell) => html('td', {class: place(cell)}, cell))));
  return html('div', {class: 'table'}, table(head, lines));
}

// A scrolling window for content that may be long. It takes the focus, so that it scrolls with the keyboard.
const scrolling = (name, content) =>
    html('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name}, content);

// Numbers as text; "–" if there is none.
const withDefault = (text) => (value) => (numberOf(value) === null ? '–' : text(value));
function figure(value, digits = 3) {
  if (numberOf(value) === null) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.max(0, digits - 1)).replace('e+', 'e');
  return size >= 10 ** (digits - 1) ? String(Math.round(value)) : value.toPrecision(digits);
}
// A round number, as ticks are.
function plain(value) {
  const short = Number(value.toPrecision(3));
  const isLong = short !== 0 && (Math.abs(short) < 1e-3 || Math.abs(short) >= 1e5);
  return isLong ? short.toExponential().replace('e+', 'e') : String(short);
}
const share = withDefault((value) => {
  const percent = 100 * value;
  if (percent >= 0.001 || percent === 0) return `${Number(percent.toPrecision(percent < 10 ? 2 : 3))} %`;
  return `${Number(percent.toPrecision(2)).toExponential()} %`;
});
// For numbers that may be negative: a true minus sign.
const withMinus = (text) => text.replaceAll('-', '−');
// The mean of {mean, interval} and half of the interval in two digits, as with_error() in report.h: "+0.0003 ±0.0017".
function withError(found, sign = '') {
  if (!found || numberOf(found.mean) === null) return '–';
  const half = found.interval ? (found.interval.high - found.interval.low) / 2 : 0;
  const decimals = half >= 1e-9 ? Math.min(5, Math.max(0, 1 - Math.floor(Math.log10(half)))) : 4;
  const isSmall = (value) => half >= 1e-9 && half < 1e-4 && value < 1e-4;
  const text = (value) => withMinus(isSmall(value) ? value.toExponential(1) : value.toFixed(decimals));
  const mean = `${found.mean < 0 ? '−' : sign}${text(Math.abs(found.mean))}`;
  return found.interval ? `${mean} ±${text(half)}` : mean;
}
const wholePercent = (value) => withMinus(`${Math.round(100 * value)} %`);
const count = withDefault((value) => value.toLocaleString('en'));
const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
const decibel = withDefault((value) => value.toFixed(1));
const milliseconds = withDefault((seconds) => `${figure(1e3 * seconds)} ms`);
const raised = (exponent) => [...String(exponent)].map((digit) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[digit] || '⁻').join('');
const power = (exponent) => `2${raised(exponent)}`;
const mebibytes =
    withDefault((bytes) => (bytes >= 2 ** 30 ? `${figure(bytes / 2 ** 30)} GiB` : `${figure(bytes / 2 ** 20)} MiB`));

// Charts, draw(width_px), side by side if each has `least_px`, else below each other; with a name in a scrolling window.
function facetGrid(body, least_px, charts, name) {
  const room = body.clientWidth - (name ? 40 : 0);  // for the window's padding and scroll bar
  const columns = Math.max(1, Math.min(charts.length, Math.floor((room + 20) / (least_px + 20))));
  const width = Math.min(760, Math.floor((room - 20 * (columns - 1)) / columns));
  const grid = html(
      'div', {class: 'facets', style: `grid-template-columns: repeat(${columns}, ${width}px)`},
      charts.map((draw) => html('div', {class: 'facet'}, draw(width))));
  body.append(name ? scrolling(name, grid) : grid);
}

// A page is a list of panels. `how` explains a panel, `legend` lists its marks. draw(body, legend) appends what the
// figures need, or returns the reason why there is nothing to show.
const panel = (id, short, title, how, draw, legend = []) => ({id, short, title, how, draw, legend});
let panels = [];

function drawPanel({section, draw, legend: marks}) {
  const [legend, body] = [section.querySelector('.legend'), section.querySelector('.body')];
  const scrolled = [...body.querySelectorAll('.scroll')].map((window) => window.scrollLeft);
  const focused = body.contains(document.activeElement) ? document.activeElement.id : '';
  body.replaceChildren();
  legend.replaceChildren(...marks.map((one) => (typeof one === 'string' ? word(one) : one.cloneNode(true))));
  const reason = draw(body, legend);
  if (reason) body.append(absent(reason));
  section.classList.toggle('nothing', Boolean(reason));
  body.querySelectorAll('.scroll').forEach((window, i) => {
    window.scrollLeft = scrolled[i] || 0;
  });
  if (focused) document.getElementById(focused)?.focus();
}
const drawPanels = () => panels.forEach(drawPanel);
const redraw = (id) => drawPanel(panels.find((panel) => panel.id === id));

// `about`: texts by name. Charts have the width that the window gives them.
function startPage(kind, about, list, name = textOf(figures.title)) {
  const title = name || kind[0].toUpperCase() + kind.slice(1);
  document.title = `${title}: ${kind}`;
  document.querySelector('.kind').append(`mantissa · ${kind}`);
  document.querySelector('h1').append(word(title));
  for (const [name, text] of Object.entries(about).filter(([, text]) => text))
    document.getElementById('setting').append(html('div', {}, html('dt', {}, name), html('dd', {}, text)));
  panels = list.map(({id, how, ...one}) => {
    const section = html(
        'section', {id}, html('h2', {}, one.title), html('p', {class: 'how'}, how), html('p', {class: 'legend'}),
        html('div', {class: 'body'}));
    document.querySelector('main').append(section);
    document.getElementById('contents').append(html('a', {href: `#${id}`}, one.short));
    return {id, section, ...one};
  });
  drawPanels();
  let [drawnWidth, waiting] = [window.innerWidth, 0];
  window.addEventListener('resize', () => {
    if (window.innerWidth === drawnWidth) return;
    drawnWidth = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawPanels, 100);
  });
}
