// Runs in a page under test, after its script: reports the page's contents to the surrounding frame.
'use strict';
function facts() {
  const root = document.documentElement;
  const marks = (node, selector) => node.querySelectorAll(selector).length;
  const attributes = (section) => [...section.querySelectorAll('svg *')].flatMap((node) => [...node.attributes]);
  const panel = (section) => ({
    id: section.id,
    heading: section.querySelector('h2').textContent,
    how: section.querySelector('.how').textContent,
    legend: section.querySelector('.legend') ? section.querySelector('.legend').textContent.trim() : '',
    absent: [...section.querySelectorAll('.absent')].map((node) => node.textContent),
    marks: marks(section, 'svg .mark'),
    unknown: marks(section, 'svg .unknown'),
    bands: marks(section, 'svg .band'),
    facets: marks(section, '.facet'),
    rows: marks(section, 'tbody tr'),
    columns: [...section.querySelectorAll('thead th')].map((node) => node.textContent),
    names: [...section.querySelectorAll('tbody td.layer')].map((node) => node.textContent),
    rows_shown: [...section.querySelectorAll('svg text.name title')].map((node) => node.textContent),
    chosen: [...section.querySelectorAll('select')].map((node) => node.selectedOptions[0].textContent),
    text: section.querySelector('.body').textContent,
    // A chart silently drops numbers that it cannot place.
    misplaced: attributes(section).filter((one) => /NaN|Infinity|undefined|null/.test(one.value)).length,
  });
  // Chart text that is too small to read or cut off at the edge.
  const is_cut = (text) => {
    const [inner, outer] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
    return inner.width > 0 &&
        (inner.left < outer.left - 1 || inner.right > outer.right + 1 || inner.top < outer.top - 1 ||
         inner.bottom > outer.bottom + 1);
  };
  const texts = [...document.querySelectorAll('svg text')];
  return {
    small_texts:
        texts.filter((text) => parseFloat(getComputedStyle(text).fontSize) < 11).map((text) => text.textContent),
    cut_texts: texts.filter(is_cut).map((text) => text.textContent),
    width: window.innerWidth,
    scroll_width: Math.max(root.scrollWidth, document.body.scrollWidth),
    title: document.title,
    heading: document.querySelector('h1').textContent,
    setting: document.getElementById('setting').textContent,
    result: document.getElementById('filter-result') ? document.getElementById('filter-result').textContent : '',
    smuggled: window.smuggled === undefined ? null : window.smuggled,
    foreign: document.querySelectorAll('img, iframe, object, embed, link, b:not(.legend b), i:not([class])').length,
    panels: [...document.querySelectorAll('section')].map(panel),
  };
}
function act(selector, value) {
  const node = document.querySelector(selector);
  if (value === undefined) return node.click();
  node.value = value;
  node.dispatchEvent(new Event(node.tagName === 'INPUT' ? 'input' : 'change', {bubbles: true}));
}
