// Which panel is drawn by what. Everything else of the script stands before this file.

const kPanels = {
  'verdict': drawVerdict,
  'figures-table': drawFigures,
  'curves': drawCurves,
  'success': drawSuccess,
  'scales': drawScales,
  'cost': drawCost,
  'saving': drawSaving,
  'format-error': drawFormats,
  'underflow': drawUnderflow,
  'gemm': drawGemm,
};
const kFixedLegends = ['underflow'];  // written in the page; the others depend on the figures

function drawPanels() {
  for (const [id, draw] of Object.entries(kPanels)) {
    const section = document.getElementById(id);
    const [body, legend] = [section.querySelector('.body'), section.querySelector('.legend')];
    body.replaceChildren();
    if (legend && !kFixedLegends.includes(id)) legend.replaceChildren();
    draw(body, legend);
    section.classList.toggle('nothing', [...body.children].every((child) => child.classList.contains('absent')));
  }
}

drawHead();
drawPanels();
redrawOnResize(drawPanels);
